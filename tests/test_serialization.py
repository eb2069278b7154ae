"""What survives saving, copying and pickling: pipelines, models and docs.

Weights and the arrays of docs survive to the last bit. What a pipeline computes may differ by
rounding: which types are encoded together depends on the type cache, and so on what ran before.
"""

from __future__ import annotations

import json
import pickle
import shutil

import numpy
import pytest
import spacy
import srsly
import torch
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_bilm, get_session

from .conftest import elmo_pipeline, listener, max_difference, random_bilm

TEXTS = ["The bank of the river.", "", "Money \n in the bank", "flows"]
ROUNDING = 1e-6


def assert_same_docs(first, second, bound=ROUNDING):
    assert len(first) == len(second)
    for a, b in zip(first, second):
        assert a.text == b.text
        assert max_difference(a._.elmo_layers, b._.elmo_layers) <= bound
        assert max_difference(a._.elmo_tokens, b._.elmo_tokens) <= bound


def assert_same_weights(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    assert all(numpy.array_equal(first[name], second[name]) for name in first)


def assert_same_pipeline(first, second):
    assert_same_docs(list(first.pipe(TEXTS)), list(second.pipe(TEXTS)))
    assert_same_weights(first.get_pipe("elmo").bilm, second.get_pipe("elmo").bilm)


# Pipelines


@pytest.mark.parametrize("used", [False, True])
def test_a_saved_pipeline_needs_no_other_weights(tmp_path, nlp, weights_folder, used):
    """Not even if it was saved before its first use."""
    other, fresh = elmo_pipeline(weights_folder), elmo_pipeline(weights_folder)
    expected = list((nlp if used else fresh).pipe(TEXTS))
    nlp.to_disk(tmp_path / "saved")
    data = nlp.to_bytes()
    assert_same_pipeline(pickle.loads(pickle.dumps(nlp)), fresh)
    shutil.rmtree(weights_folder)
    for again in (spacy.load(tmp_path / "saved"), other.from_bytes(data)):
        assert_same_docs(list(again.pipe(TEXTS)), expected)
        assert_same_pipeline(again, fresh)


def test_weights_given_later_are_saved(tmp_path, nlp):
    """The saved weights go before those that the config names."""
    other = random_bilm(seed=5)
    safetensors_format.write(other, tmp_path / "other")
    nlp.get_pipe("elmo").load_weights(tmp_path / "other")
    nlp.to_disk(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved")
    [expected] = current_session(other).embed([["bank"]])
    assert max_difference(loaded("bank")._.elmo_layers, expected) < 1e-5


def test_a_copy_of_the_model_is_equal_and_apart(nlp):
    elmo = nlp.get_pipe("elmo")
    doc = nlp(TEXTS[0])
    model = elmo.model.copy()
    assert max_difference(model.predict([doc])[0], doc._.elmo_layers) < ROUNDING
    copied = get_bilm(model)
    assert_same_weights(copied, elmo.bilm)
    assert copied is not elmo.bilm
    for first, second in zip(copied.parameters(), elmo.bilm.parameters()):
        assert first.data_ptr() != second.data_ptr()


def test_from_disk_replaces_weights_in_use(tmp_path, nlp):
    """Nothing derived from the old weights may be left: packed products, type cache."""
    expected = list(nlp.pipe(TEXTS))
    nlp.to_disk(tmp_path / "saved")
    safetensors_format.write(random_bilm(seed=7), tmp_path / "other")
    other = elmo_pipeline(tmp_path / "other")
    assert max_difference(other(TEXTS[0])._.elmo_layers, expected[0]._.elmo_layers) > 1e-3
    other.from_disk(tmp_path / "saved")
    assert_same_docs(list(other.pipe(TEXTS)), expected)


# Saved files


def saved_bilm(model):
    """The biLM's bytes in the bytes of a thinc model."""
    (shim,) = (shim for shims in srsly.msgpack_loads(model)["shims"] for shim in shims)
    return srsly.msgpack_loads(shim)["state"]


def header_and_tensors(data):
    """Of safetensors data. Its header's keys come in any order."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def test_the_saved_model_has_nothing_but_the_weights(nlp):
    """No pickle, no type cache, no packed products; also after use."""
    elmo = nlp.get_pipe("elmo")
    assert len(list(nlp.pipe(TEXTS))) == 4 and len(get_session(elmo.model).type_cache) > 0
    model = elmo.model.to_bytes()
    header, tensors = header_and_tensors(saved_bilm(model))
    assert header.keys() - {"__metadata__"} == dict(elmo.bilm.named_parameters()).keys()
    assert len(tensors) == 4 * sum(parameter.numel() for parameter in elmo.bilm.parameters())
    # What torch.save and pickle write.
    for sign in (b"torch._utils", b"OrderedDict", b"PK\x03\x04", b"\x80\x04\x95"):
        assert sign not in model
    copied = pickle.loads(pickle.dumps(elmo))
    assert len(get_session(copied.model).type_cache) == 0


# Settings


def test_overrides_at_load_take_effect(tmp_path, nlp):
    nlp("bank")
    nlp.to_disk(tmp_path / "saved")
    config = {
        "components.elmo.keep_layers": False,
        "components.elmo.model.precision": "float16",
        "components.elmo.model.max_tokens_per_batch": 17,
        "components.elmo.mix.gamma": 2.0,
        "components.elmo.model.segmenter.window": 4,
        "components.elmo.model.segmenter.overlap": 0,
    }
    loaded = spacy.load(tmp_path / "saved", config=config)
    settings = get_session(loaded.get_pipe("elmo").model).settings
    assert (settings.precision, settings.max_tokens_per_batch) == ("float16", 17)
    text = "The bank of the"  # One window.
    doc, reference = loaded(text), nlp(text)
    assert doc._.elmo_layers is None
    assert 0 < max_difference(doc._.elmo_tokens, 2 * reference._.elmo_tokens) < 1e-2
    # The window is the new one: the first four tokens do not see the others.
    longer = loaded(text + " river flows slowly and")._.elmo_tokens
    assert max_difference(longer[:4], doc._.elmo_tokens) < 1e-5


def fine_tuned(n_layers=None):
    """The default pipeline after a few small steps. RETURNS: It, and how far its vectors moved."""
    nlp = spacy.blank("en")
    adam = {"@optimizers": "Adam.v1", "learn_rate": 1e-5}
    nlp.add_pipe("elmo", config={"frozen": False, "optimizer": adam})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener()}})
    words, tags = ["The", "bank", "lends", "money"], ["D", "N", "V", "N"]
    examples = [Example.from_dict(Doc(nlp.vocab, words), {"tags": tags})]
    sgd = nlp.initialize(lambda: examples)
    bilm = nlp.get_pipe("elmo").bilm
    if n_layers is not None:
        bilm.unfreeze(n_layers)
    before = nlp(TEXTS[0])._.elmo_layers.copy()
    for _ in range(3):
        nlp.update(examples, sgd=sgd)
    return nlp, max_difference(nlp(TEXTS[0])._.elmo_layers, before)


@pytest.mark.parametrize("n_layers", [None, 1])
def test_fine_tuned_default_weights_are_saved_as_they_are(n_layers, tmp_path):
    """They were stored as float16, which would lose most of such small steps."""
    nlp, moved = fine_tuned(n_layers)
    assert moved > 1e-4
    nlp.to_disk(tmp_path / "tuned")
    loaded = spacy.load(tmp_path / "tuned")
    expected = dict(nlp.get_pipe("elmo").bilm.named_parameters())
    for name, parameter in loaded.get_pipe("elmo").bilm.named_parameters():
        assert torch.equal(parameter, expected[name]), name
    assert max_difference(loaded(TEXTS[0])._.elmo_layers, nlp(TEXTS[0])._.elmo_layers) < 1e-5
    # The layers that were not trained stay small.
    size = len((tmp_path / "tuned" / "elmo" / "model").read_bytes())
    assert size > 30e6 if n_layers is None else 16e6 < size < 24e6


# Docs


VOCAB = spacy.blank("en").vocab
ROUND_TRIPS = {
    "DocBin": lambda docs: DocBin(docs=docs, store_user_data=True).get_docs(VOCAB),
    "bytes": lambda docs: [Doc(VOCAB).from_bytes(doc.to_bytes()) for doc in docs],
    "copy": lambda docs: [doc.copy() for doc in docs],
    "pickle": lambda docs: pickle.loads(pickle.dumps(docs)),
}


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_docs_keep_their_arrays(nlp, kind):
    docs = list(nlp.pipe(TEXTS))
    again = list(ROUND_TRIPS[kind](docs))
    assert_same_docs(again, docs, bound=0)
    assert numpy.array_equal(again[0][1]._.elmo, docs[0][1]._.elmo)
