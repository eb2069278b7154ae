"""Reading and writing weights, and refusing what is no weights."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy
import pytest
import safetensors.torch
import torch

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.bilm.formats import allennlp, load, native, read_options, read_vocabulary

from ..conftest import TINY, TINY_WORDS, WORDS, max_difference, random_bilm
from ..reference import reference_layers

SENTENCES = [["the", "bank", "<S>"], ["money"], []]
FORMATS = {"hdf5": allennlp, "safetensors": native}
CONFIGS = {
    "characters": TINY,
    "words": TINY_WORDS,
    "no projections": BiLMConfig(LSTMConfig(6, 6, 1), CharCNNConfig(((2, 6),), "tanh")),
    "deep": BiLMConfig(
        LSTMConfig(8, 3, 3, None, 0.5, False), CharCNNConfig(((1, 2), (7, 5)), n_highway=2)
    ),
}
HALVES = {"float32": False, "float16": True}


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
    for layers, other in zip(first.embed(SENTENCES), second.embed(SENTENCES)):
        assert torch.equal(layers, other)


def datasets(path: Path) -> dict[str, numpy.ndarray]:
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    assert found
    return found


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
    """Loading raises a ValueError that says all of the words."""
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
    assert_same(any_bilm, native.from_bytes(native.to_bytes(any_bilm)))


def test_reading_gives_what_the_reference_computes(hdf5_folder):
    bilm = load(hdf5_folder)
    for tokens, layers in zip(SENTENCES, bilm.embed(SENTENCES)):
        assert max_difference(layers, reference_layers(bilm, tokens).layers) <= 1e-5


def test_from_hdf5_to_hdf5(any_bilm, tmp_path):
    allennlp.write(any_bilm, tmp_path / "first")
    allennlp.write(load(tmp_path / "first"), tmp_path / "second")
    first, second = (datasets(tmp_path / name / "weights.hdf5") for name in ("first", "second"))
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert numpy.array_equal(array, second[name]), name


def test_from_published_hdf5_to_hdf5(published, tmp_path):
    allennlp.write(load(published / "lm_weights.hdf5"), tmp_path / "again")
    first = datasets(published / "lm_weights.hdf5")
    second = datasets(tmp_path / "again" / "weights.hdf5")
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert numpy.array_equal(array, second[name]), name


def test_published_options_survive(published, tmp_path):
    allennlp.write(load(published / "lm_weights.hdf5"), tmp_path / "again")
    written = json.loads((tmp_path / "again" / "options.json").read_text(encoding="utf8"))
    assert written == json.loads((published / "options.json").read_text(encoding="utf8"))


def test_layout_of_the_datasets(hdf5_folder):
    cell = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"
    lstm = {"W_0": (12, 48), "B": (48,), "W_P_0": (12, 6)}
    expected = {
        "char_embed": (261, 4),
        **{f"CNN/W_cnn_{i}": (1, i + 1, 4, 4 + 2 * i) for i in range(3)},
        **{f"CNN/b_cnn_{i}": (4 + 2 * i,) for i in range(3)},
        **{f"CNN_high_0/W_{part}": (18, 18) for part in ("carry", "transform")},
        **{f"CNN_high_0/b_{part}": (18,) for part in ("carry", "transform")},
        "CNN_proj/W_proj": (18, 6),
        "CNN_proj/b_proj": (6,),
        **{cell.format(d, l, n): lstm[n] for d in (0, 1) for l in (0, 1) for n in lstm},
    }
    found = datasets(hdf5_folder / "weights.hdf5")
    assert {name: array.shape for name, array in found.items()} == expected


def test_axes_of_the_datasets(hdf5_folder, bilm):
    found = datasets(hdf5_folder / "weights.hdf5")
    weights = {name: parameter.detach().numpy() for name, parameter in bilm.named_parameters()}
    table = weights["token_encoder.char_embedding.weight"]
    kernel = weights["token_encoder.convolutions.2.weight"]
    gates = weights["lstm.backward_layers.1.gate_weight"]
    assert numpy.array_equal(found["char_embed"][ord("a")], table[ord("a") + 1])
    assert found["CNN/W_cnn_2"][0, 1, 3, 7] == kernel[7, 3, 1]
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"][11, 47] == gates[47, 11]


@pytest.mark.parametrize("name", FORMATS)
def test_half_precision_storage(name, tmp_path):
    bilm = random_bilm()
    bilm.half_precision_storage = True
    FORMATS[name].write(bilm, tmp_path / "half")
    again = load(tmp_path / "half")
    assert again.half_precision_storage
    for parameter, original in zip(again.parameters(), bilm.parameters()):
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, original.half().float())
    FORMATS[name].write(again, tmp_path / "again")
    assert_same(again, load(tmp_path / "again"))


def test_half_precision_bytes_take_half_the_room():
    bilm = random_bilm()
    full = len(native.to_bytes(bilm))
    bilm.half_precision_storage = True
    half = native.to_bytes(bilm)
    assert full - len(half) >= 2 * sum(p.numel() for p in bilm.parameters()) - 100
    assert native.from_bytes(half).half_precision_storage


def test_full_precision_is_not_stored_as_half(weights_folder, hdf5_folder):
    assert not load(weights_folder).half_precision_storage
    assert not load(hdf5_folder).half_precision_storage


def test_writing_replaces_a_folder(weights_folder):
    native.write(random_bilm(seed=1), weights_folder)
    assert_same(load(weights_folder), random_bilm(seed=1))
    assert sorted(path.name for path in weights_folder.iterdir()) == [
        "options.json",
        "weights.safetensors",
    ]


# ------------------------------------------------------------------------------ variants of a file


def test_262_rows_with_a_zero_row_in_front(hdf5_folder, bilm):
    change_dataset(hdf5_folder, "char_embed", lambda x: numpy.concatenate((x[:1] * 0, x)))
    assert_same(bilm, load(hdf5_folder))


def test_262_rows_with_an_unused_row_at_the_end(hdf5_folder, bilm):
    change_dataset(hdf5_folder, "char_embed", lambda x: numpy.concatenate((x, x[:1] + 9)))
    assert_same(bilm, load(hdf5_folder))


@pytest.mark.parametrize("stored", [True, False])
def test_a_projection_between_equal_widths_is_there_if_it_is_stored(stored, tmp_path):
    """AllenNLP stores one whatever the widths, bilm-tf does not; the options never tell."""
    char_cnn = CharCNNConfig(((1, 2), (2, 4)), projection=stored)
    bilm = random_bilm(BiLMConfig(LSTMConfig(12, 6), char_cnn))
    allennlp.write(bilm, tmp_path / "weights")
    change_options(tmp_path / "weights", lambda options: options["char_cnn"].pop("projection"))
    again = load(tmp_path / "weights")
    assert ("CNN_proj/W_proj" in datasets(tmp_path / "weights/weights.hdf5")) is stored
    assert again.config.has_char_projection is stored
    assert_same(replace_projection(again, stored), bilm)


def replace_projection(bilm, projection):
    """The same biLM with its projection spelled out in the configuration."""
    bilm.config = replace(
        bilm.config, char_cnn=replace(bilm.config.char_cnn, projection=projection)
    )
    return bilm


def test_a_projection_as_stored_survives_our_own_format(tmp_path):
    config = BiLMConfig(LSTMConfig(12, 6), CharCNNConfig(((2, 6),), projection=True))
    native.write(random_bilm(config), tmp_path / "weights")
    assert_same(load(tmp_path / "weights"), random_bilm(config))


def test_training_leftovers_are_ignored(hdf5_folder, bilm):
    change_dataset(hdf5_folder, "softmax/W", lambda _: numpy.ones((100, 6), dtype="float32"))
    change_dataset(hdf5_folder, "softmax/b", lambda _: numpy.full(100, numpy.nan))
    assert_same(bilm, load(hdf5_folder))


def test_options_of_a_training_run(hdf5_folder, bilm):
    def change(options):
        options["char_cnn"]["n_characters"] = 261
        options.update(n_train_tokens=10**9, batch_size=128, bidirectional=True)

    change_options(hdf5_folder, change)
    assert_same(bilm, load(hdf5_folder))


def test_float64_weights_are_read_as_float32(hdf5_folder, bilm):
    change_dataset(hdf5_folder, "CNN_proj/W_proj", lambda x: x.astype("float64"))
    assert_same(bilm, load(hdf5_folder))


def test_published_names(hdf5_folder, bilm):
    (hdf5_folder / "weights.hdf5").rename(hdf5_folder / "elmo_2x4096_weights.hdf5")
    (hdf5_folder / "options.json").rename(hdf5_folder / "elmo_2x4096_options.json")
    assert_same(bilm, load(hdf5_folder / "elmo_2x4096_weights.hdf5"))
    assert_same(bilm, load(hdf5_folder))


def test_of_several_models_in_a_folder_each_finds_its_options(tmp_path):
    for seed, dim in ((1, 12), (2, 14)):
        config = BiLMConfig(LSTMConfig(dim, 6), TINY.char_cnn)
        allennlp.write(random_bilm(config, seed), tmp_path / "new")
        for name in ("weights.hdf5", "options.json"):
            (tmp_path / "new" / name).rename(tmp_path / f"m{dim}_{name}")
    for dim in (12, 14):
        assert load(tmp_path / f"m{dim}_weights.hdf5").config.lstm.dim == dim


def test_a_file_called_weights_goes_before_others(weights_folder, bilm):
    shutil.copy(weights_folder / "weights.safetensors", weights_folder / "old.safetensors")
    assert_same(bilm, load(weights_folder))


def test_options_may_lie_elsewhere(hdf5_folder, tmp_path, bilm):
    (hdf5_folder / "options.json").rename(tmp_path / "elsewhere.json")
    assert_same(bilm, load(hdf5_folder / "weights.hdf5", tmp_path / "elsewhere.json"))


def test_our_own_file_needs_no_options_beside_it(any_bilm, tmp_path):
    native.write(any_bilm, tmp_path / "weights")
    (tmp_path / "weights" / "weights.safetensors").rename(tmp_path / "alone.safetensors")
    assert_same(any_bilm, load(tmp_path / "alone.safetensors"))


def test_the_kind_of_a_file_is_told_by_its_contents(hdf5_folder, weights_folder, bilm):
    (hdf5_folder / "weights.hdf5").rename(hdf5_folder / "weights.h5")
    assert_same(bilm, load(hdf5_folder))
    (hdf5_folder / "weights.h5").rename(hdf5_folder / "weights.bin")
    assert_same(bilm, load(hdf5_folder / "weights.bin"))
    (weights_folder / "weights.safetensors").rename(weights_folder / "weights.hdf5")
    assert_same(bilm, load(weights_folder))


def test_a_vocabulary_of_odd_words(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "a b", "\u2028", "x\x85y", "\x0c", "", "漢", " "]
    bilm = BiLM(BiLMConfig(LSTMConfig(4, 2), n_tokens_vocab=len(words)), words)
    native.write(bilm, tmp_path / "weights")
    assert load(tmp_path / "weights").vocabulary == words
    assert native.from_bytes(native.to_bytes(bilm)).vocabulary == words


# ------------------------------------------------------------------------------ missing and damaged


def test_nothing_there(tmp_path):
    assert_refused(tmp_path / "none", "no such file or folder", str(tmp_path / "none"))


def test_a_folder_without_weights(tmp_path):
    assert_refused(tmp_path, "must hold one file of weights", "found none")


def test_a_folder_with_several_weights(hdf5_folder):
    shutil.copy(hdf5_folder / "weights.hdf5", hdf5_folder / "b.hdf5")
    (hdf5_folder / "weights.hdf5").rename(hdf5_folder / "a.hdf5")
    assert_refused(hdf5_folder, "one file of weights", "a.hdf5, b.hdf5")


def test_hdf5_without_options(hdf5_folder):
    (hdf5_folder / "options.json").unlink()
    assert_refused(hdf5_folder, "no options for", "weights.hdf5", "options.json", "_options.json")


def test_a_header_that_begins_like_a_pickle(weights_folder):
    """Its length is written first, and may begin with 0x80."""
    path = weights_folder / "weights.safetensors"
    model, tensors = load(weights_folder), safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        [(name, value)] = file.metadata().items()
    for n in range(0, 256, 8):
        safetensors.torch.save_file(tensors, path, {name: value + n * " "})
        if path.read_bytes()[:1] == b"\x80":
            break
    assert path.read_bytes()[:1] == b"\x80"
    assert_same(load(weights_folder), model)


@pytest.mark.parametrize("metadata", ["{", "[]", "{}"])
def test_damaged_metadata(weights_folder, metadata):
    path = weights_folder / "weights.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {"spacy-elmo": metadata})
    (weights_folder / "options.json").unlink()
    assert_refused(weights_folder, "metadata 'spacy-elmo' are damaged")


def test_safetensors_without_any_options(weights_folder):
    path = weights_folder / "weights.safetensors"
    safetensors.torch.save_file(safetensors.torch.load_file(path), path)
    (weights_folder / "options.json").unlink()
    assert_refused(weights_folder, "does not hold its options", "options.json")


def test_given_options_that_are_not_there(hdf5_folder, tmp_path):
    missing = tmp_path / "missing.json"
    assert_refused(
        hdf5_folder / "weights.hdf5", "no such options file", str(missing), options=missing
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("part", [0, 1, 7, 8, 9, 100, 0.3, 0.9, -1])
def test_truncated_weights(name, part, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    path = tmp_path / "weights" / f"weights.{name}"
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data)) if isinstance(part, float) else part])
    assert_refused(tmp_path / "weights", str(path), "not a complete" if part else "is empty")


@pytest.mark.parametrize("name", FORMATS)
def test_weights_that_begin_well_and_go_on_as_noise(name, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    path = tmp_path / "weights" / f"weights.{name}"
    noise = numpy.random.default_rng(0).bytes(5000)
    path.write_bytes(path.read_bytes()[:16] + noise)
    assert_refused(tmp_path / "weights", str(path), "not a complete")


@pytest.mark.parametrize("contents", [b"not weights", b"\0" * 100, b"\xff" * 100, b"[1, 2]"])
def test_weights_that_are_something_else(contents, hdf5_folder):
    (hdf5_folder / "weights.hdf5").write_bytes(contents)
    assert_refused(hdf5_folder, str(hdf5_folder / "weights.hdf5"), "not a complete")


@pytest.mark.parametrize("part", [0, 7, 8, 100, -1])
def test_truncated_bytes(part, bilm):
    with pytest.raises(ValueError, match=r"serialized biLM.*not complete"):
        native.from_bytes(native.to_bytes(bilm)[:part])


def test_bytes_without_options(bilm):
    with pytest.raises(ValueError, match="does not hold its options"):
        native.from_bytes(safetensors.torch.save(dict(bilm.named_parameters())))


@pytest.mark.parametrize(
    "contents, words",
    [
        (b"", ["not a JSON file"]),
        (b"{", ["not a JSON file"]),
        (b'{"lstm": {"dim": 12,', ["not a JSON file"]),
        (b"\xff\xfe{}", ["not a JSON file"]),
        (b"[]", ["JSON object", "list"]),
        (b"null", ["JSON object", "NoneType"]),
        (b"{}", ["'lstm'", "missing"]),
        (b'{"lstm": {"dim": -3}}', ["lstm.dim", "-3"]),
        (b'{"lstm": {"dim": 12}}', ["n_tokens_vocab", "missing"]),
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
    assert_refused(tmp_path / "weights", "holds options, not weights", "swapped")


@pytest.mark.parametrize("name", FORMATS)
def test_options_and_weights_given_the_wrong_way_round(name, tmp_path, bilm):
    FORMATS[name].write(bilm, tmp_path / "weights")
    weights, options = (tmp_path / "weights" / x for x in (f"weights.{name}", "options.json"))
    assert_refused(options, "holds options, not weights", "swapped")
    assert_refused(weights, "holds weights, not options", "swapped", options=weights)
    with pytest.raises(ValueError, match="swapped"):
        read_options(weights)


# -------------------------------------------------------------------------------------- pickles


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def dump_pickle(value, path):
    path.write_bytes(pickle.dumps(value))


def dump_old_pickle(value, path):
    path.write_bytes(pickle.dumps(value, protocol=0))


def save_as_old_torch(value, path):
    torch.save(value, path, _use_new_zipfile_serialization=False)


DUMPS = {
    "pickle": dump_pickle,
    "torch": torch.save,
    "old torch": save_as_old_torch,
}


@pytest.mark.parametrize("target", ["weights.safetensors", "weights.hdf5", "options.json"])
@pytest.mark.parametrize("dump", DUMPS)
def test_pickles_are_refused_unread(dump, target, hdf5_folder, tmp_path):
    marker = tmp_path / "executed"
    if target == "weights.safetensors":
        (hdf5_folder / "weights.hdf5").unlink()
    DUMPS[dump]({"weights": Payload(marker)}, hdf5_folder / target)
    assert_refused(hdf5_folder, str(hdf5_folder / target), "pickle", "refused", "safetensors")
    assert not marker.exists()


def test_the_payload_of_these_tests_would_execute(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_a_pickle_of_the_text_protocol_is_not_executed(hdf5_folder, tmp_path):
    dump_old_pickle(Payload(tmp_path / "executed"), hdf5_folder / "weights.hdf5")
    assert_refused(hdf5_folder, "not a complete")
    assert not (tmp_path / "executed").exists()


def test_pickled_bytes_are_refused_unread(tmp_path):
    with pytest.raises(ValueError, match="not complete safetensors data"):
        native.from_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    assert not (tmp_path / "executed").exists()


# ----------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    "section, name, value, words",
    [
        ("lstm", "dim", 14, ["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/", "56", "48"]),
        ("lstm", "projection_dim", 5, ["(18, 5)", "(18, 6)", "CNN_proj/W_proj"]),
        ("lstm", "n_layers", 3, ["ask for", "RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/"]),
        ("lstm", "n_layers", 1, ["do not know of", "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/"]),
        ("lstm", "projection_dim", 12, ["do not know of", "Cell0/LSTMCell/W_P_0"]),
        ("char_cnn", "n_highway", 2, ["ask for", "CNN_high_1/W_carry"]),
        ("char_cnn", "n_highway", 0, ["do not know of", "CNN_high_0/W_carry"]),
        ("char_cnn", "embedding", {"dim": 5}, ["CNN/W_cnn_0", "(1, 1, 5, 4)", "(1, 1, 4, 4)"]),
        (
            "char_cnn",
            "filters",
            [[1, 4], [2, 6], [4, 8]],
            ["CNN/W_cnn_2", "(1, 4, 4, 8)", "(1, 3, 4, 8)"],
        ),
        ("char_cnn", "filters", [[1, 4], [2, 6]], ["do not know of", "CNN/W_cnn_2"]),
    ],
)
def test_options_that_contradict_the_weights(section, name, value, words, hdf5_folder):
    change_options(hdf5_folder, lambda options: options[section].update({name: value}))
    assert_refused(hdf5_folder, str(hdf5_folder / "weights.hdf5"), *words)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("char_embed", (260, 4)),
        ("char_embed", (263, 4)),
        ("char_embed", (262, 5)),
        ("CNN/W_cnn_1", (2, 4, 6)),
        ("CNN/b_cnn_0", ()),
        ("CNN_high_0/b_carry", (18, 1)),
        ("RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B", (12,)),
        ("RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0", (48, 12)),
    ],
)
def test_a_dataset_of_another_shape_is_named_with_both_shapes(name, shape, hdf5_folder):
    expected = datasets(hdf5_folder / "weights.hdf5")[name].shape
    change_dataset(hdf5_folder, name, lambda _: numpy.ones(shape, dtype="float32"))
    found = (261, 5) if shape == (262, 5) else shape
    assert_refused(hdf5_folder, name, f"make {name} {expected}", f"hold {found}")


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/b_cnn_2", "CNN_proj/b_proj", "CNN_high_0/W_transform"]
)
def test_a_missing_dataset_is_named(name, hdf5_folder):
    change_dataset(hdf5_folder, name, lambda _: None)
    assert_refused(hdf5_folder, "ask for", name, "weights do not hold")


@pytest.mark.parametrize("name", ["CNN/W_cnn_3", "RNN_2/W", "embedding"])
def test_an_extra_dataset_is_named(name, hdf5_folder):
    change_dataset(hdf5_folder, name, lambda _: numpy.ones(3))
    assert_refused(hdf5_folder, "do not know of", name)


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
@pytest.mark.parametrize("name", ["char_embed", "CNN_proj/W_proj"])
def test_hdf5_weights_that_are_not_finite(name, value, hdf5_folder):
    def spoil(array):
        array[-1, -1] = value
        return array

    change_dataset(hdf5_folder, name, spoil)
    assert_refused(hdf5_folder, str(hdf5_folder), "not finite")


def test_safetensors_weights_that_are_not_finite(weights_folder):
    name = "lstm.forward_layers.0.gate_bias"
    change_tensors(weights_folder, lambda tensors: tensors[name][3:4].fill_(float("nan")))
    assert_refused(weights_folder, name, "not finite")


def test_a_missing_tensor_is_named(weights_folder):
    name = "lstm.backward_layers.1.projection_weight"
    change_tensors(weights_folder, lambda tensors: tensors.pop(name))
    assert_refused(weights_folder, "ask for", name, "do not hold")


def test_an_extra_tensor_is_named(weights_folder):
    change_tensors(weights_folder, lambda tensors: tensors.update(more=torch.ones(2)))
    assert_refused(weights_folder, "do not know of", "more")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(weights_folder):
    name = "token_encoder.projection.bias"
    change_tensors(weights_folder, lambda tensors: tensors.update({name: torch.ones(7)}))
    assert_refused(weights_folder, f"make {name} (6,)", "hold (7,)")


def test_options_beside_a_safetensors_file_are_heeded(weights_folder):
    change_options(weights_folder, lambda options: options["lstm"].update(dim=14))
    assert_refused(weights_folder, "layers.0.gate_bias (56,)", "(48,)")


def test_a_projection_that_the_options_deny_and_the_widths_need(hdf5_folder):
    change_options(hdf5_folder, lambda options: options["char_cnn"].update(projection=False))
    for name in ("CNN_proj/W_proj", "CNN_proj/b_proj"):
        change_dataset(hdf5_folder, name, lambda _: None)
    assert_refused(hdf5_folder, "18 filters", "no projection", "6")


# --------------------------------------------------------------------------------------- word input


@pytest.fixture(params=FORMATS)
def words_folder(request, tmp_path):
    FORMATS[request.param].write(random_bilm(TINY_WORDS), tmp_path / "words")
    return tmp_path / "words"


def write_vocabulary(folder, words):
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf8")


def test_the_vocabulary_stands_beside_the_options(words_folder):
    assert read_vocabulary(words_folder / "vocab.txt") == list(WORDS)
    assert load(words_folder).vocabulary == list(WORDS)


def test_a_vocabulary_without_a_line_feed_at_the_end(words_folder):
    (words_folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf8")
    assert load(words_folder).vocabulary == list(WORDS)


def test_a_missing_vocabulary(words_folder):
    (words_folder / "vocab.txt").unlink()
    assert_refused(words_folder, "word input", "vocabulary", str(words_folder / "vocab.txt"))


@pytest.mark.parametrize("word", ["<S>", "</S>", "<UNK>"])
def test_a_vocabulary_without_a_special_word(word, words_folder):
    write_vocabulary(words_folder, ["other" if x == word else x for x in WORDS])
    assert_refused(words_folder, "vocabulary lacks", word)


@pytest.mark.parametrize("size", [3, 7, 9])
def test_a_vocabulary_of_another_size(size, words_folder):
    write_vocabulary(words_folder, (*WORDS, "more")[:size])
    assert_refused(words_folder, "n_tokens_vocab is 8", f"{size} words")


def test_a_vocabulary_that_is_not_utf8(words_folder):
    (words_folder / "vocab.txt").write_bytes(b"<S>\n\xff\n")
    assert_refused(words_folder, "vocab.txt", "UTF-8")


def test_a_vocabulary_and_options_of_another_size_than_the_weights(words_folder):
    write_vocabulary(words_folder, (*WORDS, "more"))
    change_options(words_folder, lambda options: options.update(n_tokens_vocab=9))
    assert_refused(words_folder, "embedding", "(9, 6)", "(8, 6)")


def test_a_word_model_without_any_vocabulary():
    with pytest.raises(ValueError, match=r"word input.*vocabulary"):
        BiLM(TINY_WORDS)
