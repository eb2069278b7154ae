"""TensorFlow checkpoints of bilm-tf: the network, the output layer, damage."""

import tracemalloc

import numpy
import pytest
import torch

from spacy_elmo.formats import bilm_tf, find_format, load
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.corpus import Sentences
from spacy_elmo.pretraining.head import find_head, load_language_model
from spacy_elmo.pretraining.perplexity import perplexity

from ..conftest import assert_close
from ..families import bilm_tf as family
from ..families import malicious, one_layer_hdf5
from ..families.network import random_model
from .test_formats import assert_refused

SETTINGS = (
    {"checkpoint": "absolute", "num_shards": 3, "block_size": 100},
    {"checkpoint": None, "prefix": "model.ckpt"},
    {"num_shards": 2},
)


def write(path, seed, **settings):
    """RETURNS: The architecture, the weights and sentences of a random model, written there."""
    architecture, weights, sentences = random_model(family, seed)
    family.write(path, architecture, weights, **settings)
    return architecture, weights, sentences


@pytest.mark.parametrize("seed", range(4))
def test_vectors_and_perplexity_are_those_of_the_reference(seed, tmp_path):
    architecture, weights, sentences = write(tmp_path, seed, **SETTINGS[seed % 3])
    expected = family.reference(architecture, weights, sentences)
    assert_close(current_session(load(tmp_path)).embed(sentences), expected)
    model, head = load_language_model(load(tmp_path), tmp_path)
    assert head.words == architecture["words"]
    scores = perplexity(model, Sentences.from_tokens(sentences, head.words))
    scale = family.reference_perplexity(architecture, weights, sentences)
    for name, other in (("forward", "forward"), ("backward", "backward"), ("average", "both")):
        assert scores[name] == pytest.approx(scale[other], rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_vectors_of_hdf5_with_one_layer(seed, tmp_path):
    architecture, weights, sentences = random_model(one_layer_hdf5, seed)
    one_layer_hdf5.write(tmp_path, architecture, weights, n_characters=261 + seed % 2)
    expected = one_layer_hdf5.reference(architecture, weights, sentences)
    assert_close(current_session(load(tmp_path)).embed(sentences), expected)


def test_any_file_names_the_checkpoint(tmp_path):
    write(tmp_path, 0)
    [expected] = current_session(load(tmp_path)).embed([["the", "bank"]])
    for file in tmp_path.iterdir():
        if file.name not in ("options.json", "vocab.txt"):
            assert find_format(file)[0] is bilm_tf
            assert torch.equal(current_session(load(file)).embed([["the", "bank"]])[0], expected)
    (tmp_path / "model.ckpt-935588.index").unlink()
    assert_refused(tmp_path / "checkpoint", str(tmp_path), "found none")


@pytest.mark.parametrize(
    "state",
    [
        'model_checkpoint_path: "model.ckpt-2"\nall_model_checkpoint_paths: "model.ckpt-10"\n',
        'model_checkpoint_path: "../../elsewhere/model.ckpt-2"',
        'model_checkpoint_path: "C:\\\\run\\\\model.ckpt-2"',
    ],
)
def test_the_newest_of_several(state, tmp_path):
    for number in (1, 2, 10):
        write(tmp_path, 0, prefix=f"model.ckpt-{number}")
    (tmp_path / "checkpoint").write_text(state)
    for path in (tmp_path, tmp_path / "checkpoint"):
        assert bilm_tf.find_index(path) == tmp_path / "model.ckpt-2.index"


@pytest.mark.parametrize("state", [None, 'model_checkpoint_path: "../model.ckpt-2"', "\0"])
def test_one_of_several_is_to_be_named(state, tmp_path):
    """A name does not lead out of the folder."""
    write(tmp_path, 0, prefix="model.ckpt-2")
    for number in (1, 3):
        write(tmp_path / "run", 0, prefix=f"model.ckpt-{number}", checkpoint=None)
    if state is not None:
        (tmp_path / "run" / "checkpoint").write_text(state)
    found = "model.ckpt-1.index, model.ckpt-3.index"
    assert_refused(tmp_path / "run", str(tmp_path / "run"), found)
    assert load(tmp_path / "run" / "model.ckpt-1.index").config == load(tmp_path).config


@pytest.mark.parametrize("kind", malicious.CHECKPOINTS)
def test_damaged_checkpoints(kind, tmp_path):
    """The message names the folder, and little memory is taken."""
    malicious.checkpoint(tmp_path, kind)
    tracemalloc.start()
    try:
        assert_refused(tmp_path, str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "change, words",
    [
        (None, "vocab.txt cannot be read"),
        (lambda words: words[:-1], "no output layer for"),
        (lambda words: [*words[:-1], "the"], "'the' twice"),
    ],
)
def test_another_vocabulary(change, words, tmp_path):
    architecture, _, _ = write(tmp_path, 0)
    if change is None:
        (tmp_path / "vocab.txt").unlink()
    else:
        (tmp_path / "vocab.txt").write_text("\n".join(change(architecture["words"])) + "\n")
    with pytest.raises(ValueError, match=words) as error:
        find_head(tmp_path)
    assert str(tmp_path) in str(error.value)
    load(tmp_path)  # Characters are the input.


def test_random_damage_of_an_index(tmp_path):
    """An error that names the folder, or a model."""
    prefix = family.write(tmp_path, *random_model(family, 6, {"n_layers": 2})[:2])
    index = prefix.with_name(f"{prefix.name}.index")
    data = index.read_bytes()
    rng = numpy.random.default_rng(0)
    n_loaded = 0
    for _ in range(200):
        mutant = bytearray(data)
        for position in rng.integers(len(data), size=rng.integers(1, 5)):
            mutant[position] = rng.integers(256)
        if rng.random() < 0.1:
            del mutant[int(rng.integers(len(mutant))) : -48]
        index.write_bytes(mutant)
        try:
            load(tmp_path)
            n_loaded += 1
        except ValueError as error:
            assert str(tmp_path) in str(error)
    assert 0 < n_loaded < 200
