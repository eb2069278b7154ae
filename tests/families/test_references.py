"""The references and writers themselves, checked against what is known without them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import warnings
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy
import pytest
import torch
from numpy import ndarray

from ..conftest import shared_path
from . import (
    allennlp_archive,
    bilm_tf,
    malicious,
    manylangs,
    network,
    nlpl,
    one_layer_hdf5,
    tensor_bundle,
    texts,
    unreadable,
)
from .network import Architecture, Weights

FAMILIES = (manylangs, bilm_tf, nlpl, allennlp_archive, one_layer_hdf5)
SEEDS = range(20)


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def random_model(
    family: Any, seed: int, **changes: Any
) -> tuple[Architecture, Weights, list[list[str]]]:
    """A model with some settings changed, and sentences for it."""
    rng = numpy.random.default_rng(seed)
    architecture = family.random_architecture(rng) | changes
    weights = family.random_weights(architecture, rng)
    return architecture, weights, family.random_sentences(architecture, rng)


def differ(first: list[ndarray], second: list[ndarray]) -> float:
    return max(float(numpy.abs(x - y).max()) for x, y in zip(first, second, strict=True))


# All families


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_references_of_twenty_architectures(family: ModuleType) -> None:
    """Shapes are right, nothing is lost to rounding, no two sentences or settings look alike."""
    clipped = {"cell_clip": 0, "proj_clip": 0}
    for seed in SEEDS:
        architecture, weights, sentences = random_model(family, seed)
        model = architecture.get("model", architecture)
        layers = family.reference(architecture, weights, sentences)
        for sentence, array in zip(sentences, layers, strict=True):
            width = 2 * model["projection_dim"]
            assert array.shape == (model["n_layers"] + 1, len(sentence), width)
            assert array.dtype == numpy.float64 and numpy.isfinite(array).all()
        rounded = family.reference(architecture, weights, sentences, numpy.float32)
        assert rounded[0].dtype == numpy.float32
        assert differ(layers, rounded) < 3e-6
        for clip in clipped:
            if model[clip] is not None:
                without = model | {clip: None}
                changed = architecture | {"model": without} if "model" in architecture else without
                other = family.reference(changed, weights, sentences)
                clipped[clip] += differ(layers, other) > 1e-3
    assert min(clipped.values()) >= 2, "clips never matter"


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_architectures_spread(family: ModuleType) -> None:
    made = [family.random_architecture(numpy.random.default_rng(seed)) for seed in SEEDS]
    models = [architecture.get("model", architecture) for architecture in made]
    assert {len(model["filters"]) for model in models} >= {1, 2, 3}
    assert {model["n_highway"] for model in models} == {0, 1, 2, 3}
    assert {model["activation"] for model in models} == {"relu", "tanh"}
    for clip in ("cell_clip", "proj_clip"):
        clips = {model[clip] for model in models}
        assert {3, None} < clips and min(clips - {None}) < 1
    layers = {1} if family is one_layer_hdf5 else {1, 2, 3}
    assert {model["n_layers"] for model in models} == layers
    if family is not allennlp_archive:
        assert len({model["max_characters_per_token"] for model in models}) >= 3
    if family is manylangs:
        assert 0 in {model["word_dim"] for model in models}
        assert any(model["dim"] == model["projection_dim"] for model in models)
    if family in (bilm_tf, one_layer_hdf5):
        narrow = [model["dim"] == model["projection_dim"] for model in models]
        assert any(narrow) and not all(narrow)
        equal = [network.total_filters(m) == m["projection_dim"] for m in models if m["filters"]]
        assert any(equal) and not all(equal)
        assert {model["use_skip_connections"] for model in models} == {False, True}
    if family is bilm_tf:
        words = [model for model in models if not model["filters"]]
        assert {model["share_embedding_softmax"] for model in words} == {False, True}
    if family is nlpl:
        assert len({architecture["contents"] for architecture in made}) == 4
        assert len({architecture["vocabulary"] for architecture in made}) == 3
    if family is allennlp_archive:
        assert {model["local_options"] for model in models} == {False, True}
        assert {model["mixes"] for model in models} == {1, 2, 3}
        assert {model["prefix"] for model in models} == set(allennlp_archive.PREFIXES)


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
def test_what_the_outputs_depend_on(family: ModuleType) -> None:
    """Layer 0 sees one token, a forward layer what precedes, a backward layer what follows."""
    architecture, weights, _ = random_model(family, 2)
    p = architecture.get("model", architecture)["projection_dim"]
    first, second = family.reference(
        architecture, weights, [["the", "bank", "river"], ["the", "bank", "銀行"]]
    )
    same = numpy.abs(first - second).max(axis=2) == 0
    assert same[0].tolist() == [True, True, False]
    forward, backward = numpy.abs(first - second)[1:, :, :p], numpy.abs(first - second)[1:, :, p:]
    assert (forward[:, :2] == 0).all() and forward[:, 2].any()
    assert backward.any(axis=2).all()


def test_sentences_tell_scripts_and_lengths_apart() -> None:
    rng = numpy.random.default_rng(0)
    sentences = texts.random_sentences(rng, 10, ("<S>",))
    tokens = [token for sentence in sentences for token in sentence]
    assert {9, 10, 11} <= {len(token) for token in tokens} and "<S>" in tokens
    assert 1 in {len(sentence) for sentence in sentences}
    assert all(len(token.encode()) > 50 for token in texts.LONG)
    # Cuts after 48 bytes that fall within a character.
    broken = [token.encode()[:48].decode("utf8", "replace")[-1] for token in texts.LONG]
    assert "\ufffd" in broken


# The LSTM and the encoder, against PyTorch


def torch_lstm(
    w: ndarray, u: ndarray, bias: ndarray, projection: ndarray | None, inputs: ndarray
) -> ndarray:
    """PyTorch's LSTM, whose gates are in the order input, forget, cell, output."""
    d, p = len(bias) // 4, 0 if projection is None else len(projection)
    lstm = torch.nn.LSTM(inputs.shape[1], d, proj_size=p, dtype=torch.float64)
    parameters = {"weight_ih_l0": w, "weight_hh_l0": u, "bias_ih_l0": bias}
    parameters["bias_hh_l0"] = numpy.zeros_like(bias)
    if projection is not None:
        parameters["weight_hr_l0"] = projection
    lstm.load_state_dict({k: torch.from_numpy(numpy.array(v)) for k, v in parameters.items()})
    with torch.no_grad():
        return lstm(torch.from_numpy(numpy.array(inputs)))[0].numpy()


def test_cell_of_manylangs_is_that_of_torch() -> None:
    sizes = {"projection_dim": 5, "dim": 9, "cell_clip": None, "proj_clip": None}
    architecture, weights, _ = random_model(manylangs, 3, **sizes)
    weights = network.cast(weights, numpy.float64)
    inputs = numpy.random.default_rng(3).normal(size=(7, 5))
    stem = "backward_layer_0."
    cell = manylangs.cell(architecture, weights, stem)
    w, u, bias, projection = (weights[stem + part] for part in LSTM_PARTS)
    expected = torch_lstm(w, u, bias, projection, inputs)
    assert numpy.abs(network.run_cell(cell, inputs) - expected).max() < 1e-12


@pytest.mark.parametrize("d", [5, 9])
def test_cell_of_bilm_tf_is_that_of_torch(d: int) -> None:
    """Its blocks in another order, one more in the forget bias; also without a projection."""
    rng = numpy.random.default_rng(d)
    kernel, bias = rng.normal(size=(10, 4 * d)), rng.normal(size=4 * d)
    scope = "lm/RNN_0/rnn/lstm_cell/"
    weights = {scope + "kernel": kernel, scope + "bias": bias}
    if d != 5:
        weights[scope + "projection/kernel"] = rng.normal(size=(d, 5))
    sizes = {"projection_dim": 5, "dim": d, "cell_clip": None, "proj_clip": None}
    inputs = rng.normal(size=(7, 5))
    cell = bilm_tf.cell(sizes, weights, scope)
    columns = numpy.r_[0:d, 2 * d : 3 * d, d : 2 * d, 3 * d : 4 * d]
    shift = numpy.repeat([0, 1, 0, 0], d)
    projection = weights.get(scope + "projection/kernel")
    expected = torch_lstm(
        kernel[:5, columns].T,
        kernel[5:, columns].T,
        bias[columns] + shift,
        None if projection is None else projection.T,
        inputs,
    )
    assert numpy.abs(network.run_cell(cell, inputs) - expected).max() < 1e-12


def test_clips_by_hand() -> None:
    """Gates wide open: the cell adds 1 to half of its last state, and both clips fire."""
    one, zero = numpy.ones((1, 1)), numpy.zeros((1, 1))
    bias = {"input": 50.0, "forget": 0.0, "cell": 50.0, "output": 50.0}
    gates = {name: (zero, zero, numpy.array([value])) for name, value in bias.items()}
    inputs = numpy.zeros((3, 1))
    h = network.run_cell(network.Cell(gates, one, None, None), inputs)[:, 0]
    assert h == pytest.approx(numpy.tanh([1, 1.5, 1.75]))
    h = network.run_cell(network.Cell(gates, one, 1.25, None), inputs)[:, 0]
    assert h == pytest.approx(numpy.tanh([1, 1.25, 1.25]))
    h = network.run_cell(network.Cell(gates, -2 * one, None, 1.8), inputs)[:, 0]
    assert h == pytest.approx([-2 * numpy.tanh(1), -1.8, -1.8])
    # The state that is carried on is the clipped one.
    gates["cell"] = (zero, one, numpy.array([0.0]))
    gates["input"] = (zero, zero, numpy.array([50.0]))
    gates["cell"] = (one, one, numpy.array([0.0]))
    cell = network.Cell(gates, 10 * one, None, 0.5)
    h = network.run_cell(cell, numpy.array([[1.0], [0.0]]))[:, 0]
    assert h[0] == 0.5
    c = 0.5 * numpy.tanh(1) + numpy.tanh(0.5)
    assert h[1] == 0.5 and 10 * numpy.tanh(c) > 0.5
    # Without a projection, nothing but the cell is clipped.
    h = network.run_cell(network.Cell(gates, None, None, 0.1), numpy.ones((1, 1)))[:, 0]
    assert h == pytest.approx(numpy.tanh(numpy.tanh(1)))


def test_skip_connections_start_at_the_second_layer() -> None:
    zero = numpy.zeros((1, 1))
    gates = {name: (zero, zero, numpy.array([0.0])) for name in network.GATES}
    silent = network.Cell(gates, zero, None, None)
    gates = gates | {"cell": (zero, zero, numpy.array([50.0]))}
    constant = network.Cell(gates, numpy.ones((1, 1)), None, None)
    h = 0.5 * numpy.tanh(0.5)
    layers = network.run_stack([constant, silent, constant], numpy.array([[7.0]]), True)
    assert [float(layer[0, 0]) for layer in layers] == pytest.approx([7, h, h, 2 * h])
    layers = network.run_stack([constant, silent, constant], numpy.array([[7.0]]), False)
    assert [float(layer[0, 0]) for layer in layers] == pytest.approx([7, h, 0, h])


def test_convolution_is_that_of_torch() -> None:
    rng = numpy.random.default_rng(0)
    characters = rng.normal(size=(12, 3))
    filters = [
        (rng.normal(size=(n, 3, w)), rng.normal(size=n)) for w, n in ((1, 2), (4, 5), (12, 1))
    ]
    rows = torch.from_numpy(characters.T[None])
    for activation in ("relu", "tanh"):
        expected = []
        for weight, bias in filters:
            y = torch.conv1d(rows, torch.from_numpy(weight), torch.from_numpy(bias))
            expected.append(getattr(torch, activation)(y).max(dim=2).values[0])
        found = network.convolve(characters, filters, activation)
        assert numpy.abs(found - torch.cat(expected).numpy()).max() < 1e-12


def test_highways_by_hand() -> None:
    """With a gate of sigmoid(log 3) = 3/4, over the relu of 2x + 1 and of -x."""
    x = numpy.array([3.0, 5.0])
    weight = numpy.array([[2.0, 0], [0, -1], [0, 0], [0, 0]])
    bias = numpy.array([1, 0, numpy.log(3), numpy.log(3)])
    assert manylangs.highway(x, weight, bias) == pytest.approx([0.75 * 3 + 0.25 * 7, 0.75 * 5])
    weights = {
        "lm/char_embed": numpy.zeros((261, 1)),
        "lm/CNN/W_cnn_0": numpy.zeros((1, 1, 1, 2)),
        "lm/CNN/b_cnn_0": x,
        "lm/CNN_high_0/W_transform": weight[:2].T,
        "lm/CNN_high_0/b_transform": bias[:2],
        "lm/CNN_high_0/W_carry": numpy.zeros((2, 2)),
        "lm/CNN_high_0/b_carry": bias[2:],
    }
    architecture = {"filters": [[1, 2]], "n_highway": 1, "activation": "relu"}
    architecture["max_characters_per_token"] = 4
    encoded = bilm_tf.encode_token(architecture, weights, "a")
    assert encoded == pytest.approx([0.75 * 7 + 0.25 * 3, 0.25 * 5])


# ELMoForManyLangs


@pytest.fixture
def dictionaries() -> Architecture:
    """The dictionaries of the specification's example."""
    words = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "bank", "river", "New York", "\u3000"]
    characters = [*"<bos>ethankriv", *manylangs.SPECIAL_CHARACTERS, "\u3000"]
    return {
        "word_dim": 4,
        "char_dim": 3,
        "max_characters_per_token": 12,
        "words": [[word, i] for i, word in enumerate(words)],
        "characters": [[character, i] for i, character in enumerate(characters)],
    }


@pytest.mark.parametrize(
    "token, word, characters",
    [
        ("the", 4, [19, 6, 7, 5, 18, *[17] * 7]),
        ("The", 0, [19, 16, 7, 5, 18, *[17] * 7]),
        ("New York", 7, [19, 16, 5, 16, 16, 16, 2, 11, 10, 18, 17, 17]),
        ("é", 0, [19, 16, 18, *[17] * 9]),
        ("riverriverriver", 0, [19, *[11, 12, 13, 5, 11] * 2, 18]),
        ("<bos>", 1, [19, 14, 18, *[17] * 9]),
        ("<eos>", 2, [19, 15, 18, *[17] * 9]),
        ("<pad>", 3, [19, 0, 16, 8, 16, 4, 18, *[17] * 5]),
        ("\u3000", 8, [19, 20, 18, *[17] * 9]),
        ("\u00a0", 0, [19, 16, 18, *[17] * 9]),
        ("", 0, [19, 18, *[17] * 10]),
    ],
)
def test_ids_of_manylangs(
    dictionaries: Architecture, token: str, word: int, characters: list[int]
) -> None:
    assert manylangs.token_ids(dictionaries, token) == (word, characters)


def test_cut_words_are_looked_up(dictionaries: Architecture) -> None:
    dictionaries["words"].append(["riverriver", 9])
    assert manylangs.token_ids(dictionaries, "riverriverriver")[0] == 9


def test_dictionaries_of_manylangs() -> None:
    text = "the\t0\nNew York\t1\n\u3000\t2\n\u00a0\t3\n\u0301\t4\nthe\t5\n"
    expected = {"the": 5, "New York": 1, "\u3000": 3, "\u0301": 4}
    assert manylangs.read_dictionary(text) == expected
    for seed in SEEDS:
        architecture = manylangs.random_architecture(numpy.random.default_rng(seed))
        for key, special in (
            ("words", manylangs.SPECIAL_WORDS),
            ("characters", ("<bow>", "\u3000")),
        ):
            lines = architecture[key]
            if key == "words" and architecture["word_dim"] == 0:
                assert lines == []
                continue
            assert {i for _, i in lines} == set(range(len(lines)))
            ids = manylangs.read_dictionary(manylangs.dictionary_text(lines))
            assert set(special) <= set(ids) and "\u00a0" not in ids


def test_manylangs_against_torch() -> None:
    """The whole network from PyTorch's modules."""
    sizes = {"projection_dim": 4, "dim": 7, "n_layers": 2, "cell_clip": None, "proj_clip": None}
    architecture, weights, sentences = random_model(manylangs, 5, **sizes, word_dim=3)
    expected = [torch_manylangs(architecture, weights, sentence) for sentence in sentences]
    assert differ(manylangs.reference(architecture, weights, sentences), expected) < 1e-12


def torch_manylangs(architecture: Architecture, weights: Weights, sentence: list[str]) -> ndarray:
    state = {k: torch.from_numpy(v.astype("float64")) for k, v in weights.items()}
    ids = [manylangs.token_ids(architecture, t) for t in ("<bos>", *sentence, "<eos>")]
    words = state["word_emb_layer.embedding.weight"][[word for word, _ in ids]]
    x = state["char_emb_layer.embedding.weight"][torch.tensor([c for _, c in ids])].transpose(1, 2)
    activation = getattr(torch, architecture["activation"])
    features = []
    for i in range(len(architecture["filters"])):
        y = torch.conv1d(x, state[f"convolutions.{i}.weight"], state[f"convolutions.{i}.bias"])
        features.append(activation(y).amax(dim=2))
    y = torch.cat(features, dim=1)
    for k in range(architecture["n_highway"]):
        stem = f"highways._layers.{k}."
        z = torch.nn.functional.linear(y, state[stem + "weight"], state[stem + "bias"])
        hidden, gate = z.chunk(2, dim=1)
        y = torch.lerp(hidden.relu(), y, gate.sigmoid())
    y = torch.cat([words, y], dim=1)
    x0 = torch.nn.functional.linear(y, state["projection.weight"], state["projection.bias"])
    sides = []
    for direction in manylangs.DIRECTIONS:
        x = x0.flip(0) if direction == "backward" else x0
        layers = [x0]
        for layer in range(architecture["n_layers"]):
            stem = f"{direction}_layer_{layer}."
            w, u, bias, projection = (state[stem + part].numpy() for part in LSTM_PARTS)
            out = torch.from_numpy(torch_lstm(w, u, bias, projection, x.numpy()))
            x = out + x if layer else out
            layers.append(x.flip(0) if direction == "backward" else x)
        sides.append(torch.stack(layers))
    return torch.cat(sides, dim=2)[:, 1:-1].numpy()


LSTM_PARTS = (
    "input_linearity.weight",
    "state_linearity.weight",
    "state_linearity.bias",
    "state_projection.weight",
)


def test_padding_takes_part_in_the_convolutions() -> None:
    architecture, weights, _ = random_model(manylangs, 1)
    table = "char_emb_layer.embedding.weight"
    ids = manylangs.read_dictionary(manylangs.dictionary_text(architecture["characters"]))
    masked = weights[table].copy()
    masked[ids["<pad>"]] = 0
    sentences = [["a"]]
    layers = manylangs.reference(architecture, weights, sentences)
    assert (
        differ(layers, manylangs.reference(architecture, weights | {table: masked}, sentences)) > 0
    )


@pytest.mark.parametrize("form", ["folder", "nested folder", "zip", "nested zip"])
def test_files_of_manylangs(tmp_path: Path, form: str) -> None:
    architecture, weights, _ = random_model(manylangs, 1)
    path = manylangs.write(tmp_path / "model", architecture, weights, form=form)
    if form.endswith("zip"):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            archive.extractall(tmp_path / "unpacked")
        path = tmp_path / "unpacked" / ("xx.model" if form.startswith("nested") else "")
    config = json.loads((path / "config.json").read_text())
    assert config["config_path"].startswith("/") and not Path(config["config_path"]).exists()
    options = json.loads((path / Path(config["config_path"]).name).read_text())
    assert options["token_embedder"]["filters"] == architecture["filters"]
    assert options["encoder"]["dim"] == architecture["dim"]
    state: dict = {}
    for name in ("token_embedder.pkl", "encoder.pkl"):
        content = (path / name).read_bytes()
        assert content.startswith(bytes.fromhex("80028a0a6cfc9c46f9206aa850192e"))
        assert b"ctorch.cuda\nFloatStorage\n" in content and b"cuda:0" in content
        state |= torch.load(path / name, map_location="cpu", weights_only=True)
    assert set(state) == set(weights)
    assert all((state[name].numpy() == array).all() for name, array in weights.items())
    for name, key, table in (("word", "words", "word"), ("char", "characters", "char")):
        lines = (path / f"{name}.dic").read_bytes().decode().split("\n")[:-1]
        assert len(lines) == len(architecture[key])
        assert len(lines) == len(weights[f"{table}_emb_layer.embedding.weight"])


def test_files_of_manylangs_without_word_table_or_architecture(tmp_path: Path) -> None:
    architecture, weights, _ = random_model(manylangs, 1, word_dim=0, words=[])
    path = manylangs.write(tmp_path / "a", architecture, weights, architecture_file="missing")
    names = {"config.json", "char.dic", "token_embedder.pkl", "encoder.pkl"}
    assert {file.name for file in path.iterdir()} == names
    path = manylangs.write(tmp_path / "b", architecture, weights, architecture_file="relative")
    assert (path / json.loads((path / "config.json").read_text())["config_path"]).exists()


def test_published_sizes_of_manylangs() -> None:
    """The counts of floats that the specification gives."""
    sizes = manylangs.PUBLISHED_SIZES
    p, d = sizes["projection_dim"], sizes["dim"]
    assert network.total_filters(sizes) == 2048
    encoder = 4 * (4 * d * p + 4 * d * p + 4 * d + d * p)
    assert encoder == 75_563_008


# bilm-tf


def test_character_ids_of_bilm_tf() -> None:
    architecture = {"max_characters_per_token": 8}
    padding = bilm_tf.PADDING
    assert bilm_tf.character_ids(architecture, "aé") == [258, 97, 0xC3, 0xA9, 259, *[padding] * 3]
    assert bilm_tf.character_ids(architecture, "<S>") == [258, 256, 259, *[260] * 5]
    assert bilm_tf.character_ids(architecture, "</S>") == [258, 257, 259, *[260] * 5]
    # Six bytes are kept, also of a character.
    assert bilm_tf.character_ids(architecture, "河河河") == [258, *"河河".encode(), 259]
    assert bilm_tf.character_ids(architecture, "x河河河") == [258, *"x河河".encode()[:6], 259]
    assert bilm_tf.character_ids(architecture, "a\ud800") == [258, 97, 259, *[260] * 5]


def test_words_as_input() -> None:
    rng = numpy.random.default_rng(0)
    architecture = bilm_tf.random_architecture(rng, characters=False)
    weights = bilm_tf.random_weights(architecture, rng)
    layers = bilm_tf.reference(architecture, weights, [["the", "zzz", "<UNK>"]])[0]
    rows = weights["lm/embedding"][[3, 2, 2]]
    assert (layers[0] == numpy.concatenate([rows, rows], axis=1)).all()


def test_perplexity_of_a_bias() -> None:
    """Scores that depend on nothing but the word: probabilities are known."""
    rng = numpy.random.default_rng(1)
    architecture = bilm_tf.random_architecture(rng, characters=True)
    architecture["words"] = ["<S>", "</S>", "<UNK>", "the"]
    weights = bilm_tf.random_weights(architecture, rng)
    weights["lm/softmax/W"] = numpy.zeros_like(weights["lm/softmax/W"])
    weights["lm/softmax/b"] = numpy.zeros(4, "float32")
    flat = bilm_tf.reference_perplexity(architecture, weights, [["the"], ["the", "zzz"]])
    assert flat == pytest.approx({"forward": 4, "backward": 4, "both": 4})
    p = numpy.array([0.1, 0.2, 0.3, 0.4])
    weights["lm/softmax/b"] = numpy.log(p)
    (losses,) = bilm_tf.reference_losses(architecture, weights, [["the", "zzz"]])
    expected = [-numpy.log([0.4, 0.3, 0.2]), -numpy.log([0.1, 0.4, 0.3])]
    assert numpy.abs(losses - expected).max() < 1e-9
    found = bilm_tf.reference_perplexity(architecture, weights, [["the"], ["the", "zzz"]])
    forward = (0.4 * 0.2 * 0.4 * 0.3 * 0.2) ** (-1 / 5)
    backward = (0.4 * 0.1 * 0.4 * 0.3 * 0.1) ** (-1 / 5)
    both = (forward * backward) ** 0.5
    assert found == pytest.approx({"forward": forward, "backward": backward, "both": both})


@pytest.mark.parametrize("characters", [False, True])
def test_what_predictions_depend_on(characters: bool) -> None:
    """Each is that of the output layer on the vector before (after) the word, and sees no more."""
    rng = numpy.random.default_rng(4)
    architecture = bilm_tf.random_architecture(rng, characters=characters)
    architecture["words"] = words = ["<S>", "</S>", "<UNK>", "the", "bank", "river"]
    weights = bilm_tf.random_weights(architecture, rng)
    sentences = [["the", "bank", "river"], ["the", "bank", "the"], ["bank", "bank", "river"]]
    losses = bilm_tf.reference_losses(architecture, weights, sentences)
    assert (losses[0][0, :2] == losses[1][0, :2]).all() and losses[0][0, 3] != losses[1][0, 3]
    assert (losses[0][1, 2:] == losses[2][1, 2:]).all() and losses[0][1, 0] != losses[2][1, 0]
    p = architecture["projection_dim"]
    top = torch.from_numpy(bilm_tf.reference(architecture, weights, sentences[:1])[0][-1])
    w = weights.get("lm/softmax/W", weights.get("lm/embedding"))
    matrix = torch.from_numpy(w.astype("float64"))  # type: ignore[union-attr]
    scores = torch.stack([top[:, :p], top[:, p:]]) @ matrix.T
    scores += torch.from_numpy(weights["lm/softmax/b"].astype("float64"))
    ids = torch.tensor([[words.index(word) for word in ("<S>", *sentences[0], "</S>")]])
    targets = torch.cat([ids[:, 2:], ids[:, :-2]])
    expected = -scores.log_softmax(dim=2).gather(2, targets[..., None])[..., 0]
    assert numpy.abs(losses[0][0, 1:] - expected[0].numpy()).max() < 1e-9
    assert numpy.abs(losses[0][1, :-1] - expected[1].numpy()).max() < 1e-9


# Checkpoints


@pytest.mark.parametrize(
    "data, crc",
    [
        # RFC 3720, appendix B.4, with its bytes in the order of a little-endian number.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (
            bytes.fromhex("01c00000" + "0" * 24 + "14000000" + "00000400" + "00000014" + "00000018")
            + bytes.fromhex("28000000" + "0" * 8 + "02000000" + "0" * 8),
            0xD9963A56,
        ),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_checksums(data: bytes, crc: int) -> None:
    assert tensor_bundle.crc32c(data) == crc


def unmask(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


@pytest.mark.parametrize(
    "last, following, expected",
    [
        (b"lm/RNN_0", b"lm/softmax/W", b"lm/S"),
        (b"lm/b_cnn_1", b"lm/b_cnn_2", b"lm/b_cnn_1"),
        (b"lm/W", b"lm/W/Adagrad", b"lm/W"),
        (b"train", None, b"u"),
        (b"\xff\xfe", None, b"\xff\xff"),
        (b"\xff", None, b"\xff"),
    ],
)
def test_separators_of_blocks(last: bytes, following: bytes | None, expected: bytes) -> None:
    assert tensor_bundle.separator(last, following) == expected


def test_masked_checksums() -> None:
    for crc in (0, 1, 0xE3069283, 0xFFFFFFFF):
        assert unmask(tensor_bundle.mask(crc)) == crc != tensor_bundle.mask(crc)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if shift > 63 or place >= len(data):
            raise ValueError("endless number")
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def read_message(data: bytes) -> dict[int, list]:
    """The fields of a protocol buffer."""
    fields: dict[int, list] = {}
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        value: int | bytes
        if tag & 7 == 0:
            value, place = read_varint(data, place)
        elif tag & 7 in (2, 5):
            size, place = (4, place) if tag & 7 == 5 else read_varint(data, place)
            if size > len(data) - place:
                raise ValueError("field past the end")
            value, place = data[place : place + size], place + size
        else:
            raise ValueError("wire type")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def read_block(data: bytes, handle: bytes) -> list[tuple[bytes, bytes]]:
    offset, place = read_varint(handle, 0)
    size, _ = read_varint(handle, place)
    if offset + size + 5 > len(data) - 48:
        raise ValueError("block past the end")
    block, kind = data[offset : offset + size], data[offset + size]
    (masked,) = struct.unpack_from("<I", data, offset + size + 1)
    if unmask(masked) != tensor_bundle.crc32c(data[offset : offset + size + 1]):
        raise ValueError("checksum of a block")
    if kind != 0:
        raise ValueError("compressed")
    (count,) = struct.unpack_from("<I", block, size - 4)
    if not 0 < count <= (size - 4) // 4:
        raise ValueError("restarts")
    end = size - 4 - 4 * count
    restarts = set(struct.unpack_from(f"<{count}I", block, end))
    items: list[tuple[bytes, bytes]] = []
    place, key = 0, b""
    while place < end:
        shared_allowed = place not in restarts
        restarts.discard(place)
        shared, place = read_varint(block, place)
        fresh, place = read_varint(block, place)
        length, place = read_varint(block, place)
        if shared > len(key) or place + fresh + length > end or (shared and not shared_allowed):
            raise ValueError("entry past the end")
        key = key[:shared] + block[place : place + fresh]
        items.append((key, block[place + fresh : place + fresh + length]))
        place += fresh + length
    if restarts - {0}:
        raise ValueError("restarts between entries")
    return items


def read_table(data: bytes) -> list[tuple[bytes, bytes]]:
    """All entries, in their order, which the index must agree with."""
    if len(data) < 48 or struct.unpack("<Q", data[-8:])[0] != 0xDB4775248B80FB57:
        raise ValueError("no table")
    footer = data[-48:]
    place = 0
    for _ in range(2):
        _, place = read_varint(footer, place)
    items: list[tuple[bytes, bytes]] = []
    last = None
    for separator, handle in read_block(data, footer[place:]):
        block = read_block(data, handle)
        if last is not None and block[0][0] <= last:
            raise ValueError("index out of order")
        items, last = items + block, separator
        if separator < items[-1][0]:
            raise ValueError("index out of order")
    keys = [key for key, _ in items]
    if keys != sorted(set(keys)):
        raise ValueError("keys out of order")
    return items


def read_checkpoint(prefix: Path, checksums: bool = True) -> dict[str, ndarray]:
    """All tensors, by a reader that has nothing in common with the writer but the checksum."""
    items = read_table(prefix.with_name(f"{prefix.name}.index").read_bytes())
    if not items or items[0][0] != b"":
        raise ValueError("no header")
    header = read_message(items[0][1])
    count = header.get(1, [0])[0]
    if header.get(2, [0]) != [0] or read_message(header[3][0]) != {1: [1]} or not 0 < count < 100:
        raise ValueError("header")
    paths = [f"{prefix.name}.data-{i:05d}-of-{count:05d}" for i in range(count)]
    shards = [prefix.with_name(path).read_bytes() for path in paths]
    taken: list[list[tuple[int, int]]] = [[] for _ in shards]
    tensors = {}
    for key, value in items[1:]:
        fields = read_message(value)
        dtype = {1: "<f4", 3: "<i4", 9: "<i8"}.get(fields[1][0])
        dims = read_message(fields[2][0]).get(2, [])
        shape = [read_message(dim).get(1, [0])[0] for dim in dims]
        shard, offset, size = (fields.get(number, [0])[0] for number in (3, 4, 5))
        if dtype is None or 7 in fields or len(shape) > 8 or shard >= count:
            raise ValueError("entry")
        expected = int(dtype[-1])
        for length in shape:
            expected *= length
        if expected != size or offset + size > len(shards[shard]):
            raise ValueError("size")
        taken[shard].append((offset, offset + size))
        data = shards[shard][offset : offset + size]
        if checksums and unmask(struct.unpack("<I", fields[6][0])[0]) != tensor_bundle.crc32c(data):
            raise ValueError("checksum of a tensor")
        tensors[key.decode()] = numpy.frombuffer(data, dtype).reshape(shape)
    for spans in taken:
        spans.sort()
        if any(end > start for (_, end), (start, _) in pairwise(spans)):
            raise ValueError("overlap")
    return tensors


@pytest.mark.parametrize("shards, block_size", [(1, 262144), (3, 100), (2, 1)])
def test_checkpoints_are_read_back(tmp_path: Path, shards: int, block_size: int) -> None:
    architecture, weights, _ = random_model(bilm_tf, 1)
    prefix = bilm_tf.write(
        tmp_path, architecture, weights, num_shards=shards, block_size=block_size
    )
    assert len(list(tmp_path.glob("*.data-*"))) == shards
    found, expected = read_checkpoint(prefix), bilm_tf.variables(weights)
    assert set(found) == set(expected) and len(found) == 2 * len(weights) + 2
    assert found["global_step"].shape == ()
    for name, array in expected.items():
        assert found[name].shape == array.shape and (found[name] == array).all()


def test_names_of_a_checkpoint(tmp_path: Path) -> None:
    """As the specification's table has them; a single layer lacks a level."""
    rng = numpy.random.default_rng(0)
    for layers, level in ((1, ""), (2, "multi_rnn_cell/cell_1/")):
        architecture = bilm_tf.random_architecture(rng, n_layers=layers, characters=True)
        sizes = {"projection_dim": 2, "dim": 3, "n_highway": 1, "filters": [[1, 3]], "char_dim": 4}
        architecture |= sizes
        weights = bilm_tf.random_weights(architecture, rng)
        shapes = {name: array.shape for name, array in weights.items() if "CNN" in name}
        assert shapes == {
            "lm/CNN/W_cnn_0": (1, 1, 4, 3), "lm/CNN/b_cnn_0": (3,),
            "lm/CNN_high_0/W_carry": (3, 3), "lm/CNN_high_0/b_carry": (3,),
            "lm/CNN_high_0/W_transform": (3, 3), "lm/CNN_high_0/b_transform": (3,),
            "lm/CNN_proj/W_proj": (3, 2), "lm/CNN_proj/b_proj": (2,),
        }  # fmt: skip
        scope = f"lm/RNN_1/rnn/{level}lstm_cell/"
        shapes = {k[len(scope) :]: v.shape for k, v in weights.items() if k.startswith(scope)}
        assert shapes == {"kernel": (4, 12), "bias": (12,), "projection/kernel": (3, 2)}
        assert len([name for name in weights if "/RNN_" in name]) == 6 * layers
        assert weights["lm/char_embed"].shape == (261, 4)
        prefix = bilm_tf.write(tmp_path / str(layers), architecture, weights, old_names=True)
        old = [name for name in read_checkpoint(prefix) if name.startswith(scope)]
        parts = ("biases", "projection/weights", "weights")
        assert [name[len(scope) :] for name in old if "Adagrad" not in name] == list(parts)


def test_checkpoint_files(tmp_path: Path) -> None:
    architecture, weights, _ = random_model(bilm_tf, 1, omit_defaults=True, cell_clip=None)
    for kind, newest in (
        ("relative", "model.ckpt-1"),
        ("absolute", "/home/trainer/save/model.ckpt-1"),
    ):
        bilm_tf.write(tmp_path, architecture, weights, prefix="model.ckpt-1", checkpoint=kind)
        first = (tmp_path / "checkpoint").read_text().split("\n")[0]
        assert first == f'model_checkpoint_path: "{newest}"'
    options = json.loads((tmp_path / "options.json").read_text())
    assert options["bidirectional"] and "cell_clip" not in options["lstm"]
    lines = (tmp_path / "vocab.txt").read_text(encoding="utf8").split("\n")
    assert lines[:5] == ["<S>", "</S>", "<UNK>", "!!!MAXTERMID", "the"]
    assert len(lines) == len(architecture["words"]) + 2
    names = read_checkpoint(bilm_tf.write_unidirectional(tmp_path / "one"))
    assert "lm/rnn/multi_rnn_cell/cell_0/lstm_cell/kernel" in names
    assert not any("RNN_" in name for name in names)


# HDF5 and NLPL


def test_one_layer_hdf5(tmp_path: Path) -> None:
    architecture, weights, sentences = random_model(one_layer_hdf5, 0)
    found = one_layer_hdf5.read_hdf5(one_layer_hdf5.write(tmp_path, architecture, weights))
    assert set(found) == set(weights)
    assert all((found[name] == array).all() for name, array in weights.items())
    parts = {"W_0", "B"} | (
        {"W_P_0"} if architecture["dim"] != architecture["projection_dim"] else set()
    )
    cells = {f"RNN_{d}/RNN/LSTMCell/{part}" for d in range(2) for part in parts}
    assert {name for name in found if name.startswith("RNN")} == cells
    assert found["char_embed"].shape[0] == 261
    assert json.loads((tmp_path / "options.json").read_text())["char_cnn"]["n_characters"] == 262
    # The same tensors under the checkpoint's names give the same.
    checkpoint = one_layer_hdf5.to_checkpoint(architecture, weights)
    assert one_layer_hdf5.from_checkpoint(architecture, checkpoint).keys() == weights.keys()
    layers = one_layer_hdf5.reference(architecture, weights, sentences)
    assert differ(layers, bilm_tf.reference(architecture, checkpoint, sentences)) == 0


def test_files_of_nlpl(tmp_path: Path) -> None:
    for seed in SEEDS:
        architecture, weights, _ = random_model(nlpl, seed)
        path = nlpl.write(tmp_path / f"{seed}.zip", architecture, weights)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            names = set(archive.namelist())
            meta = json.loads(archive.read("meta.json"))
            assert meta["corpus"][0]["lemmatized"] is architecture["lemmatized"]
            contents = architecture["contents"]
            assert ("encoder.pkl" in names) == (contents == "manylangs")
            assert ("model.hdf5" in names) == ("hdf5" in contents)
            assert ("model.ckpt.index" in names) == ("checkpoint" in contents)
            assert ("checkpoint" in names) == (contents == "hdf5 and checkpoint")
            if contents == "manylangs":
                continue
            characters = json.loads(archive.read("options.json"))["char_cnn"]["n_characters"]
            assert characters == architecture["n_characters"]
            if "vocab.txt.gz" in names:
                text = gzip.decompress(archive.read("vocab.txt.gz")).decode()
                assert text == bilm_tf.vocabulary_text(architecture["model"])
            archive.extractall(tmp_path / str(seed))
        if "hdf5" in contents:
            found = one_layer_hdf5.read_hdf5(tmp_path / str(seed) / "model.hdf5")
            expected = one_layer_hdf5.from_checkpoint(architecture["model"], weights)
            assert set(found) == set(expected) and "softmax/W" not in found
        if "checkpoint" in contents:
            assert set(weights) < set(read_checkpoint(tmp_path / str(seed) / "model.ckpt"))
    folder = nlpl.write(tmp_path / "folder", architecture, weights, form="folder")
    assert {file.name for file in folder.iterdir()} == names


# AllenNLP


@pytest.mark.parametrize("seed", range(5))
def test_allennlp_is_bilm_tf_by_other_names(seed: int) -> None:
    """Another order of gates, another highway gate, another bias: the same vectors."""
    rng = numpy.random.default_rng(seed)
    architecture = bilm_tf.random_architecture(rng, characters=True) | {"filters": [[1, 4], [3, 5]]}
    architecture |= {"projection_dim": 4, "dim": 7, "use_skip_connections": True}
    checkpoint = bilm_tf.random_weights(architecture, rng)
    sentences = bilm_tf.random_sentences(architecture, rng)
    weights = network.cast(
        allennlp_archive.from_checkpoint(architecture, checkpoint), numpy.float64
    )
    expected = bilm_tf.reference(architecture, checkpoint, sentences)
    found = allennlp_archive.reference(architecture, weights, sentences)
    assert differ(found, expected) < 1e-6  # The forget bias plus one is rounded to float32.
    back = allennlp_archive.to_checkpoint(architecture, weights)
    assert set(back) == {name for name in checkpoint if "softmax" not in name}
    for name, array in back.items():
        assert array == pytest.approx(checkpoint[name], abs=1e-6)


def test_published_vectors(tmp_path: Path) -> None:
    """The weights and vectors that AllenNLP publishes for its own tests.

    The first sentence of each row starts from zero states; the files hold the last layer's halves.
    """
    folder = shared_path("fixtures/allennlp")
    rng = numpy.random.default_rng(0)
    architecture, weights = allennlp_archive.from_published(folder, "lm_weights.hdf5", rng)
    _, tensors = one_layer_hdf5.read_published(folder, "lm_weights.hdf5")
    checkpoint = one_layer_hdf5.to_checkpoint(architecture, tensors)
    rows = json.loads((folder / "sentences.json").read_text())
    sentences = [row[0].split() for row in rows]
    expected = [
        one_layer_hdf5.read_hdf5(folder / f"lm_embeddings_{i}.hdf5")["0"] for i in range(len(rows))
    ]
    families: tuple = ((bilm_tf, checkpoint), (allennlp_archive, weights))
    for family, arrays in families:
        for layers, halves in zip(family.reference(architecture, arrays, sentences), expected):
            assert numpy.abs(layers[2] - numpy.concatenate(list(halves), axis=1)).max() < 2e-6
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    with tarfile.open(path) as archive:
        state = torch.load(io.BytesIO(content(archive, "weights.th")), weights_only=True)
    first = f"{architecture['prefix']}_token_embedder.char_conv_0.weight"
    assert (tensors["CNN/W_cnn_0"][0] == state[first].numpy().T).all()
    words = (folder / "vocab_test.txt").read_text(encoding="utf8").split()
    tokens = one_layer_hdf5.read_hdf5(folder / "elmo_token_embeddings.hdf5")["embedding"]
    encoded = [bilm_tf.encode_token(architecture, checkpoint, word) for word in words]
    assert len(tokens) == len(words) and numpy.abs(encoded - tokens).max() < 2e-6


def test_mix_by_hand() -> None:
    architecture, weights, sentences = random_model(allennlp_archive, 3, n_layers=2, mixes=2)
    for k, score in enumerate(numpy.log([1, 2, 5])):
        weights[f"scalar_mix_1.scalar_parameters.{k}"] = numpy.array([score])
    weights["scalar_mix_1.gamma"] = numpy.array([2.0])
    layers = allennlp_archive.reference(architecture, weights, sentences)
    found = allennlp_archive.reference_mix(architecture, weights, sentences, mix=1)
    expected = [2 * (x[0] + 2 * x[1] + 5 * x[2]) / 8 for x in layers]
    assert differ(found, expected) < 1e-12
    assert differ(found, allennlp_archive.reference_mix(architecture, weights, sentences)) > 0.01


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_allennlp(tmp_path: Path, legacy: bool) -> None:
    for seed in SEEDS:
        architecture, weights, sentences = random_model(allennlp_archive, seed)
        path = tmp_path / f"{seed}.tar.gz"
        local_weights = architecture["local_options"] and seed % 2 == 0
        settings = {"legacy": legacy, "local_weights": local_weights}
        allennlp_archive.write(path, architecture, weights, **settings)
        with tarfile.open(path) as archive:
            names = archive.getnames()
            state = torch.load(io.BytesIO(content(archive, "weights.th")), weights_only=True)
            assert content(archive, "weights.th").startswith(b"\x80\x02" if legacy else b"PK")
            assert ("meta.json" in names) != legacy
            prefix = architecture["prefix"]
            mix = prefix.removesuffix("_elmo_lstm.") + "scalar_mix_0.gamma"
            assert mix in state and f"{prefix}_token_embedder._projection.bias" in state
            table = state[f"{prefix}_token_embedder._char_embedding_weights"]
            assert len(table) == 262 and not table[0].any()
            assert ("files_to_archive.json" in names) == architecture["local_options"]
            if architecture["local_options"]:
                key = f"fta/{allennlp_archive.OPTIONS_KEY}"
                lstm = json.loads(content(archive, key))["lstm"]
                assert lstm["cell_clip"] == architecture["cell_clip"]
            if local_weights:
                (tmp_path / "x").write_bytes(
                    content(archive, f"fta/{allennlp_archive.WEIGHTS_KEY}")
                )
                same = architecture | {"use_skip_connections": True}
                layers = one_layer_hdf5.reference(
                    same, one_layer_hdf5.read_hdf5(tmp_path / "x"), sentences
                )
                expected = allennlp_archive.reference(architecture, weights, sentences)
                assert differ(layers, expected) < 1e-5
    folder = allennlp_archive.write_folder(tmp_path / "folder", architecture, weights)
    assert {file.name for file in folder.iterdir()} >= {"best.th", "config.json", "vocabulary"}


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


# Hostile files


@pytest.mark.parametrize("container", malicious.CONTAINERS)
@pytest.mark.parametrize("kind", malicious.PICKLES)
def test_pickles_do_what_they_want(tmp_path: Path, kind: str, container: str) -> None:
    """Unless only weights are loaded."""
    marker, path = tmp_path / "marker", tmp_path / "weights"
    weights = {"weight": numpy.ones((2, 3), "float32")}
    path.write_bytes(malicious.torch_file(weights, kind, container, marker))
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(path, weights_only=True)
    assert not marker.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "persistent id" and container in ("zip", "magic"):
            with pytest.raises(Exception, match=r"persistent|unpack"):
                torch.load(path, weights_only=False)
        else:
            state = torch.load(path, weights_only=False)
            assert list(state) == ([] if container == "tar" else ["weight"])
    assert marker.is_dir()


def test_models_around_pickles(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    folder = malicious.pickled_manylangs(tmp_path / "model", "build", "legacy", marker)
    torch.load(folder / "token_embedder.pkl", map_location="cpu", weights_only=True)
    assert "forward_layer_0.input_linearity.weight" in torch.load(
        folder / "encoder.pkl", map_location="cpu", weights_only=False
    )
    assert marker.exists()
    marker.rmdir()
    path = malicious.pickled_allennlp(tmp_path / "model.tar.gz", "reduce", "zip", marker)
    with tarfile.open(path) as archive:
        torch.load(io.BytesIO(content(archive, "weights.th")), weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("kind", malicious.STATE_DICTS)
def test_useless_state_dicts(tmp_path: Path, kind: str) -> None:
    """They load in small memory: what is wrong is for the reader to see."""
    folder = malicious.state_dict(tmp_path, kind)
    assert (folder / "token_embedder.pkl").stat().st_size < 20_000
    state = torch.load(folder / "token_embedder.pkl", map_location="cpu", weights_only=True)
    _, weights = malicious.model(manylangs, seed=1)
    names = {name for name in weights if not name.startswith(manylangs.DIRECTIONS)}
    assert (kind in ("list", "numbered", "half empty")) != (set(state) == names)
    if kind in ("expanded", "sparse"):
        width = json.loads((folder / manylangs.BASENAMES[0]).read_text())["token_embedder"]
        assert state["word_emb_layer.embedding.weight"].shape[1] == width["word_dim"] == 1 << 40
        assert state["projection.weight"].is_sparse == (kind == "sparse")
    elif kind == "meta":
        assert state["projection.weight"].is_meta


@pytest.mark.parametrize("family", ["manylangs", "bilm_tf", "one_layer_hdf5"])
@pytest.mark.parametrize("kind", malicious.OPTIONS)
def test_absurd_options(tmp_path: Path, kind: str, family: str) -> None:
    malicious.absurd_options(tmp_path, kind, family)
    name = manylangs.BASENAMES[0] if family == "manylangs" else "options.json"
    text = (tmp_path / name).read_text()
    wanted = {"negative": '_dim": -', "nested": "[" * 100_000}.get(kind, str(1 << 33))
    assert wanted in text


@pytest.mark.parametrize("kind", unreadable.UNREADABLE)
def test_unreadable_files(tmp_path: Path, kind: str) -> None:
    path = unreadable.UNREADABLE[kind](tmp_path / "model")
    if kind == "TensorFlow Hub":
        assert "module/bilm/char_embed" in read_checkpoint(path / "variables" / "variables")
    elif kind == "flair":
        with pytest.raises(pickle.UnpicklingError, match=r"flair\.data\.Dictionary"):
            torch.load(path, weights_only=True)
    elif kind in ("transformer ELMo", "no ELMo"):
        with tarfile.open(path) as archive:
            state = torch.load(io.BytesIO(content(archive, "weights.th")), weights_only=True)
        assert not any("elmo" in name for name in state)
    elif kind in ("words", "characters"):
        name = {"words": "word", "characters": "char"}[kind]
        state = torch.load(path / "token_embedder.pkl", map_location="cpu", weights_only=True)
        lines = (path / f"{name}.dic").read_bytes().count(b"\n")
        assert lines > len(state[f"{name}_emb_layer.embedding.weight"])
    elif kind == "dictionary":
        with pytest.raises(ValueError, match="unpack"):
            manylangs.read_dictionary((path / "char.dic").read_text(encoding="utf8"))


def test_words_alone_in_manylangs(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    architecture = manylangs.random_architecture(rng, characters=False)
    weights = manylangs.random_weights(architecture, rng)
    path = manylangs.write(tmp_path / "model", architecture, weights)
    assert not (path / "char.dic").exists() and (path / "word.dic").exists()
    layers = manylangs.reference(architecture, weights, [["the", "zzz", "<oov>"]])[0]
    assert (layers[0, 1] == layers[0, 2]).all() and not (layers[0, 0] == layers[0, 1]).any()


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("kind", malicious.ZIP_SLIPS)
def test_zips_lead_outside(tmp_path: Path, kind: str, needed: bool) -> None:
    folder, marker = tmp_path / "unpacked", tmp_path / "marker"
    folder.mkdir()
    path = malicious.zip_slip(tmp_path / "x.zip", kind, marker, needed=needed)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for member in archive.infolist():
            if member.external_attr >> 28 == 0o12:
                (folder / member.filename).symlink_to(archive.read(member).decode())
                continue
            place = folder / member.filename.replace("\\", "/")
            if ".." not in member.filename or kind != "deep parent":
                place.parent.mkdir(parents=True, exist_ok=True)
            else:
                (folder / "xx.model").mkdir()
            place.write_bytes(archive.read(member))
    assert marker.read_bytes() == b"outside" or needed
    assert (folder / "encoder.pkl").exists() != needed
    if needed:
        torch.load(marker, map_location="cpu", weights_only=True)


def test_linked_member_of_a_zip(tmp_path: Path) -> None:
    path = malicious.zip_symlink(tmp_path / "x.zip", tmp_path / "outside")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("encoder.pkl").decode() == str(tmp_path / "outside")
    torch.load(tmp_path / "outside", map_location="cpu", weights_only=True)


def test_zeros_are_counted_right() -> None:
    for prefix, zeros in ((b"abc", 0), (b"", 1), (b"abc", 12345)):
        expected = zlib.crc32(prefix + bytes(zeros))
        assert malicious.crc_with_zeros(zlib.crc32(prefix), zeros) == expected


@pytest.mark.parametrize("kind", malicious.ZIP_BOMBS)
def test_zip_bombs(tmp_path: Path, kind: str) -> None:
    size = 1 << 24
    path = malicious.zip_bomb(tmp_path / "x.zip", kind, size)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        largest = max(members, key=lambda member: member.compress_size)
        if kind == "many":
            assert len(members) == 65535
        elif kind == "lying":
            largest = archive.getinfo("encoder.pkl")
            start = largest.header_offset + 30 + len(largest.filename)
            stream = path.read_bytes()[start : start + largest.compress_size]
            unpacked = zlib.decompress(stream, -15)
            assert len(unpacked) == largest.file_size + size
            with pytest.raises(zipfile.BadZipFile):
                archive.read("encoder.pkl")
        else:
            assert archive.testzip() is None
            name = manylangs.BASENAMES[0] if kind == "architecture" else kind
            unpacked = archive.read(name)
            unpacked = gzip.decompress(unpacked) if kind.endswith(".gz") else unpacked
            assert unpacked.endswith(bytes(size))
    assert path.stat().st_size < 6_000_000


def test_bombs_are_small_files(tmp_path: Path) -> None:
    path = malicious.zip_bomb(tmp_path / "x.zip", "encoder.pkl")
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("encoder.pkl").file_size > 3 << 30
    assert path.stat().st_size < 4_000_000


@pytest.mark.parametrize("kind", malicious.TAR_BOMBS)
def test_tar_bombs(tmp_path: Path, kind: str) -> None:
    size = 1 << 24
    path = malicious.tar_bomb(tmp_path / "x.tar.gz", kind, size)
    gzip.decompress(path.read_bytes())  # With its checksum.
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert max(member.size for member in members) >= size
        assert {"config.json", "weights.th", "meta.json"} <= {member.name for member in members}
        assert (members[0].name == "notes.txt") == (kind == "before")


@pytest.mark.parametrize("kind", malicious.TARS)
def test_tars_lead_outside(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "out" / "outside"
    outside.parent.mkdir()
    path = malicious.tar(tmp_path / "x.tar.gz", kind, outside)
    with tarfile.open(path) as archive:
        members = {member.name: member for member in archive.getmembers()}
        if kind != "absolute":  # The filter makes the name a relative one.
            with pytest.raises(tarfile.FilterError):
                archive.extractall(tmp_path / "safe", filter="data")
    if kind in ("symlink", "hard link"):
        weights = members["weights.th"]
        assert (weights.issym(), weights.islnk()) == (kind == "symlink", kind == "hard link")
        assert weights.linkname == str(outside)
        torch.load(outside, weights_only=True)
    elif kind == "device":
        assert members["weights.th"].ischr() and members["weights.th"].devminor == 5
    elif kind == "fifo":
        assert members["weights.th"].isfifo()
    elif kind == "linked folder":
        assert members["fta"].issym() and "fta/outside" in members
    else:
        assert {"parent": "../outside", "absolute": str(outside)}[kind] in members


@pytest.mark.parametrize("kind", malicious.HDF5)
def test_hostile_hdf5(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    path = malicious.hdf5(tmp_path / "model", kind, outside)
    _, weights = malicious.model(one_layer_hdf5, n_layers=2)
    leads_outside = kind in ("external storage", "external link", "virtual")
    assert outside.exists() == leads_outside
    with h5py.File(path) as file:
        if leads_outside:
            assert (file["char_embed"][()] == weights["char_embed"]).all()
            link = file.get("char_embed", getlink=True)
            assert isinstance(link, h5py.ExternalLink) == (kind == "external link")
            assert bool(file["char_embed"].external) == (kind == "external storage")
            assert file["char_embed"].is_virtual == (kind == "virtual")
        elif kind == "huge":
            options = json.loads((path.parent / "options.json").read_text())
            assert file["char_embed"].shape == (261, options["char_cnn"]["embedding"]["dim"])
            assert file["char_embed"].nbytes > 1 << 38 and path.stat().st_size < 1_000_000
        elif kind == "cycle":
            assert file["CNN/CNN/CNN/root/CNN"] == file["CNN"]
        elif kind == "strings":
            assert file["char_embed"].dtype == object
        else:
            assert isinstance(file["char_embed"], h5py.Group)


@pytest.mark.parametrize("kind", [*malicious.CHECKPOINTS, malicious.WRONG_TENSOR_CRC])
def test_damaged_checkpoints(tmp_path: Path, kind: str) -> None:
    """A careful reader refuses each of them."""
    prefix = malicious.checkpoint(tmp_path, kind)
    with pytest.raises((ValueError, FileNotFoundError, KeyError, IndexError)):
        read_checkpoint(prefix)
    if kind == malicious.WRONG_TENSOR_CRC:
        assert read_checkpoint(prefix, checksums=False)


def test_parts_of_damaged_checkpoints() -> None:
    """The parts that they are made of are right where nothing is damaged."""
    _, weights = malicious.model(bilm_tf, seed=6, characters=True, n_layers=2)
    items = malicious.table_items(bilm_tf.variables(weights))
    assert read_table(malicious.table_around(tensor_bundle.block(items))) == items
    assert read_table(tensor_bundle.table(items)) == items
