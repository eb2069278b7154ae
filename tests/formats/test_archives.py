"""Archives: models that AllenNLP trained, those of NLPL, and hostile ones."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy
import pytest
import spacy

from spacy_elmo import EmbedTokens
from spacy_elmo.formats import load, safetensors_format
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.head import find_head
from spacy_elmo.weights import load_bilm

from ..cli.conftest import fail, succeed
from ..conftest import assert_close, elmo_pipeline, max_difference, shared_path
from ..families import allennlp_archive, malicious, nlpl, unreadable
from ..families.network import random_model
from ..families.torch_files import state_dict_bytes
from .test_formats import assert_refused

TEXT = ["the", "bank"]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Temporary folders are removed, whatever happens."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.glob("spacy-elmo-*"))


def quiet_load(path, options=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, options)


def vectors(path, sentences):
    return current_session(quiet_load(path)).embed(sentences)


def refused(path, *words):
    """Reading raises a ValueError that names the file, and not a temporary one."""
    with pytest.raises(ValueError) as error:
        quiet_load(path)
    message = str(error.value)
    assert str(path.parent) in message and "spacy-elmo-" not in message
    for word in words:
        assert word in message


# --------------------------------------------------------------------------------------- AllenNLP


@pytest.mark.parametrize("seed", range(4))
def test_models_of_allennlp(seed, tmp_path):
    architecture, weights, sentences = random_model(allennlp_archive, seed)
    expected = allennlp_archive.reference(architecture, weights, sentences)
    mixed = allennlp_archive.reference_mix(architecture, weights, sentences)
    form = allennlp_archive.write if seed else allennlp_archive.write_folder
    path = form(tmp_path / "model", architecture, weights, legacy=seed % 2 == 0)
    bilm = quiet_load(path)
    result = current_session(bilm).embed(sentences)
    assert_close(result, expected)
    scales = numpy.multiply(bilm.trained_mix.weights, bilm.trained_mix.gamma)
    assert_close([numpy.tensordot(scales, x, 1) for x in result], mixed)
    safetensors_format.write(bilm, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.trained_mix == bilm.trained_mix
    assert_close(current_session(again).embed(sentences), expected)


def test_the_published_fixture_as_a_model_of_allennlp(tmp_path):
    folder = shared_path("fixtures/allennlp")
    rng = numpy.random.default_rng(0)
    architecture, weights = allennlp_archive.from_published(folder, "lm_weights.hdf5", rng)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    sentences = json.loads((folder / "sentences.json").read_text())
    expected = load(folder / "lm_weights.hdf5", folder / "options.json")
    assert_close(vectors(path, sentences), current_session(expected).embed(sentences))
    mix = quiet_load(path).trained_mix
    shares, gamma = allennlp_archive.mix_weights(architecture, weights)
    assert max_difference([*mix.weights, mix.gamma], [*shares, gamma]) <= 1e-6


@pytest.fixture
def model(tmp_path):
    """An archive with one mix, and what its task saw of a sentence."""
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=1)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    return path, allennlp_archive.reference_mix(architecture, weights, [TEXT])[0]


def test_the_trained_mix_is_that_of_the_component(model, tmp_path):
    path, mixed = model
    nlp = elmo_pipeline(path)
    nlp.to_disk(tmp_path / "unused")  # Before it was used.
    assert max_difference(nlp(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    nlp.to_disk(tmp_path / "saved")
    succeed("convert", path, tmp_path / "converted")
    path.unlink()
    pipelines = [spacy.load(tmp_path / name) for name in ("unused", "saved", "converted")]
    for again in (*pipelines, nlp.from_bytes(nlp.to_bytes())):
        assert max_difference(again(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    assert pipelines[2].config["components"]["elmo"]["mix"]["weights"] is not None
    assert pipelines[2].meta["sources"][0]["name"] == "model.tar.gz"


def test_several_equal_biLMs_are_one_and_others_are_refused(tmp_path):
    architecture, weights, sentences = random_model(allennlp_archive, 0)
    members = allennlp_archive.files(architecture, weights)
    state = allennlp_archive.state_dict(architecture, weights)
    prefix = architecture["prefix"]
    copies = {f"again.{k}": v for k, v in state.items() if k.startswith(prefix)}
    path = tmp_path / "model.tar.gz"
    members["weights.th"] = state_dict_bytes(state | copies)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    expected = allennlp_archive.reference(architecture, weights, sentences)
    assert_close(vectors(path, sentences), expected)
    name = f"again.{prefix}_token_embedder._projection.bias"
    members["weights.th"] = state_dict_bytes(state | copies | {name: copies[name] + 1})
    path.write_bytes(allennlp_archive.tar_bytes(members))
    refused(path, "several biLMs that differ", f"again.{prefix}", "HDF5")


def test_options_of_allennlp(tmp_path):
    """Given ones precede those beside the weights, and these precede those in the archive."""
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=2)
    path = allennlp_archive.write(tmp_path / "x.tar.gz", architecture, weights, do_layer_norm=True)
    with pytest.warns(UserWarning) as warned:
        load(path)
    messages = " ".join(str(one.message) for one in warned)
    assert "do_layer_norm" in messages and "the first of 2 trained mixes" in messages
    options = allennlp_archive.options(architecture | {"cell_clip": 0.5})
    (tmp_path / "options.json").write_text(json.dumps(options))
    assert quiet_load(path, tmp_path / "options.json").config.lstm.cell_clip == 0.5
    folder = allennlp_archive.write_folder(tmp_path / "run", architecture, weights)
    (folder / "options.json").write_text(json.dumps(options))
    for weights_path in (folder, folder / "best.th"):
        assert quiet_load(weights_path).config.lstm.cell_clip == 0.5
    (folder / "options.json").write_text(json.dumps({"lstm": options["lstm"], "n_tokens_vocab": 3}))
    refused(folder, "reads characters as bytes", "options.json")
    # Without any, only AllenNLP's own biLM is read.
    (folder / "options.json").unlink()
    (folder / allennlp_archive.OPTIONS).unlink()
    with pytest.warns(UserWarning, match="options not known.*put options.json beside"):
        assert_refused(folder, str(folder), "char_conv")


# ------------------------------------------------------------------------------------------- NLPL


@pytest.mark.parametrize("seed", range(4))
def test_archives_of_nlpl(seed, tmp_path):
    architecture, weights, sentences = random_model(nlpl, seed)
    expected = nlpl.reference(architecture, weights, sentences)
    path = nlpl.write(tmp_path / "211", architecture, weights)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bilm = load(path)
    assert architecture["lemmatized"] == any("lemmas" in str(one.message) for one in warned)
    assert_close(current_session(bilm).embed(sentences), expected)


def test_the_origin_and_the_output_layer_of_a_packed_checkpoint(tmp_path):
    changes = {"contents": "checkpoint", "vocabulary": "vocab.txt.gz", "lemmatized": False}
    seed = next(x for x in range(9) if random_model(nlpl, x)[0]["contents"] == "checkpoint")
    architecture, weights, _ = random_model(nlpl, seed, **changes)
    path = nlpl.write(tmp_path / "212.zip", architecture, weights)
    head = find_head(path)
    assert max_difference(head.tensors["bias"], weights["lm/softmax/b"]) == 0
    succeed("convert", path, tmp_path / "out")
    assert find_head(tmp_path / "out").words == head.words
    nlp = spacy.load(tmp_path / "out")
    [source] = nlp.meta["sources"]
    assert nlp.lang == "nb" and source["author"] == "Some One"
    assert source["url"].endswith("/211.zip")
    (tmp_path / "texts.txt").write_text("the bank\n")
    for model in (path, tmp_path / "out"):
        assert "average" in succeed("perplexity", model, tmp_path / "texts.txt", "--json")
    broken = tmp_path / "broken.zip"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(broken, "w") as part:
        for name in whole.namelist():
            part.writestr(name, whole.read(name) if "vocab" not in name else b"")
    output = "".join(succeed("convert", broken, tmp_path / "without").split())
    assert "withoutitsoutputlayer" in output and f"{broken}/" in output


def test_every_place_takes_an_archive(model, tmp_path):
    path, _ = model
    [expected] = vectors(path, [TEXT])
    assert max_difference(current_session(load_bilm(path)).embed([TEXT])[0], expected) == 0
    assert max_difference(EmbedTokens(path).embed_sentence(TEXT), expected) <= 1e-6
    report = json.loads(succeed("info", path, "--json"))[str(path)]
    assert report["format"] == "allennlp, packed"
    assert report["bytes on disk"] == path.stat().st_size
    (tmp_path / "texts.txt").write_text("the bank\n")
    succeed("embed", tmp_path / "texts.txt", tmp_path / "vectors.hdf5", "--model", path)
    assert "output layer" in fail("perplexity", path, tmp_path / "texts.txt")


@pytest.mark.parametrize("suffix, outer", [("zip", "."), ("tar", ".."), ("gztar", ".")])
def test_a_packed_folder(suffix, outer, hdf5_folder, tmp_path, bilm):
    source = tmp_path / "source" / "en"
    shutil.copytree(hdf5_folder, source)
    root = source if outer == "." else source.parent
    path = Path(shutil.make_archive(str(tmp_path / "packed"), suffix, root))
    [expected] = current_session(bilm).embed([TEXT])
    assert max_difference(vectors(path, [TEXT])[0], expected) == 0


def test_an_archive_that_macos_made(hdf5_folder, tmp_path, bilm):
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in hdf5_folder.iterdir():
            archive.write(file, f"en/{file.name}")
            archive.writestr(f"__MACOSX/en/._{file.name}", b"\0\5\x16\7")
        archive.writestr("en/.DS_Store", b"\0\0\0\1Bud1")
    [expected] = current_session(bilm).embed([TEXT])
    assert max_difference(vectors(path, [TEXT])[0], expected) == 0


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("write", [malicious.pickled_allennlp, malicious.pickled_manylangs])
def test_pickles_that_execute_code(write, tmp_path):
    refused(write(tmp_path / "model", tmp_path / "executed"), "is not read as tensors")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("write", [malicious.zip_slip, malicious.tar])
@pytest.mark.parametrize("kind", ["parent", "link"])
def test_archives_that_leave_their_folder(write, kind, tmp_path):
    """Nothing is written outside, and nothing is read through a link."""
    outside = tmp_path / ("outside" if kind == "link" else "temporary/outside")
    path = write(tmp_path / "model", kind, outside)
    with contextlib.suppress(ValueError):
        quiet_load(path)
    assert outside.exists() == (kind == "link")
    if kind == "link":
        refused(path)


def test_an_archive_of_long_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    refused(malicious.tar_of_long_links(tmp_path / "model.tar", outside), "is a link, or no file")
    assert not [*outside.iterdir()]


LIMIT = """
import pathlib, sys, warnings
from spacy_elmo.formats import load, read_vocabulary
warnings.simplefilter("ignore")
for path in map(pathlib.Path, sys.argv[1:]):
    try:
        (read_vocabulary if path.name == "vocab.txt" else load)(path)
    except ValueError as error:
        assert str(path) in str(error), error
    else:
        raise AssertionError(path)
# Of this program alone: `ru_maxrss` begins with the peak of the process that started it.
status = pathlib.Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_files_that_fill_the_memory(tmp_path):
    """Each is refused, in a process that takes less than a gigabyte."""
    paths = [malicious.zip_bomb(tmp_path / "x.zip"), malicious.tar_bomb(tmp_path / "x.tar.gz")]
    malicious.gzip_bomb(tmp_path / "vocab.txt.gz", b"the\n")
    for name, data in malicious.greedy_pickles().items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "weights.th").write_bytes(data)
        paths.append(tmp_path / name)
    arguments = [sys.executable, "-c", LIMIT, *paths, tmp_path / "vocab.txt"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1 << 20


@pytest.mark.parametrize("kind", malicious.HDF5)
def test_hostile_hdf5(kind, tmp_path):
    path = malicious.hdf5(tmp_path / "model", kind, tmp_path / "outside")
    if kind == "cycle":
        load(path)
    else:
        refused(path)


@pytest.mark.parametrize("kind", unreadable.UNREADABLE)
def test_what_nobody_reads_is_named(kind, tmp_path):
    refused(unreadable.UNREADABLE[kind](tmp_path / "model"), kind)


def test_damaged_archives(model, tmp_path):
    """Whatever byte is changed, there is a model or an error that names the file."""
    sources = [model[0], tmp_path / "x.zip"]
    nlpl.write(sources[1], *random_model(nlpl, 1)[:2])
    path = tmp_path / "damaged"
    for source in sources:
        data = source.read_bytes()
        for position in range(0, len(data), len(data) // 10):
            path.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
            try:
                quiet_load(path)
            except ValueError as error:
                assert str(path) in str(error)
            path.write_bytes(data[:position])
            refused(path)
