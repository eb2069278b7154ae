"""Reading and writing weights, and refusing files that are not weights."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy
import pytest
import safetensors.torch
import torch

from spacy_elmo import formats
from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.formats import (
    hdf5,
    load,
    round_to_half,
    safetensors_format,
)
from spacy_elmo.inference import current_session

from ..conftest import TINY, TINY_WORDS, WORDS, assert_close, random_bilm
from ..families.one_layer_hdf5 import read_hdf5

SENTENCES = [["the", "bank", "<S>"], ["New York", "<bos>", "\u3000", "河"], ["x" * 60], []]
# Those that are written, by the suffix of their weights.
FORMATS = {"hdf5": hdf5, "safetensors": safetensors_format}
CONFIGS = {
    "characters": TINY,
    "words": TINY_WORDS,
    "no projections": BiLMConfig(LSTMConfig(6, 6, 1), CharCNNConfig(((2, 6),), "tanh")),
    "deep": BiLMConfig(
        LSTMConfig(8, 3, 3, None, 0.5, False), CharCNNConfig(((1, 2), (7, 5)), n_highway=2)
    ),
}


@pytest.fixture(params=CONFIGS)
def any_bilm(request):
    return random_bilm(CONFIGS[request.param])


def assert_same(first: BiLM, second: BiLM):
    """Equal bit by bit, and in what they compute."""
    assert first.config == second.config
    assert first.vocabulary == second.vocabulary
    parameters = dict(second.named_parameters())
    assert parameters.keys() == dict(first.named_parameters()).keys()
    for name, parameter in first.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, parameters[name]), name
    vectors = [current_session(bilm).embed(SENTENCES) for bilm in (first, second)]
    assert_close(*vectors, bound=0)


def change_dataset(folder: Path, name: str, change):
    """Replace a dataset by a function of it; None removes it."""
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        value = change(file[name][()]) if name in file else change(None)
        if name in file:
            del file[name]
        if value is not None:
            file[name] = value


def change_tensors(folder: Path, change):
    """Rewrite our own file with changed tensors, its metadata kept."""
    path = folder / "weights.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, metadata)


def change_options(folder: Path, change):
    path = folder / "options.json"
    options = json.loads(path.read_text(encoding="utf8"))
    change(options)
    path.write_text(json.dumps(options, indent=1), encoding="utf8")


def assert_refused(path: Path, *words: str, **settings):
    """Loading raises a ValueError whose message has all of the words."""
    with pytest.raises(ValueError) as error:
        load(path, **settings)
    for word in words:
        assert word in str(error.value)


# -------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", FORMATS)
def test_folder_round_trip(name, any_bilm, tmp_path):
    FORMATS[name].write(any_bilm, tmp_path / "weights")
    assert_same(any_bilm, load(tmp_path / "weights"))
    assert_same(any_bilm, load(tmp_path / "weights" / f"weights.{name}"))


def test_bytes_round_trip(any_bilm):
    assert_same(any_bilm, safetensors_format.from_bytes(safetensors_format.to_bytes(any_bilm)))


def rounded_bilm() -> BiLM:
    bilm = random_bilm()
    round_to_half(bilm)
    return bilm


def test_only_what_float16_holds_exactly_is_stored_as_float16():
    """What is read is always what was in memory, also after training part of rounded weights."""
    bilm = rounded_bilm()
    changed = "lstm.forward_layers.1.gate_bias"
    with torch.no_grad():
        bilm.get_parameter(changed)[0] += 1e-5
    data = safetensors_format.to_bytes(bilm)
    stored = {name: tensor.dtype for name, tensor in safetensors.torch.load(data).items()}
    assert stored.pop(changed) == torch.float32
    assert set(stored.values()) == {torch.float16}
    assert_same(bilm, safetensors_format.from_bytes(data))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_hdf5_is_float16_only_if_that_is_asked_for(is_rounded, half, tmp_path):
    bilm = rounded_bilm() if is_rounded else random_bilm()
    hdf5.write(bilm, tmp_path / "weights", half=half)
    stored = read_hdf5(tmp_path / "weights" / "weights.hdf5")
    assert {array.dtype for array in stored.values()} == {numpy.dtype("f2" if half else "f4")}
    assert_same(load(tmp_path / "weights"), rounded_bilm() if half else bilm)


def test_weights_too_large_for_float16(tmp_path):
    bilm, name = random_bilm(), "lstm.backward_layers.0.gate_bias"
    with torch.no_grad():
        bilm.get_parameter(name)[3] = 1e5
    with pytest.raises(ValueError, match=rf"{name} holds .* not finite in float16"):
        round_to_half(bilm)
    with pytest.raises(ValueError, match=rf"{name} holds .* not finite in float16"):
        hdf5.write(bilm, tmp_path / "half", half=True)
    assert not (tmp_path / "half").exists()
    hdf5.write(bilm, tmp_path / "full")
    assert_same(load(tmp_path / "full"), bilm)


# ------------------------------------------------------------------------------ variants of a file


def test_262_rows(hdf5_folder, bilm):
    """With a row of zeros in front, or with one that no character uses at the end."""
    with h5py.File(hdf5_folder / "weights.hdf5") as file:
        table = file["char_embed"][()]
    for rows in ((table[:1] * 0, table), (table, table[:1] + 9)):
        change_dataset(hdf5_folder, "char_embed", lambda _, rows=rows: numpy.concatenate(rows))
        assert_same(bilm, load(hdf5_folder))


@pytest.mark.parametrize("stored", [True, False])
def test_a_projection_between_equal_widths_is_there_if_it_is_stored(stored, tmp_path):
    """AllenNLP always stores one, bilm-tf does not. The options do not say which."""
    char_cnn = CharCNNConfig(((1, 2), (2, 4)), projection=stored)
    bilm = random_bilm(BiLMConfig(LSTMConfig(12, 6), char_cnn))
    hdf5.write(bilm, tmp_path / "weights")
    change_options(tmp_path / "weights", lambda options: options["char_cnn"].pop("projection"))
    again = load(tmp_path / "weights")
    assert ("CNN_proj/W_proj" in read_hdf5(tmp_path / "weights/weights.hdf5")) is stored
    assert again.config.has_char_projection is stored
    assert_same(replace_projection(again, stored), bilm)


def replace_projection(bilm, projection):
    """The same biLM with its projection spelled out in the configuration."""
    bilm.config = replace(
        bilm.config, char_cnn=replace(bilm.config.char_cnn, projection=projection)
    )
    return bilm


def test_reading_does_not_import_the_compiler(weights_folder):
    """It takes longer than reading."""
    code = (
        "import sys; from spacy_elmo.formats import load; load(sys.argv[1]); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, weights_folder], check=True)


def test_training_leftovers_are_ignored(hdf5_folder, bilm):
    change_dataset(hdf5_folder, "softmax/W", lambda _: numpy.ones((100, 6), dtype="float32"))
    change_dataset(hdf5_folder, "softmax/b", lambda _: numpy.full(100, numpy.nan))
    assert_same(bilm, load(hdf5_folder))


@pytest.mark.parametrize("dtype", [">f4", "<f8"])
def test_hdf5_of_other_floats(dtype, hdf5_folder, bilm):
    for name in ("CNN_proj/W_proj", "char_embed", "CNN/W_cnn_1"):
        change_dataset(hdf5_folder, name, lambda x: x.astype(dtype))
    assert_same(bilm, load(hdf5_folder))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_safetensors_of_other_floats(dtype, weights_folder, bilm):
    name = "token_encoder.projection.weight"
    change_tensors(weights_folder, lambda x: x.update({name: x[name].to(dtype)}))
    expected = bilm.get_parameter(name).to(dtype).to(torch.float32)
    assert torch.equal(load(weights_folder).get_parameter(name), expected)
    data = (weights_folder / "weights.safetensors").read_bytes()
    assert torch.equal(safetensors_format.from_bytes(data).get_parameter(name), expected)


def test_of_several_models_in_a_folder_each_finds_its_options(tmp_path):
    """By published names."""
    for seed, dim in ((1, 12), (2, 14)):
        config = BiLMConfig(LSTMConfig(dim, 6), TINY.char_cnn)
        hdf5.write(random_bilm(config, seed), tmp_path / "new")
        for name in ("weights.hdf5", "options.json"):
            (tmp_path / "new" / name).rename(tmp_path / f"m{dim}_{name}")
    for dim in (12, 14):
        assert load(tmp_path / f"m{dim}_weights.hdf5").config.lstm.dim == dim


def test_the_format_is_detected_from_the_contents(hdf5_folder, weights_folder, bilm):
    (hdf5_folder / "weights.hdf5").rename(hdf5_folder / "weights.h5")
    assert_same(bilm, load(hdf5_folder))
    (hdf5_folder / "weights.h5").rename(hdf5_folder / "weights.bin")
    assert_same(bilm, load(hdf5_folder / "weights.bin"))
    (weights_folder / "weights.safetensors").rename(weights_folder / "weights.hdf5")
    assert_same(bilm, load(weights_folder))


def test_a_vocabulary_of_odd_words(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "a b", "\u2028", "x\x85y", "\x0c", "", "漢", " "]
    bilm = BiLM(BiLMConfig(LSTMConfig(4, 2), n_tokens_vocab=len(words)), words)
    safetensors_format.write(bilm, tmp_path / "weights")
    assert load(tmp_path / "weights").vocabulary == words
    assert safetensors_format.from_bytes(safetensors_format.to_bytes(bilm)).vocabulary == words


@pytest.mark.parametrize("name", FORMATS)
def test_later_changes_of_the_file_do_not_change_the_model(name, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    path = tmp_path / "weights" / f"weights.{name}"
    loaded = load(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(size * b"\x11")
    assert_same(bilm, loaded)


# ------------------------------------------------------------------------------ missing and damaged


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX only")
def test_a_named_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", f"{tmp_path / 'pipe'} is no file")


def test_files_that_are_missing_or_too_many(hdf5_folder):
    (hdf5_folder / "options.json").rename(hdf5_folder / "kept.json")
    assert_refused(hdf5_folder, str(hdf5_folder / "options.json"), "No such file")
    shutil.copy(hdf5_folder / "weights.hdf5", hdf5_folder / "b.hdf5")
    (hdf5_folder / "weights.hdf5").rename(hdf5_folder / "a.hdf5")
    assert_refused(hdf5_folder, "one file of weights", "a.hdf5, b.hdf5")


@pytest.mark.parametrize("metadata", [None, "{", "[]", "{}"])
def test_damaged_metadata(weights_folder, metadata):
    path = weights_folder / "weights.safetensors"
    tensors = safetensors.torch.load_file(path)
    contents = None if metadata is None else {"spacy-elmo": metadata}
    safetensors.torch.save_file(tensors, path, contents)
    assert_refused(weights_folder, str(path), "safetensors with options")
    with pytest.raises(ValueError, match="the serialized biLM cannot be read"):
        safetensors_format.from_bytes(path.read_bytes())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("length", [0, 8, 0.9])
def test_truncated_weights(name, length, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    path = tmp_path / "weights" / f"weights.{name}"
    data = path.read_bytes()
    path.write_bytes(data[: int(length * len(data)) if isinstance(length, float) else length])
    assert_refused(tmp_path / "weights", str(path), "not complete" if length == 0.9 else "is")


@pytest.mark.parametrize(
    "contents, words",
    [
        (b"\xff\xfe{}", ["not a JSON file", "swapped"]),
        (b"[]", ["JSON object", "list"]),
        (b'{"lstm": {"dim": -3}}', ["lstm.dim", "-3"]),
        (b'{"lstm": {"dim": 12}}', ["n_tokens_vocab", "missing"]),
        (b'{"lstm": {"dim": 1000000000000000000}}', ["lstm.dim"]),
    ],
)
def test_bad_options_name_the_file_and_the_setting(contents, words, hdf5_folder):
    path = hdf5_folder / "options.json"
    path.write_bytes(contents)
    assert_refused(hdf5_folder, str(path), *words)


@pytest.mark.parametrize("name", FORMATS)
def test_swapped_files(name, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    weights, options = (tmp_path / "weights" / x for x in (f"weights.{name}", "options.json"))
    weights.rename(tmp_path / "kept")
    options.rename(weights)
    (tmp_path / "kept").rename(options)
    assert_refused(tmp_path / "weights", "options or other JSON, not weights", "swapped")


@pytest.mark.parametrize(
    "settings", [{}, {"chunks": True}, {"compression": "gzip"}, {"scaleoffset": 3}], ids=str
)
def test_hdf5_data_that_are_not_stored_as_they_are(settings, hdf5_folder):
    """Never written, or filtered: HDF5 inflates a chunk without a limit."""
    with h5py.File(hdf5_folder / "weights.hdf5", "r+") as file:
        shape = file["CNN/b_cnn_2"].shape
        del file["CNN/b_cnn_2"]
        data = numpy.ones(shape, dtype="f4") if len(settings) and "chunks" not in settings else None
        file.create_dataset("CNN/b_cnn_2", shape, "f4", data, **settings)
    assert_refused(hdf5_folder, str(hdf5_folder), "CNN/b_cnn_2", "h5repack -f NONE")


def test_the_largest_options_contradict_the_weights(hdf5_folder):
    """They are compared with the file before anything of their size exists. NumPy reports its
    arrays to tracemalloc, also those that are never written to."""

    def change(options):
        options["lstm"].update(dim=2**16, projection_dim=2**15)
        options["char_cnn"].update(filters=[[1, 2**16 - 16], [2, 8], [3, 8]], n_highway=1)

    change_options(hdf5_folder, change)
    tracemalloc.start()
    try:
        assert_refused(hdf5_folder, "the options make")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("target", [*(f"weights.{name}" for name in FORMATS), "options.json"])
def test_random_damage_gives_an_error_or_a_model(target, tmp_path, bilm):
    """Bytes that change or are cut off: a ValueError that names the folder, or a model."""
    folder = tmp_path / "weights"
    FORMATS.get(Path(target).suffix[1:], hdf5).write(bilm, folder)
    data = (folder / target).read_bytes()
    rng = numpy.random.default_rng(14)
    n_loaded = 0
    for _ in range(100):
        mutant = bytearray(data)
        # Most of a file is numbers, and every change of these is a model: rather at its beginning.
        end = len(data) if rng.random() < 0.3 else min(len(data), 3000)
        for position in rng.integers(end, size=rng.integers(1, 9)):
            mutant[position] = rng.integers(256)
        if rng.random() < 0.2:
            del mutant[rng.integers(len(mutant)) :]
        (folder / target).write_bytes(mutant)
        try:
            load(folder)
            n_loaded += 1
        except ValueError as error:
            assert str(folder) in str(error)
    assert n_loaded < 100


def test_a_format_is_an_entry_of_the_registry(tmp_path, monkeypatch, bilm):
    """It may be a folder, also a packed one."""

    def detect(path, start):
        return (path / "toy.bin").exists()

    toy = SimpleNamespace(NAME="toy", SUFFIXES=(), detect=detect, read=lambda path, options: bilm)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, toy))
    with zipfile.ZipFile(tmp_path / "144.zip", "w") as file:
        file.writestr("toy.bin", "x")
    assert load(tmp_path / "144.zip") is bilm
    (tmp_path / "unknown").write_bytes(b"x")
    assert_refused(tmp_path / "unknown", "toy")


# ----------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    "section, name, value, words",
    [
        ("lstm", "dim", 14, ["lstm.backward_layers.0.gate_bias", "(56,)", "(48,)"]),
        ("lstm", "n_layers", 3, ["lstm.backward_layers.2.gate_bias", "nothing"]),
        ("char_cnn", "n_highway", 0, ["CNN_high_0/W_carry", "the options make nothing"]),
        ("char_cnn", "filters", [[1, 4], [2, 6], [4, 8]], ["convolutions.2", "(8, 4, 3)"]),
    ],
)
def test_options_that_contradict_the_weights(section, name, value, words, hdf5_folder):
    change_options(hdf5_folder, lambda options: options[section].update({name: value}))
    assert_refused(hdf5_folder, str(hdf5_folder / "weights.hdf5"), *words)
    with pytest.raises(ValueError, match="differ"):
        safetensors_format.write(random_bilm(), hdf5_folder / "own")
        load(hdf5_folder / "own", hdf5_folder / "options.json")


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_weights_that_are_not_finite(value, hdf5_folder, bilm, tmp_path):
    def spoil(array):
        array[-1, -1] = value
        return array

    change_dataset(hdf5_folder, "CNN_proj/W_proj", spoil)
    assert_refused(hdf5_folder, str(hdf5_folder), "CNN_proj/W_proj holds", "not finite")
    name = "lstm.forward_layers.0.gate_bias"
    with torch.no_grad():
        bilm.get_parameter(name)[5] = value
    for format in FORMATS.values():
        with pytest.raises(ValueError, match=f"not saved: {name} holds .* not finite"):
            format.write(bilm, tmp_path / "weights")
        assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_safetensors_of_no_weights(dtype, weights_folder):
    name = "token_encoder.projection.bias"
    change_tensors(weights_folder, lambda x: x.update({name: x[name].to(dtype)}))
    assert_refused(weights_folder, str(weights_folder), f"{name} holds values that are no weights")


# --------------------------------------------------------------------------------------- word input


@pytest.fixture
def words_folder(tmp_path):
    hdf5.write(random_bilm(TINY_WORDS), tmp_path / "words")
    return tmp_path / "words"


def test_a_vocabulary_is_read_as_bilm_tf_reads_it(words_folder):
    lines = ["<S> ", "</S>", "\t<UNK>", "!!!MAXTERMID", "the  ", "bank\u3000", *WORDS[5:]]
    path = words_folder / "vocab.txt"
    for end in ("\n", "\r\n"):
        for encoding in ("utf8", "utf-8-sig"):
            path.write_bytes("".join(f"{line}{end}" for line in lines).encode(encoding))
            # bilm-tf's reader, bilm/data.py.
            with path.open(encoding="utf-8-sig") as file:
                expected = [line.strip() for line in file if line.strip() != "!!!MAXTERMID"]
            assert load(words_folder).vocabulary == expected == list(WORDS)


def test_other_vocabularies(words_folder):
    """Packed, damaged, missing, and of another size."""
    path, packed = words_folder / "vocab.txt", words_folder / "vocab.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    expected = load(words_folder)
    path.unlink()
    assert_same(expected, load(words_folder))
    packed.write_bytes(packed.read_bytes()[:-9])
    assert_refused(words_folder, f"{packed} cannot be read")
    packed.write_bytes(gzip.compress(bytes(1 << 20)))
    assert_refused(words_folder, str(packed), "unpacks to more than")
    packed.unlink()
    assert_refused(words_folder, "vocabulary", str(path))
    path.write_text("".join(f"{word}\n" for word in WORDS[:7]), encoding="utf8")
    assert_refused(words_folder, "n_tokens_vocab is 8", "7 words")
