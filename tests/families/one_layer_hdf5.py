"""bilm-tf's HDF5 files of one layer: without the level `MultiRNNCell` (section B.3).

Deeper ones, with that level, are written alike: `write` takes any number of layers. Architectures
are those of `bilm_tf`, weights have the names of the datasets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy
from numpy import ndarray

from . import bilm_tf
from .network import Architecture, Weights

PARTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}


def random_architecture(rng: numpy.random.Generator, n_layers: int = 1) -> Architecture:
    """As `bilm_tf.random_architecture`, with characters as input."""
    return bilm_tf.random_architecture(rng, n_layers=n_layers, characters=True)


def dataset_names(architecture: Architecture) -> dict[str, str]:
    """From names of the checkpoint's LSTM variables to names of datasets."""
    names = {}
    for direction in range(2):
        for layer in range(architecture["n_layers"]):
            level = f"MultiRNNCell/Cell{layer}/" if architecture["n_layers"] > 1 else ""
            for part, dataset in PARTS.items():
                scope = bilm_tf.cell_scope(architecture, direction, layer)
                names[scope + part] = f"RNN_{direction}/RNN/{level}LSTMCell/{dataset}"
    return names


def from_checkpoint(architecture: Architecture, weights: Weights) -> Weights:
    """What dumping a checkpoint leaves: all but the output layer, under other names."""
    names = dataset_names(architecture)
    return {
        names.get(name, name.removeprefix("lm/")): array
        for name, array in weights.items()
        if not name.startswith("lm/softmax/")
    }


def to_checkpoint(architecture: Architecture, weights: Weights) -> Weights:
    names = {dataset: name for name, dataset in dataset_names(architecture).items()}
    return {names.get(name, f"lm/{name}"): array for name, array in weights.items()}


def random_weights(architecture: Architecture, rng: numpy.random.Generator) -> Weights:
    return from_checkpoint(architecture, bilm_tf.random_weights(architecture, rng))


random_sentences = bilm_tf.random_sentences
options = bilm_tf.options


def write(
    path: Path,
    architecture: Architecture,
    weights: Weights,
    *,
    name: str = "weights.hdf5",
    n_characters: int = 262,
) -> Path:
    """A folder of options.json and the weights.

    RETURNS (Path): The file of weights.
    """
    path.mkdir(parents=True, exist_ok=True)
    settings = options(architecture, n_characters)
    (path / "options.json").write_text(json.dumps(settings))
    write_hdf5(path / name, weights)
    return path / name


def write_hdf5(path: Path, weights: Weights) -> None:
    with h5py.File(path, "w") as file:
        for name, array in weights.items():
            file.create_dataset(name, data=array)


def read_published(folder: Path, name: str) -> tuple[Architecture, Weights]:
    """The architecture and the datasets of published files: options.json and the weights' name."""
    settings = json.loads((folder / "options.json").read_text())
    char_cnn = settings["char_cnn"]
    names = ("filters", "n_highway", "activation", "max_characters_per_token")
    architecture = settings["lstm"] | {key: char_cnn[key] for key in names}
    architecture |= {"char_dim": char_cnn["embedding"]["dim"], "words": []}
    architecture |= {"share_embedding_softmax": False}
    return architecture, read_hdf5(folder / name)


def read_hdf5(path: Path) -> Weights:
    """All datasets of a file."""
    found = {}

    def visit(name: str, node: h5py.HLObject) -> None:
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def reference(
    architecture: Architecture, weights: Weights, sentences: Sequence[Sequence[str]]
) -> list[ndarray]:
    """All layers of every sentence from zero states, shape (L + 1, tokens, 2P) each."""
    return bilm_tf.reference(architecture, to_checkpoint(architecture, weights), sentences)
