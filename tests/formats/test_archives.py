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
from spacy_elmo.weights import load_bilm, source_language

from ..cli.conftest import fail, succeed
from ..conftest import elmo_pipeline, max_difference, shared_path
from ..families import allennlp_archive, malicious, nlpl, unreadable
from ..families.torch_files import state_dict_bytes

SEEDS = range(5)
TEXT = ["the", "bank"]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Temporary folders are removed, whatever happens."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.glob("spacy-elmo-*"))


def random_model(family, seed, **changes):
    """RETURNS (tuple): An architecture, its weights, and sentences."""
    rng = numpy.random.default_rng(seed)
    architecture = family.random_architecture(rng) | changes
    weights = family.random_weights(architecture, rng)
    return architecture, weights, family.random_sentences(architecture, rng)


def quiet_load(path, options=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, options)


def assert_equal(result, expected):
    assert len(result) == len(expected)
    for layers, reference in zip(result, expected):
        assert max_difference(layers, reference) <= 1e-5


def refused(path, *words):
    """Reading raises a ValueError that names the file. RETURNS (str): The message."""
    with pytest.raises(ValueError) as error:
        quiet_load(path)
    message = str(error.value)
    assert str(path.parent) in message and "spacy-elmo-" not in message
    for word in words:
        assert word in message
    return message


# --------------------------------------------------------------------------------------- AllenNLP


@pytest.mark.parametrize("seed", SEEDS)
def test_models_of_allennlp(seed, tmp_path):
    architecture, weights, sentences = random_model(allennlp_archive, seed)
    expected = allennlp_archive.reference(architecture, weights, sentences)
    mixed = allennlp_archive.reference_mix(architecture, weights, sentences)
    form = allennlp_archive.write if seed % 4 else allennlp_archive.write_folder
    path = form(tmp_path / "model", architecture, weights, legacy=seed % 2 == 0)
    bilm = quiet_load(path)
    assert_equal(current_session(bilm).embed(sentences), expected)
    scales = numpy.multiply(bilm.trained_mix.weights, bilm.trained_mix.gamma)
    assert_equal(
        [numpy.tensordot(scales, x, 1) for x in current_session(bilm).embed(sentences)], mixed
    )
    safetensors_format.write(bilm, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.trained_mix == bilm.trained_mix
    assert_equal(current_session(again).embed(sentences), expected)


def test_the_published_fixture_as_a_model_of_allennlp(tmp_path):
    folder = shared_path("fixtures/allennlp")
    rng = numpy.random.default_rng(0)
    architecture, weights = allennlp_archive.from_published(folder, "lm_weights.hdf5", rng)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    sentences = json.loads((folder / "sentences.json").read_text())
    expected = current_session(load(folder / "lm_weights.hdf5", folder / "options.json")).embed(
        sentences
    )
    bilm = quiet_load(path)
    assert_equal(current_session(bilm).embed(sentences), expected)
    shares, gamma = allennlp_archive.mix_weights(architecture, weights)
    assert max_difference(bilm.trained_mix.weights, shares) <= 1e-6
    assert abs(bilm.trained_mix.gamma - gamma) <= 1e-6


@pytest.fixture
def model(tmp_path):
    """An archive with one mix, and what its task saw of a sentence."""
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=1, local_options=True)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    return path, allennlp_archive.reference_mix(architecture, weights, [TEXT])[0]


def test_the_trained_mix_is_that_of_the_component(model, tmp_path):
    path, mixed = model
    nlp = elmo_pipeline(path)
    nlp.to_disk(tmp_path / "unused")  # Before it was used.
    assert max_difference(nlp(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    nlp.to_disk(tmp_path / "saved")
    path.unlink()
    for name in ("unused", "saved"):
        again = spacy.load(tmp_path / name)
        assert max_difference(again(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    again = nlp.from_bytes(nlp.to_bytes())
    assert max_difference(again(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5


def test_convert_writes_the_trained_mix_to_the_config(model, tmp_path):
    path, mixed = model
    succeed("convert", path, tmp_path / "out")
    nlp = spacy.load(tmp_path / "out")
    assert nlp.config["components"]["elmo"]["mix"]["weights"] is not None
    assert max_difference(nlp(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    assert nlp.meta["sources"][0]["name"] == "model.tar.gz"


def test_several_equal_biLMs_are_one_and_others_are_refused(tmp_path):
    architecture, weights, sentences = random_model(allennlp_archive, 0, local_options=True)
    members = allennlp_archive.files(architecture, weights)
    state = allennlp_archive.state_dict(architecture, weights)
    prefix = architecture["prefix"]
    copies = {f"again.{k}": v for k, v in state.items() if k.startswith(prefix)}
    path = tmp_path / "model.tar.gz"
    members["weights.th"] = state_dict_bytes(state | copies)
    path.write_bytes(allennlp_archive.tar_bytes(members))
    expected = allennlp_archive.reference(architecture, weights, sentences)
    assert_equal(current_session(quiet_load(path)).embed(sentences), expected)
    name = f"again.{prefix}_token_embedder._projection.bias"
    members["weights.th"] = state_dict_bytes(state | copies | {name: copies[name] + 1})
    path.write_bytes(allennlp_archive.tar_bytes(members))
    refused(path, "several biLMs that differ", f"again.{prefix}", "HDF5")


def test_what_the_model_does_not_tell_is_said(tmp_path):
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=1, local_options=False)
    architecture |= allennlp_archive.USUAL
    path = tmp_path / "model.tar.gz"
    allennlp_archive.write(path, architecture, weights, do_layer_norm=True)
    with pytest.warns(UserWarning) as warned:
        load(path)
    messages = " ".join(str(one.message) for one in warned)
    assert "cell_clip and proj_clip 3" in messages and "do_layer_norm" in messages
    # Given options precede.
    options = allennlp_archive.options(architecture | {"cell_clip": 0.5})
    (tmp_path / "options.json").write_text(json.dumps(options))
    assert quiet_load(path, tmp_path / "options.json").config.lstm.cell_clip == 0.5
    # Also beside the weights.
    folder = allennlp_archive.write_folder(tmp_path / "run", architecture, weights)
    (folder / "options.json").write_text(json.dumps(options))
    for weights_path in (folder, folder / "best.th"):
        assert quiet_load(weights_path).config.lstm.cell_clip == 0.5
    (folder / "options.json").write_text(json.dumps({"lstm": options["lstm"], "n_tokens_vocab": 3}))
    refused(folder, "reads characters as bytes", "options.json")


# ------------------------------------------------------------------------------------------- NLPL


@pytest.mark.parametrize("seed", SEEDS)
def test_archives_of_nlpl(seed, tmp_path):
    architecture, weights, sentences = random_model(nlpl, seed)
    expected = nlpl.reference(architecture, weights, sentences)
    path = nlpl.write(tmp_path / "211", architecture, weights)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bilm = load(path)
    assert architecture["lemmatized"] == any("lemmas" in str(one.message) for one in warned)
    assert_equal(current_session(bilm).embed(sentences), expected)
    assert source_language(path) == "nb"


def test_convert_keeps_the_origin_that_nlpl_states(tmp_path):
    architecture, weights, _ = random_model(nlpl, 0, lemmatized=False)
    path = nlpl.write(tmp_path / "211.zip", architecture, weights)
    succeed("convert", path, tmp_path / "out")
    nlp = spacy.load(tmp_path / "out")
    assert nlp.lang == "nb"
    [source] = nlp.meta["sources"]
    assert source["author"] == "Some One" and source["url"].endswith("/211.zip")


def test_the_output_layer_of_a_packed_checkpoint(tmp_path):
    changes = {"contents": "checkpoint", "vocabulary": "vocab.txt.gz", "lemmatized": False}
    seed = next(x for x in SEEDS if random_model(nlpl, x)[0]["contents"] == "checkpoint")
    architecture, weights, _ = random_model(nlpl, seed, **changes)
    path = nlpl.write(tmp_path / "212.zip", architecture, weights)
    head = find_head(path)
    assert head is not None
    assert max_difference(head.tensors["bias"], weights["lm/softmax/b"]) == 0
    succeed("convert", path, tmp_path / "out")
    assert find_head(tmp_path / "out").words == head.words
    (tmp_path / "texts.txt").write_text("the bank\n")
    for model in (path, tmp_path / "out"):
        assert "average" in succeed("perplexity", model, tmp_path / "texts.txt", "--json")


def test_every_place_takes_an_archive(model, tmp_path):
    path, _ = model
    expected = current_session(quiet_load(path)).embed([TEXT])[0]
    assert max_difference(current_session(load_bilm(path)).embed([TEXT])[0], expected) == 0
    assert max_difference(EmbedTokens(path).embed_sentence(TEXT), expected) <= 1e-6
    report = json.loads(succeed("info", path, "--json"))[str(path)]
    assert report["format"] == "allennlp, packed"
    assert report["bytes on disk"] == path.stat().st_size
    (tmp_path / "texts.txt").write_text("the bank\n")
    succeed("embed", tmp_path / "texts.txt", tmp_path / "vectors.hdf5", "--model", path)
    succeed("neighbors", path, tmp_path / "texts.txt", "--query", "the [bank]")
    assert "output layer" in fail("perplexity", path, tmp_path / "texts.txt")


@pytest.mark.parametrize(
    "suffix, outer", [("zip", "."), ("tar", ".."), ("gztar", "."), ("bztar", "..")]
)
def test_a_packed_folder(suffix, outer, hdf5_folder, tmp_path, bilm):
    source = tmp_path / "source" / "en"
    shutil.copytree(hdf5_folder, source)
    root = source if outer == "." else source.parent
    path = Path(shutil.make_archive(str(tmp_path / "packed"), suffix, root))
    assert (
        max_difference(
            current_session(load(path)).embed([TEXT])[0], current_session(bilm).embed([TEXT])[0]
        )
        == 0
    )


@pytest.mark.parametrize("folder", ["", "en/"])
def test_an_archive_that_macos_made(folder, hdf5_folder, tmp_path, bilm):
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in hdf5_folder.iterdir():
            archive.write(file, folder + file.name)
            archive.writestr(f"__MACOSX/{folder}._{file.name}", b"\0\5\x16\7")
            archive.writestr(f"{folder}._{file.name}", b"\0\5\x16\7")  # Those of its tar.
        archive.writestr(folder + ".DS_Store", b"\0\0\0\1Bud1")
    assert (
        max_difference(
            current_session(load(path)).embed([TEXT])[0], current_session(bilm).embed([TEXT])[0]
        )
        == 0
    )


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("container", malicious.CONTAINERS)
@pytest.mark.parametrize("kind", malicious.PICKLES)
def test_pickles_that_execute_code(kind, container, tmp_path):
    marker = tmp_path / "executed"
    for writer in (malicious.pickled_allennlp, malicious.pickled_manylangs):
        path = writer(tmp_path / writer.__name__, kind, container, marker)
        refused(path, "is not read as tensors")
    assert not marker.exists()


@pytest.mark.parametrize("kind", [*malicious.ZIP_SLIPS, *malicious.TARS])
def test_archives_that_leave_their_folder(kind, tmp_path):
    """Nothing is written outside, and nothing is read through a link."""
    is_read_through = kind in ("linked file", "symlink", "hard link")
    outside = tmp_path / ("outside" if is_read_through else "temporary/outside")
    if kind in malicious.ZIP_SLIPS:
        path = malicious.zip_slip(tmp_path / "x.zip", kind, outside)
        before = outside.exists()
        with contextlib.suppress(ValueError):
            quiet_load(path)
        assert outside.exists() == before
    if kind in malicious.TARS:
        path = malicious.tar(tmp_path / "model.tar.gz", kind, tmp_path / "outside")
        if kind == "absolute":  # It is unpacked inside, as one more file.
            quiet_load(path)
        else:
            refused(path)
        assert (tmp_path / "outside").exists() == is_read_through
    if kind == "linked file":
        refused(path, "encoder.pkl")


LIMIT = """
import pathlib, sys, warnings
from spacy_elmo.formats import load, read_vocabulary
warnings.simplefilter("ignore")
for path in map(pathlib.Path, sys.argv[1:]):
    try:
        (read_vocabulary if path.name == "vocab.txt" else load)(path)
    except ValueError as error:
        assert str(path) in str(error), error
        assert path.suffix or "not read as tensors" in str(error), error
    else:
        raise AssertionError(path)
# Of this program alone: `ru_maxrss` begins with the peak of the process that started it.
status = pathlib.Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def memory_of_loading(paths):
    """RETURNS (int): The peak memory in KiB of a process in which each path is refused."""
    arguments = [sys.executable, "-c", LIMIT, *map(str, paths)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    print("peak memory in KiB:", result.stdout)
    return int(result.stdout)


def test_bombs(tmp_path):
    paths = [malicious.zip_bomb(tmp_path / f"{x}.zip", x) for x in malicious.ZIP_BOMBS]
    paths += [malicious.tar_bomb(tmp_path / f"{x}.tar.gz", x) for x in ("member", "header")]
    malicious.gzip_bomb(tmp_path / "vocab.txt.gz", b"the\n")
    assert memory_of_loading([*paths, tmp_path / "vocab.txt"]) < 1 << 20


def test_pickles_that_fill_the_memory(tmp_path):
    """Each as the weights of an AllenNLP model."""
    for name, data in malicious.greedy_pickles().items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
        (tmp_path / "models" / name / "weights.th").write_bytes(data)
    assert memory_of_loading((tmp_path / "models").iterdir()) < 1 << 20


@pytest.mark.parametrize("kind", malicious.HDF5)
def test_hostile_hdf5(kind, tmp_path):
    path = malicious.hdf5(tmp_path / "model", kind, tmp_path / "outside")
    if kind == "cycle":
        load(path)
    else:
        refused(path)


@pytest.mark.parametrize("kind", unreadable.UNREADABLE)
def test_what_nobody_reads_is_named(kind, tmp_path):
    words = {
        "TensorFlow Hub": "SavedModel",
        "flair": "flair",
        "fastText": "fastText",
        "transformer ELMo": "transformers",
        "no ELMo": "no ELMo",
        "one direction": "one direction",
    }
    path = unreadable.UNREADABLE[kind](tmp_path / "model")
    path = path.parent if kind == "one direction" else path
    refused(path, words[kind])
    if path.is_dir():  # The same packed.
        refused(Path(shutil.make_archive(str(tmp_path / "packed"), "zip", path)), words[kind])


def test_damaged_archives(model, tmp_path):
    """Whatever byte is changed, there is a model or an error that names the file."""
    sources = [model[0], tmp_path / "x.zip"]
    nlpl.write(sources[1], *random_model(nlpl, 1)[:2])
    for source in sources:
        data = source.read_bytes()
        for position in range(0, len(data), len(data) // 15):
            path = tmp_path / "damaged"
            path.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
            try:
                quiet_load(path)
            except ValueError as error:
                assert str(path) in str(error)
            path.write_bytes(data[:position])
            refused(path)
