"""Models of ELMoForManyLangs: the network, its settings, and the reader of folders."""

import json
import shutil
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from spacy_elmo.bilm import BiLMConfig
from spacy_elmo.formats import load, round_to_int8, safetensors_format
from spacy_elmo.formats import manylangs as reader
from spacy_elmo.inference import Session, Settings, current_session
from spacy_elmo.pretraining.batches import SentenceBatches
from spacy_elmo.pretraining.config import LossConfig
from spacy_elmo.pretraining.corpus import Sentences
from spacy_elmo.pretraining.language_model import LanguageModel

from ..conftest import (
    add_tagger,
    arguments,
    assert_close,
    elmo_pipeline,
    max_difference,
    run_spacy,
    tagged,
)
from ..families import manylangs
from ..families.network import random_model
from .test_formats import assert_refused, assert_same

SEEDS = range(4)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a word table."""
    architecture, weights, _ = random_model(manylangs)
    assert architecture["word_dim"]
    return manylangs.write(tmp_path_factory.mktemp("model") / "xx", architecture, weights)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A model that the test may change."""
    return Path(shutil.copytree(written, tmp_path / "xx"))


# ---------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("seed", SEEDS)
def test_all_layers_equal_the_reference(seed, tmp_path):
    architecture, weights, sentences = random_model(manylangs, seed)
    expected = manylangs.reference(architecture, weights, sentences)
    bilm = load(manylangs.write(tmp_path / "model", architecture, weights))
    assert_close(current_session(bilm).embed(sentences), expected)
    together = bilm(*arguments(sentences))
    assert_close([together], [numpy.concatenate(expected, axis=1)])
    # The type cache holds all types.
    assert_close(current_session(bilm).embed(sentences[::-1]), expected[::-1])
    safetensors_format.write(bilm, tmp_path / "saved")
    assert_close(current_session(load(tmp_path / "saved")).embed(sentences), expected)


# ------------------------------------------------------------------------------------- fine-tuning


def test_training_reaches_all_weights(written):
    nlp = elmo_pipeline(written, "xx", frozen=False)
    add_tagger(nlp)
    examples = tagged(nlp)
    nlp.initialize(lambda: examples)
    elmo = nlp.get_pipe("elmo")
    before = {name: x.detach().clone() for name, x in elmo.bilm.named_parameters()}
    vectors = current_session(elmo.bilm).embed([["The", "bank"]])[0]
    optimizer = nlp.create_optimizer()
    nlp.update(examples, sgd=optimizer)
    for name, parameter in elmo.bilm.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert max_difference(current_session(elmo.bilm).embed([["The", "bank"]])[0], vectors) > 1e-5


def test_pretraining_has_the_boundaries_of_the_model(written):
    bilm, words = load(written), ["the", "bank", "zz"]
    sentences = Sentences.from_tokens([words], ["<S>", "</S>", "<UNK>", *words[:2]])
    model = LanguageModel(bilm, 5, LossConfig("sampled")).eval()
    top = model.top(SentenceBatches(sentences, [numpy.array([0])]).read(0)).detach()[0]
    assert len(top) == len(words) + 1
    [layers] = current_session(bilm).embed([words])
    assert max_difference(top[1:], layers[-1, :, : top.shape[1]]) <= 1e-5


# ------------------------------------------------------------------------------------ in our files


def test_round_trips(written, tmp_path):
    bilm = load(written)
    assert bilm.vocabulary is not None
    assert_same(bilm, safetensors_format.from_bytes(safetensors_format.to_bytes(bilm)))
    safetensors_format.write(bilm, tmp_path / "saved")
    assert_same(bilm, load(tmp_path / "saved"))
    options = json.loads((tmp_path / "saved" / "options.json").read_text(encoding="utf8"))
    assert BiLMConfig.from_options(options) == bilm.config


def test_weights_in_8_bits(written):
    exact, low = load(written), load(written)
    round_to_int8(low)
    data = safetensors_format.to_bytes(low)
    int8 = {name for name, x in safetensors.torch.load(data).items() if x.dtype == torch.int8}
    assert {name.rpartition(".")[0] for name in int8} >= {
        "token_encoder.projection",
        "lstm.forward_layers.0",
    }
    assert not any("embedding" in name or "convolutions" in name for name in int8)
    assert_same(low, safetensors_format.from_bytes(data))
    kept = safetensors_format.from_bytes(data, keep_int8=True)
    sentences = random_model(manylangs)[2]
    results = [Session(x, Settings("int8")).embed(sentences) for x in (exact, low, kept)]
    for others in results[1:]:
        assert_close(others, results[0], 0)
    assert kept.is_int8


def test_export_says_what_the_published_layout_cannot_hold(written, tmp_path):
    result = run_spacy("elmo", "export", written, tmp_path / "out")
    assert result.exit_code == 1
    output = " ".join(result.stdout.split())
    assert "Unicode characters and word embeddings" in output
    assert "--format safetensors" in output
    assert not (tmp_path / "out").exists()
    options = "--format", "safetensors"
    assert run_spacy("elmo", "export", written, tmp_path / "out", *options).exit_code == 0
    assert_same(load(written), load(tmp_path / "out"))


# -------------------------------------------------------------------------------- files of a folder


def test_places_of_the_files(tmp_path):
    architecture, weights, sentences = random_model(manylangs, 3)
    settings = {"form": "nested folder", "legacy": False, "cuda": False}
    folder = manylangs.write(tmp_path, architecture, weights, **settings)
    expected = manylangs.reference(architecture, weights, sentences)
    assert_close(current_session(load(tmp_path)).embed(sentences), expected)
    shutil.copytree(folder, tmp_path / "b.model")
    assert_refused(tmp_path, "b.model, xx.model")


@pytest.mark.parametrize("basename", manylangs.BASENAMES)
def test_the_published_architecture_is_built_in(basename, tmp_path):
    published = manylangs.options(manylangs.PUBLISHED_SIZES)
    assert {name: published[name] for name in reader._PUBLISHED} == reader._PUBLISHED
    model = random_model(manylangs, 2)[:2]
    manylangs.write(tmp_path, *model, architecture_file="missing", basename=basename)
    assert_refused(tmp_path, str(tmp_path))  # The tiny tensors do not fit it.


def edit(path: Path, change) -> None:
    contents = json.loads(path.read_text(encoding="utf8"))
    change(contents)
    path.write_text(json.dumps(contents), encoding="utf8")


@pytest.mark.parametrize("place", ["../outside.json", "C:\\x.json", "..", "", "x" * 5000, "a\0b"])
def test_no_file_outside_of_the_folder_is_read(place, folder):
    shutil.copy(folder / manylangs.BASENAMES[0], folder.parent / "outside.json")
    edit(folder / "config.json", lambda config: config.update(config_path=place))
    assert_refused(folder, "lacks its architecture", str(folder))


@pytest.mark.parametrize(
    "section, name, value, words",
    [
        ("encoder", "name", "lstm", ["encoder of the name 'elmo'", "('lstm', 'cnn')"]),
        ("token_embedder", "activation", "gelu", ["activation", "'gelu'"]),
        ("encoder", "cell_clip", ..., ["'cell_clip' is missing"]),
        ("encoder", "n_layers", 9, ["layer_", "is missing"]),
    ],
)
def test_architectures_that_are_refused(section, name, value, words, folder):
    def change(architecture):
        architecture[section][name] = value
        if value is ...:
            del architecture[section][name]

    edit(folder / manylangs.BASENAMES[0], change)
    assert_refused(folder, str(folder), *words)


@pytest.mark.parametrize("line", ["a\tb\t3", "a\tb", "", "a\t-1", "a\t" + "9" * 5000, "zz\t999"])
def test_dictionaries_that_are_refused(line, folder):
    path = folder / "char.dic"
    path.write_text(line + "\n" + path.read_text(encoding="utf8"), encoding="utf8")
    assert_refused(folder, str(path), "line 1")


def test_a_dictionary_of_another_model(folder):
    with (folder / "word.dic").open("a") as file:
        file.write("zz\t0\n")
    assert_refused(folder, str(folder), "word.dic", "word_emb_layer.embedding.weight")


@pytest.mark.parametrize("name", ["config.json", manylangs.BASENAMES[0], "word.dic", "encoder.pkl"])
def test_truncated_files_are_named(name, folder):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    assert_refused(folder, str(folder))
