"""Names and paths of weights and pipelines, wherever they are accepted."""

import hashlib
import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import spacy
from spacy.lang.en.examples import sentences
from spacy.tokens import Doc

from spacy_elmo import ScoreTokens
from spacy_elmo import weights as sources
from spacy_elmo.architectures import PretrainedBiLM
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.head import head_folder, load_head
from spacy_elmo.tools.embedder import EmbedTokens
from spacy_elmo.weights import DEFAULT, bundled_names, load_bilm, load_pipeline

from .cli.conftest import fail, succeed
from .conftest import elmo_pipeline, max_difference


def assert_is(loaded, bilm):
    vectors = [current_session(x).embed([["the", "bank"]])[0] for x in (loaded, bilm)]
    assert max_difference(*vectors) <= 1e-6


@pytest.fixture
def packaged(tmp_path, weights_folder, monkeypatch):
    """A package that comes with two biLMs."""
    shutil.copytree(weights_folder, tmp_path / "packaged" / "small")
    shutil.copytree(weights_folder, tmp_path / "packaged" / "large")
    (tmp_path / "packaged" / "README.md").write_text("no weights")
    monkeypatch.setattr(sources, "FOLDER", tmp_path / "packaged")


def test_a_name(packaged, bilm, tmp_path, monkeypatch):
    """It goes before a folder of that name."""
    assert bundled_names() == ["large", "small"]
    (tmp_path / "elsewhere" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_is(load_bilm("small"), bilm)


@pytest.mark.parametrize("what", ["small", "", "https://host/a%20b.zip", "hf:lysandre/elmo"])
def test_an_unknown_name(packaged, what, tmp_path, monkeypatch):
    """Says what there is, and how published weights are downloaded."""
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path / "packaged" / "large")
    words = rf"no weights {what!r}.*packaged.*spacy elmo download '?{re.escape(what)}"
    for use in (load_bilm, load_pipeline, EmbedTokens, lambda x: PretrainedBiLM(x).initialize()):
        with pytest.raises(ValueError, match=words):
            use(what)


def test_folders_and_files(tmp_path, weights_folder, hdf5_folder, bilm):
    for source in (weights_folder, str(weights_folder), hdf5_folder / "weights.hdf5"):
        assert_is(load_bilm(source), bilm)
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", name="lm", config={"model": {"weights": str(weights_folder)}})
    nlp.to_disk(tmp_path / "pipeline")
    assert_is(load_bilm(tmp_path / "pipeline"), bilm)
    nlp.remove_pipe("lm")
    nlp.to_disk(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no elmo component, only \['sentencizer'\]"):
        load_bilm(tmp_path / "none")


# A folder that is called like weights that come with the package.


@pytest.fixture
def namesake(tmp_path, weights_folder, monkeypatch):
    """A saved pipeline of that name, in the working directory."""
    folder = tmp_path / "work" / DEFAULT
    folder.parent.mkdir()
    elmo_pipeline(weights_folder).to_disk(folder)
    monkeypatch.chdir(folder.parent)
    return folder


@pytest.mark.parametrize("as_path", [f"./{DEFAULT}", Path(DEFAULT)])
def test_a_path_is_never_read_as_a_name(as_path, namesake, bilm, tmp_path, monkeypatch, recwarn):
    assert_is(load_bilm(as_path), bilm)
    assert_is(load_pipeline(as_path).get_pipe("elmo").bilm, bilm)
    assert_is(EmbedTokens(as_path).bilm, bilm)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo").load_weights(as_path)
    assert_is(nlp.get_pipe("elmo").bilm, bilm)
    layers = PretrainedBiLM(as_path).predict([Doc(nlp.vocab, words=["the", "bank"])]).layers
    assert max_difference(layers, current_session(bilm).embed([["the", "bank"]])[0]) <= 1e-6
    assert not recwarn.list
    nlp = elmo_pipeline(f"./{DEFAULT}")
    monkeypatch.chdir(tmp_path)
    assert_is(nlp.get_pipe("elmo").bilm, bilm)  # It stays the same folder.


def test_a_name_that_is_also_a_folder_gives_a_warning(namesake):
    """A name means what it means everywhere, but not without a word."""
    with pytest.warns(UserWarning, match=f"'{DEFAULT}' is read as a name.*write './{DEFAULT}'"):
        assert load_bilm(DEFAULT).config.lstm.projection_dim == 256


def test_a_saved_pipeline_needs_no_path_anymore(weights_folder, tmp_path):
    """That of another user neither."""
    elmo_pipeline(weights_folder).to_disk(tmp_path / "saved")
    config = tmp_path / "saved" / "config.cfg"
    text = config.read_text(encoding="utf8")
    assert str(weights_folder) in text
    config.write_text(text.replace(str(weights_folder), "~nobody-of-this-name/weights"))
    assert spacy.load(tmp_path / "saved")("The bank")._.elmo is not None
    with pytest.raises(ValueError, match="no pipeline and no weights '~nobody"):
        load_bilm("~nobody-of-this-name/weights")


# Installed packages.


@pytest.fixture
def package(tmp_path, weights_folder, monkeypatch):
    """An installed pipeline, as pip leaves it."""
    name, version = "elmo_of_a_test", "1.0.0"
    nlp = elmo_pipeline(weights_folder)
    nlp.meta.update(name=name, version=version)
    module = tmp_path / "site" / f"en_{name}"
    module.mkdir(parents=True)
    nlp.to_disk(module / f"en_{name}-{version}")
    shutil.copy(module / f"en_{name}-{version}" / "meta.json", module)
    (module / "__init__.py").write_text(
        "from spacy.util import load_model_from_init_py\n"
        "def load(**overrides):\n    return load_model_from_init_py(__file__, **overrides)\n"
    )
    about = tmp_path / "site" / f"en_{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: en_{name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield f"en_{name}"
    sys.modules.pop(f"en_{name}", None)


def test_an_installed_package(package, bilm):
    assert_is(load_bilm(package), bilm)
    assert package not in sys.modules  # Weights need none of its code.
    assert_is(load_pipeline(package).get_pipe("elmo").bilm, bilm)
    assert_is(elmo_pipeline(package).get_pipe("elmo").bilm, bilm)
    [facts] = json.loads(succeed("info", package, "--json")).values()
    assert facts["version"] == "1.0.0"


# Facts about them.


@pytest.fixture
def saved(tmp_path, weights_folder):
    elmo_pipeline(weights_folder).to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_info_shows_the_origin_of_weights(saved, weights_folder):
    [facts] = json.loads(succeed("info", DEFAULT, "--json")).values()
    file = sources.FOLDER / DEFAULT / "weights.safetensors"
    assert facts["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert facts["bytes on disk"] == file.stat().st_size
    assert facts["language"] == "en"
    [facts] = json.loads(succeed("info", weights_folder, "--json")).values()
    assert facts["language"] == "unknown"
    meta = json.loads((saved / "meta.json").read_text())
    meta.update(license="CC0", sources=[{"name": "books"}])
    (saved / "meta.json").write_text(json.dumps(meta))
    [facts] = json.loads(succeed("info", saved, "--json")).values()
    assert facts["license"] == "CC0" and facts["sources"] == [{"name": "books"}]
    assert facts["lang"] == "en" and "author" not in facts


# What a pipeline's weights need.


def change_config(folder, **values):
    config = spacy.util.load_config(folder / "config.cfg")
    for path, value in values.items():
        *sections, last = path.split("__")
        block = config
        for section in sections:
            block = block.setdefault(section, {})
        block[last] = value
    config.to_disk(folder / "config.cfg")


@pytest.mark.parametrize(
    "values, problem",
    [
        ({"nlp__pipeline": ["elmo", "x"], "components__x__factory": "of_another_package"}, "E002"),
        ({"nlp__lang": "no-such-language"}, "no-such-language"),
        ({"components__elmo__model__precision": "tf32"}, None),
    ],
)
def test_weights_need_nothing_else_of_their_pipeline(saved, bilm, values, problem):
    change_config(saved, **values)
    assert_is(load_bilm(saved), bilm)
    assert_is(elmo_pipeline(saved).get_pipe("elmo").bilm, bilm)
    if problem is not None:
        with pytest.raises(ValueError, match=f"cannot load the pipeline(.|\n)*{problem}"):
            load_pipeline(saved)


def test_a_pipeline_without_weights(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": None}})
    nlp.to_disk(tmp_path / "empty")
    change_config(tmp_path / "empty", components__elmo__model__weights=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="has no weights yet"):
        load_bilm(tmp_path / "empty")


def test_a_pipeline_with_several(tmp_path, weights_folder, bilm):
    nlp = elmo_pipeline(weights_folder)
    nlp.add_pipe("elmo", name="small")
    nlp.to_disk(tmp_path / "two")
    several = r"several elmo components \['elmo', 'small'\]: "
    with pytest.raises(ValueError, match=several + ".*spacy elmo export.*--name"):
        load_bilm(tmp_path / "two")
    (tmp_path / "text").write_text("the bank", "utf8")
    arguments = (tmp_path / "text", tmp_path / "out.npz", "--model", tmp_path / "two")
    assert "'small']: choose one with --name" in " ".join(fail("embed", *arguments).split())
    with pytest.raises(ValueError, match="no elmo component 'large'"):
        load_bilm(tmp_path / "two", "large")
    assert_is(load_bilm(tmp_path / "two", "elmo"), bilm)
    succeed("export", tmp_path / "two", tmp_path / "out", "--name", "small")
    assert load_bilm(tmp_path / "out").config.lstm.projection_dim == 256


# Weights alone, where a pipeline is needed.


def test_weights_make_a_pipeline(tmp_path):
    text = "It's here. He left."
    doc = load_pipeline(DEFAULT)(text)
    assert [sentence.text for sentence in doc.sents] == ["It's here.", "He left."]
    (tmp_path / "text.txt").write_text(text)
    succeed("embed", tmp_path / "text.txt", tmp_path / "vectors.npz", "--model", DEFAULT)
    embedded = numpy.load(tmp_path / "vectors.npz")["0"]
    assert max_difference(embedded, doc._.elmo_layers) <= 1e-5


# What comes with this package


def test_the_default_fits_into_a_wheel():
    files = {path.name: path.stat().st_size for path in (sources.FOLDER / DEFAULT).iterdir()}
    tensors = "weights.safetensors", "pooling.safetensors"
    assert set(files) == {"options.json", *tensors, "README.md", "SOURCES.md"}
    assert sum(files.values()) < 20e6
    head = head_folder(sources.FOLDER / DEFAULT)
    assert sum(path.stat().st_size for path in head.iterdir()) <= 4e6
    assert len(load_head(head).words) == 20_000
    # Those of other weights would predict nothing.
    scores = ScoreTokens()([[token.text for token in spacy.blank("en")(x)] for x in sentences])
    assert numpy.mean([x for score in scores for x in (*score.forward, *score.backward)]) > -6
    card = (sources.FOLDER / DEFAULT / "README.md").read_text(encoding="utf8")
    assert all(word in card for word in ("Licence", "Perplexity", "Limits"))


def test_the_default_mixes_the_layers_that_know_the_sentence():
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    doc = nlp("The bank of the river")
    assert max_difference(doc._.elmo_tokens, doc._.elmo_layers[1:].mean(axis=0)) <= 1e-6


def test_another_language_gives_a_warning(weights_folder, tmp_path):
    nlp = spacy.blank("de")
    nlp.add_pipe("elmo")
    with pytest.warns(UserWarning, match="trained on text in 'en', but .* is 'de'"):
        nlp("Die Bank am Fluss")
    elmo_pipeline(weights_folder, lang="en").to_disk(tmp_path / "en")
    with pytest.warns(UserWarning, match="trained on text in 'en', but .* is 'de'"):
        elmo_pipeline(tmp_path / "en", lang="de")("Die Bank am Fluss")
    elmo_pipeline(weights_folder, lang="xx").to_disk(tmp_path / "xx")
    of_any = {"model": {"weights": str(tmp_path / "xx")}}
    unknown = {"model": {"weights": str(weights_folder)}}
    for lang, config in (("xx", {}), ("de", of_any), ("de", unknown)):
        nlp = spacy.blank(lang)
        nlp.add_pipe("elmo", config=config)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nlp("Die Bank am Fluss")
