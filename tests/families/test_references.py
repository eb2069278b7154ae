"""The references and writers themselves, checked against what is known without them."""

from __future__ import annotations

import json
import pickle
import tarfile
from io import BytesIO
from pathlib import Path

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
    one_layer_hdf5,
)
from .network import Architecture, Weights, random_model


def differ(first: list[ndarray], second: list[ndarray]) -> float:
    return max(float(numpy.abs(x - y).max()) for x, y in zip(first, second, strict=True))


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
        ("New York", 7, [19, 16, 5, 16, 16, 16, 2, 11, 10, 18, 17, 17]),
        ("riverriverriver", 0, [19, *[11, 12, 13, 5, 11] * 2, 18]),
        ("<bos>", 1, [19, 14, 18, *[17] * 9]),
        ("<pad>", 3, [19, 0, 16, 8, 16, 4, 18, *[17] * 5]),
        ("\u3000", 8, [19, 20, 18, *[17] * 9]),
        ("", 0, [19, 18, *[17] * 10]),
    ],
)
def test_ids_of_manylangs(
    dictionaries: Architecture, token: str, word: int, characters: list[int]
) -> None:
    assert manylangs.token_ids(dictionaries, token) == (word, characters)


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


# bilm-tf


def test_published_vectors(tmp_path: Path) -> None:
    """The weights and vectors that AllenNLP publishes for its own tests.

    The first sentence of each row starts from zero states; the files hold the last layer's halves.
    """
    folder = shared_path("fixtures/allennlp")
    rng = numpy.random.default_rng(0)
    architecture, weights = allennlp_archive.from_published(folder, "lm_weights.hdf5", rng)
    checkpoint = architecture["checkpoint"]
    rows = json.loads((folder / "sentences.json").read_text())
    sentences = [row[0].split() for row in rows]
    expected = [
        one_layer_hdf5.read_hdf5(folder / f"lm_embeddings_{i}.hdf5")["0"] for i in range(len(rows))
    ]
    for layers, halves in zip(bilm_tf.reference(architecture, checkpoint, sentences), expected):
        assert numpy.abs(layers[2] - numpy.concatenate(list(halves), axis=1)).max() < 2e-6
    path = allennlp_archive.write(tmp_path / "model.tar.gz", architecture, weights)
    with tarfile.open(path) as archive:
        state = torch.load(BytesIO(archive.extractfile("weights.th").read()), weights_only=True)  # type: ignore[union-attr]
    first = f"{architecture['prefix']}_token_embedder.char_conv_0.weight"
    assert (checkpoint["lm/CNN/W_cnn_0"][0] == state[first].numpy().T).all()
    words = (folder / "vocab_test.txt").read_text(encoding="utf8").split()
    tokens = one_layer_hdf5.read_hdf5(folder / "elmo_token_embeddings.hdf5")["embedding"]
    encoded = [bilm_tf.encode_token(architecture, checkpoint, word) for word in words]
    assert len(tokens) == len(words) and numpy.abs(encoded - tokens).max() < 2e-6


@pytest.mark.parametrize("legacy", [True, False])
def test_pickles_do_what_they_want(tmp_path: Path, legacy: bool) -> None:
    """Unless only weights are loaded."""
    marker, path = tmp_path / "marker", tmp_path / "weights"
    weights = {"weight": numpy.ones((2, 3), "float32")}
    path.write_bytes(malicious.pickled(weights, marker, legacy=legacy))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    assert not marker.exists()
    assert list(torch.load(path, weights_only=False)) == ["weight"]
    assert marker.is_dir()
