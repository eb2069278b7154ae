"""Archives: models that AllenNLP trained, those of NLPL, and hostile ones."""

import contextlib
import gzip
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy
import pytest
import spacy

from spacy_elmo import Embedder
from spacy_elmo.formats import load, safetensors_format, unpacked
from spacy_elmo.pretraining.head import find_head
from spacy_elmo.weights import load_bilm, source_language

from ..cli.conftest import fail, succeed
from ..conftest import elmo_pipeline, max_difference, shared_path
from ..families import allennlp_archive, malicious, nlpl, unreadable
from ..families.torch_files import state_dict_bytes

SEEDS = range(20)
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
    assert_equal(bilm.embed(sentences), expected)
    scales = numpy.multiply(bilm.trained_mix.weights, bilm.trained_mix.gamma)
    assert_equal([numpy.tensordot(scales, x, 1) for x in bilm.embed(sentences)], mixed)
    safetensors_format.write(bilm, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.trained_mix == bilm.trained_mix
    assert_equal(again.embed(sentences), expected)


def test_the_published_fixture_as_a_model_of_allennlp(tmp_path):
    folder = shared_path("fixtures/allennlp")
    rng = numpy.random.default_rng(0)
    architecture, weights = allennlp_archive.from_published(folder, "lm_weights.hdf5", rng)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    sentences = json.loads((folder / "sentences.json").read_text())
    expected = load(folder / "lm_weights.hdf5", folder / "options.json").embed(sentences)
    bilm = quiet_load(path)
    assert_equal(bilm.embed(sentences), expected)
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


def test_weights_in_the_config_precede_the_trained_mix(model):
    mix = {"@layers": "spacy-elmo.FrozenMix.v1", "weights": [1.0, 0.0], "gamma": 2.0}
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=1, n_layers=1)
    path = allennlp_archive.write(model[0], architecture, weights)
    with pytest.warns(UserWarning):
        doc = elmo_pipeline(path, mix=mix)(" ".join(TEXT))
    assert max_difference(doc._.elmo_tokens, 2 * doc._.elmo_layers[0]) <= 1e-6


def test_convert_writes_the_trained_mix_to_the_config(model, tmp_path):
    path, mixed = model
    succeed("convert", path, tmp_path / "out")
    nlp = spacy.load(tmp_path / "out")
    assert nlp.config["components"]["elmo"]["mix"]["weights"] is not None
    assert max_difference(nlp(" ".join(TEXT))._.elmo_tokens, mixed) <= 1e-5
    assert nlp.meta["sources"][0]["name"] == "model.tar.gz"


def test_several_mixes_are_named(tmp_path):
    architecture, weights, _ = random_model(allennlp_archive, 0, mixes=3, local_options=True)
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    with pytest.warns(UserWarning, match="3 trained mixes") as warned:
        bilm = load(path)
    for mix in range(3):
        shares, _ = allennlp_archive.mix_weights(architecture, weights, mix)
        assert f"{shares[0]:.6f}"[:6] in str(warned[0].message)
    shares, _ = allennlp_archive.mix_weights(architecture, weights)
    assert max_difference(bilm.trained_mix.weights, shares) <= 1e-6


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
    assert_equal(quiet_load(path).embed(sentences), expected)
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


@pytest.mark.parametrize("name", ["_projection.bias", "scalar_mix_0.scalar_parameters.0"])
def test_an_incomplete_model(name, tmp_path):
    architecture, weights, _ = random_model(allennlp_archive, 0, local_options=True)
    weights = {k: v for k, v in weights.items() if not k.endswith(name)}
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    refused(path, name.partition(".")[0])


# ------------------------------------------------------------------------------------------- NLPL


@pytest.mark.parametrize("seed", SEEDS)
def test_archives_of_nlpl(seed, tmp_path):
    architecture, weights, sentences = random_model(nlpl, seed)
    expected = nlpl.reference(architecture, weights, sentences)
    form = "folder" if seed % 4 == 0 else "zip"
    path = nlpl.write(tmp_path / "211", architecture, weights, form=form)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bilm = load(path)
    assert architecture["lemmatized"] == any("lemmas" in str(one.message) for one in warned)
    assert_equal(bilm.embed(sentences), expected)
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
    expected = quiet_load(path).embed([TEXT])[0]
    assert max_difference(load_bilm(path).embed([TEXT])[0], expected) == 0
    assert max_difference(Embedder(path).embed_sentence(TEXT), expected) <= 1e-6
    report = json.loads(succeed("info", path, "--json"))[str(path)]
    assert report["format"] == "allennlp, packed"
    assert report["bytes on disk"] == path.stat().st_size
    (tmp_path / "texts.txt").write_text("the bank\n")
    succeed("embed", tmp_path / "texts.txt", tmp_path / "vectors.hdf5", "--model", path)
    succeed("neighbors", path, tmp_path / "texts.txt", "--query", "the [bank]")
    assert "output layer" in fail("perplexity", path, tmp_path / "texts.txt")


@pytest.mark.parametrize("suffix", ["zip", "tar", "gztar", "bztar"])
@pytest.mark.parametrize("outer", [".", ".."])
def test_a_packed_folder(suffix, outer, hdf5_folder, tmp_path, bilm):
    source = tmp_path / "source" / "en"
    shutil.copytree(hdf5_folder, source)
    root = source if outer == "." else source.parent
    path = Path(shutil.make_archive(str(tmp_path / "packed"), suffix, root))
    assert max_difference(load(path).embed([TEXT])[0], bilm.embed([TEXT])[0]) == 0


@pytest.mark.parametrize("folder", ["", "en/"])
def test_an_archive_that_macos_made(folder, hdf5_folder, tmp_path, bilm):
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in hdf5_folder.iterdir():
            archive.write(file, folder + file.name)
            archive.writestr(f"__MACOSX/{folder}._{file.name}", b"\0\5\x16\7")
            archive.writestr(f"{folder}._{file.name}", b"\0\5\x16\7")  # Those of its tar.
        archive.writestr(folder + ".DS_Store", b"\0\0\0\1Bud1")
    assert max_difference(load(path).embed([TEXT])[0], bilm.embed([TEXT])[0]) == 0


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("container", malicious.CONTAINERS)
@pytest.mark.parametrize("kind", malicious.PICKLES)
def test_pickles_that_execute_code(kind, container, tmp_path):
    marker = tmp_path / "executed"
    for writer in (malicious.pickled_allennlp, malicious.pickled_manylangs):
        path = writer(tmp_path / writer.__name__, kind, container, marker)
        refused(path, "is not read as tensors")
    assert not marker.exists()


@pytest.mark.parametrize("kind", malicious.STATE_DICTS)
def test_state_dicts_that_are_no_weights(kind, tmp_path):
    refused(malicious.state_dict(tmp_path / "model", kind))


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize("kind", malicious.ZIP_SLIPS)
def test_zip_archives_that_leave_their_folder(kind, needed, tmp_path):
    """The file stays inside: it is missing, or one more."""
    outside = tmp_path / "temporary" / "outside"
    path = malicious.zip_slip(tmp_path / "x.zip", kind, outside, needed=needed)
    if needed:
        refused(path)
    else:
        with contextlib.suppress(ValueError):
            quiet_load(path)
    assert not outside.exists()


def test_a_link_in_a_zip_archive(tmp_path):
    refused(malicious.zip_symlink(tmp_path / "x.zip", tmp_path / "outside"))


@pytest.mark.parametrize("kind", malicious.TARS)
def test_tar_archives_with_more_than_files(kind, tmp_path):
    outside = tmp_path / "temporary" / "outside" if "link" not in kind else tmp_path / "outside"
    path = malicious.tar(tmp_path / "model.tar.gz", kind, outside)
    if kind == "absolute":  # It is unpacked inside, as one more file.
        quiet_load(path)
    else:
        refused(path)
    assert "link" in kind or not outside.exists()


LIMIT = """
import resource, sys
from spacy_elmo.formats import load
from spacy_elmo.formats.options import read_vocabulary
for path in sys.argv[1:]:
    try:
        (read_vocabulary if path.endswith("vocab.txt") else load)(__import__("pathlib").Path(path))
    except ValueError as error:
        assert path in str(error), error
    else:
        raise AssertionError(path)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory_of_loading(paths):
    """RETURNS (int): The peak memory in KiB of a process in which each path is refused."""
    arguments = [sys.executable, "-c", LIMIT, *map(str, paths)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    print("peak memory in KiB:", result.stdout)
    return int(result.stdout)


def test_bombs(tmp_path):
    kinds = [kind for kind in malicious.ZIP_BOMBS if kind != "vocab.txt.gz"]
    paths = [malicious.zip_bomb(tmp_path / f"{kind}.zip", kind) for kind in kinds]
    paths += [malicious.tar_bomb(tmp_path / f"{x}.tar.gz", x) for x in malicious.TAR_BOMBS]
    (tmp_path / "vocab.txt.gz").write_bytes(malicious.gzip_zeros(b"the\n", malicious.BOMB))
    assert memory_of_loading([*paths, tmp_path / "vocab.txt"]) < 1 << 20


@pytest.mark.parametrize("kind", ["sparse map", "extended header", "deep", "many"])
def test_headers_of_any_size(kind, tmp_path):
    path = tmp_path / "model.tar.gz"
    info = tarfile.TarInfo("a/" * 500 + "x" if kind == "deep" else "x")
    data = b""
    if kind == "sparse map":
        data = b"1000000\n" + b"0\n" * 2_000_000
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        info.pax_headers |= {"GNU.sparse.name": "x", "GNU.sparse.realsize": "9"}
    elif kind == "extended header":
        info.type, data = tarfile.XHDTYPE, bytes(4 << 20)
    info.size = len(data)
    header = info.tobuf(tarfile.PAX_FORMAT)
    with gzip.open(path, "wb") as file:
        file.write(header + data + bytes(-len(data) % 512))
        for number in range(20_000 if kind == "many" else 0):
            file.write(tarfile.TarInfo(str(number)).tobuf())
    with path.open("ab") as file:  # So that the limit of all bytes is another one.
        file.write(gzip.compress(numpy.random.default_rng(0).bytes(1 << 20)))
    refused(path, "as no model" if kind == "many" else "")


def test_pickles_that_fill_the_memory(tmp_path):
    programs = {
        "nested": b"}N" + b"\x85" * 60_000 + b"Ns.",
        "copies": b"ccollections\nOrderedDict\n]\x85R.",
        "bytearray": b"cbuiltins\nbytearray\nJ\0\0\0\x70\x85R.",
        "number": b"}\x8a\x06\0\0\0\0\0\x01Ns.",
        "storage": b"(X\x07\0\0\0storagectorch\nFloatStorage\n"
        b"X\x01\0\0\0aX\x03\0\0\0cpuJ\0\0\0\x70NtQ.",
    }
    values = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})]
    for name, program in programs.items():
        parts = [*values, b"\x80\x02" + program, pickle.dumps([], 2)]
        (tmp_path / f"{name}.th").write_bytes(b"".join(parts))
    assert memory_of_loading(tmp_path.iterdir()) < 1 << 20


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
        "fastText text": "fastText",
        "transformer ELMo": "transformers",
        "no ELMo": "no ELMo",
    }
    path = unreadable.UNREADABLE[kind](tmp_path / "model")
    refused(path, words.get(kind, ""))
    if path.is_dir():  # The same packed.
        refused(Path(shutil.make_archive(str(path), "zip", path)), words.get(kind, ""))


def test_encrypted_members(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("options.json", "{}")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    refused(path, "encrypted")


def test_damaged_archives(model, tmp_path):
    """Whatever byte is changed, there is a model or an error that names the file."""
    sources = [model[0], tmp_path / "x.zip"]
    nlpl.write(sources[1], *random_model(nlpl, 1)[:2])
    for source in sources:
        data = source.read_bytes()
        for position in range(0, len(data), len(data) // 40):
            path = tmp_path / "damaged"
            path.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
            try:
                quiet_load(path)
            except ValueError as error:
                assert str(path) in str(error)
            path.write_bytes(data[:position])
            refused(path)


def test_nothing_else_is_unpacked(hdf5_folder):
    with unpacked(hdf5_folder) as folder:
        assert folder == hdf5_folder
