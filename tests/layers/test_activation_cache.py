"""What the cache keeps, where, and for how long."""

from __future__ import annotations

import copy
import pickle

import numpy
import pytest
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Adam

from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import Session, current_session
from spacy_elmo.layers.activation_cache import ActivationCache

from ..conftest import add_tagger, elmo_pipeline, max_difference, random_bilm, tagged

N_BYTES = 3 * 5 * 4 * 4
MB = N_BYTES / 2**20


def activations(seed=0):
    return numpy.random.default_rng(seed).normal(size=(3, 5, 4)).astype("float32")


def test_what_came_first_stays():
    cache = ActivationCache(2.1 * MB)
    for seed in range(4):
        cache.put(seed, activations(seed))
    assert [cache.get(seed) is not None for seed in range(4)] == [True, True, False, False]
    assert cache.n_bytes == 2 * N_BYTES


def test_copies_are_empty():
    cache = ActivationCache(MB, half_precision=True)
    assert cache.put("a", activations()).dtype == cache.get("a").dtype == "float16"
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert len(other) == 0 and len(cache) == 1
        assert (other.memory_mb, other.half_precision) == (MB, True)


# In a pipeline


def training_pipeline(path, frozen_components=(), **cache):
    """With a tagger that listens."""
    safetensors_format.write(random_bilm(), path / "weights")
    block = {"@misc": "spacy-elmo.ActivationCache.v1", **cache}
    nlp = elmo_pipeline(path / "weights", activation_cache=block)
    add_tagger(nlp)
    with nlp.select_pipes(disable=frozen_components):  # As `spacy train` does.
        nlp.initialize(lambda: tagged(nlp))
    return nlp


@pytest.fixture
def runs(monkeypatch):
    """Grows with every run of a biLM."""
    runs, batches = [], Session.batches

    def count(*args):
        runs.append(1)
        return batches(*args)

    monkeypatch.setattr(Session, "batches", count)
    return runs


def test_a_frozen_bilm_reads_the_training_data_once(tmp_path, runs):
    """And again once training has ended."""
    nlp = training_pipeline(tmp_path)
    runs.clear()
    for _ in range(3):
        nlp.update(tagged(nlp))
    nlp.evaluate(tagged(nlp))  # The same texts: nothing new to read.
    cache = nlp.get_pipe("elmo").activation_cache
    assert len(runs) == 1 and len(cache) == len(tagged(nlp))
    nlp.get_pipe("elmo").end_training()
    assert len(cache) == 0
    nlp.evaluate(tagged(nlp))
    assert len(runs) == 2


def test_new_weights_empty_the_cache(tmp_path):
    """Also if they get the memory of old ones, which have been freed."""
    nlp = training_pipeline(tmp_path)
    elmo, words = nlp.get_pipe("elmo"), ["Money", "flows"]
    folders = [tmp_path / "weights", tmp_path / "other"]
    safetensors_format.write(random_bilm(seed=1), folders[1])
    for number in (1, 0, 1, 0, 1):
        elmo.load_weights(folders[number])
        nlp.update(tagged(nlp))
        [vectors] = elmo.predict([Doc(nlp.vocab, words=words)])
        [expected] = current_session(random_bilm(seed=number)).embed([words])
        assert max_difference(vectors.layers, expected) < 1e-5


def test_predictions_between_updates_are_exact_and_not_kept(tmp_path):
    nlp = training_pipeline(tmp_path, half_precision=True)
    nlp.update(tagged(nlp), sgd=Adam(0.01))
    cache = nlp.get_pipe("elmo").activation_cache
    n_entries = len(cache)
    assert n_entries > 0
    for text in ["The bank flows.", "Money flows", "Money in the bank"]:  # Two were trained on.
        doc = nlp(text)
        [expected] = current_session(random_bilm()).embed([[token.text for token in doc]])
        assert max_difference(doc._.elmo_layers, expected) < 1e-5
    nlp.evaluate(tagged(nlp))
    assert len(cache) == n_entries


@pytest.mark.parametrize("where", ["first", "last"])
def test_evaluations_while_training_are_kept(tmp_path, runs, where):
    """Also if components after it set the boundaries of sentences."""
    nlp = training_pipeline(tmp_path)
    nlp.add_pipe("sentencizer", **{where: True})
    unseen = [Example.from_dict(nlp.make_doc(text), {}) for text in ("A b . C d .", "E f")]
    nlp.update(tagged(nlp), sgd=Adam(0.01))
    runs.clear()
    for _ in range(4):
        nlp.evaluate(unseen)
        nlp.update(tagged(nlp), sgd=Adam(0.01))
    assert len(runs) == 1
    nlp.get_pipe("elmo").end_training()
    nlp.evaluate(unseen)
    assert len(nlp.get_pipe("elmo").activation_cache) == 0


def test_a_component_that_only_annotates_uses_the_cache(tmp_path, runs):
    """It knows of the training from the second step on."""
    nlp = training_pipeline(tmp_path, frozen_components=["elmo"])
    runs.clear()
    for _ in range(4):
        nlp.update(tagged(nlp), sgd=Adam(0.01), annotates=["elmo"], exclude=["elmo"])
    assert len(runs) == 2
