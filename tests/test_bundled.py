"""Where weights come from."""

import shutil
import warnings

import numpy
import pytest
import spacy

from spacy_elmo import bundled
from spacy_elmo.bundled import DEFAULT, load_weights, names

from .conftest import max_difference


@pytest.fixture
def packaged(tmp_path, weights_folder, monkeypatch):
    """A package that comes with two biLMs."""
    folder = tmp_path / "packaged"
    shutil.copytree(weights_folder, folder / "small")
    shutil.copytree(weights_folder, folder / "large")
    (folder / "README.md").write_text("no weights")
    monkeypatch.setattr(bundled, "FOLDER", folder)
    return folder


def assert_is(found, bilm):
    tokens = [["the", "bank"]]
    assert max_difference(found.embed(tokens)[0], bilm.embed(tokens)[0]) <= 1e-6


def test_names_are_those_of_the_folders(packaged):
    assert names() == ["large", "small"]


def test_no_names_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "missing")
    assert names() == []


@pytest.mark.parametrize("name", names())
def test_every_bundled_name_loads(name):
    assert load_weights(name).embed([["the"]])[0].shape[1] == 1


def test_a_name(packaged, bilm):
    assert_is(load_weights("small"), bilm)


def test_a_folder_and_a_file(weights_folder, hdf5_folder, bilm):
    assert_is(load_weights(weights_folder), bilm)
    assert_is(load_weights(str(weights_folder)), bilm)
    assert_is(load_weights(hdf5_folder / "weights.hdf5"), bilm)


def test_a_pipeline(tmp_path, weights_folder, bilm):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", name="lm", config={"model": {"weights": str(weights_folder)}})
    nlp.to_disk(tmp_path / "pipeline")
    assert_is(load_weights(tmp_path / "pipeline"), bilm)
    nlp.remove_pipe("lm")
    nlp.to_disk(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no elmo component, only \['sentencizer'\]"):
        load_weights(tmp_path / "none")


def test_a_name_goes_before_a_folder_of_that_name(packaged, bilm, tmp_path, monkeypatch):
    (tmp_path / "elsewhere" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_is(load_weights("small"), bilm)


def test_an_unknown_name_lists_what_is_known(packaged):
    with pytest.raises(ValueError, match=r"no weights 'medium'.*\(large, small\)"):
        load_weights("medium")


def test_an_unknown_name_where_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "missing")
    with pytest.raises(ValueError, match=r"no weights 'medium'.*none in this version"):
        load_weights("medium")


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(ValueError, match="missing-weights"):
        load_weights(tmp_path / "missing-weights")


# What comes with this package


@pytest.fixture
def default():
    if DEFAULT not in names():
        pytest.skip(f"{DEFAULT} is not in this checkout")
    return DEFAULT


def test_one_line_gives_vectors(default):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    river, money = nlp.pipe(["He sat on the bank of the river.", "The bank lends money."])
    assert nlp.config["components"]["elmo"]["model"]["weights"] == default
    vectors = [doc[i]._.elmo for doc, i in ((river, 4), (money, 1))]
    cosine = vectors[0] @ vectors[1] / numpy.prod([numpy.linalg.norm(v) for v in vectors])
    assert 0 < cosine < 0.95  # One word, two contexts.


def test_the_default_fits_into_a_wheel(default):
    files = {path.name: path.stat().st_size for path in (bundled.FOLDER / default).iterdir()}
    assert set(files) == {"options.json", "weights.safetensors", "README.md"}
    assert sum(files.values()) < 30e6
    card = (bundled.FOLDER / default / "README.md").read_text(encoding="utf8")
    assert all(word in card for word in ("Licence", "Perplexity", "Limits"))


def test_another_language_is_told(default, weights_folder):
    nlp = spacy.blank("de")
    nlp.add_pipe("elmo")
    with pytest.warns(UserWarning, match="trained on text in 'en', but .* is 'de'"):
        nlp("Die Bank am Fluss")
    for lang, config in (("xx", {}), ("de", {"model": {"weights": str(weights_folder)}})):
        nlp = spacy.blank(lang)
        nlp.add_pipe("elmo", config=config)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nlp("Die Bank am Fluss")


def test_a_saved_pipeline_with_other_weights_is_not_told(default, weights_folder, tmp_path):
    nlp = spacy.blank("de")
    nlp.add_pipe("elmo").load_weights(weights_folder)
    nlp.to_disk(tmp_path / "de")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spacy.load(tmp_path / "de")("Die Bank am Fluss")
