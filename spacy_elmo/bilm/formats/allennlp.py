"""The published format: `options.json` and an HDF5 file, as bilm-tf and AllenNLP read and write.

Weights stand as (input, output). The character table has 261 rows, without the masking row that
the models add at run time; files that already hold that row, as zeros, have 262.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

import h5py
import numpy
import torch

from ...files import atomic_folder
from ..config import N_CHARACTERS, BiLMConfig
from ..model import BiLM
from .parameters import check_names, check_shape, empty_model, fill, stored_tensors

WEIGHTS = "weights.hdf5"
_CHARACTERS = "char_embed"
# Everything else in a file (the softmax of a training dump) is not ours to judge.
_OUR_GROUPS = ("char_embed", "embedding", "CNN", "RNN_")


@dataclass(frozen=True)
class Layout:
    """A two-way change of axes between the file and the model."""

    to_model: Callable[[numpy.ndarray], numpy.ndarray]
    to_file: Callable[[numpy.ndarray], numpy.ndarray]


SAME = Layout(lambda x: x, lambda x: x)
TRANSPOSED = Layout(numpy.transpose, numpy.transpose)
# (1, width, dim, number) <-> (number, dim, width)
CONVOLUTION = Layout(lambda x: x[0].transpose(2, 1, 0), lambda x: x.transpose(2, 1, 0)[None])
# The model's first row is the masking row.
MASKED = Layout(
    lambda x: numpy.concatenate((numpy.zeros_like(x[:1]), x)),
    lambda x: x[1:],
)


def name_map(config: BiLMConfig) -> dict[str, tuple[str, Layout]]:
    """RETURNS (dict): For each dataset of the file, the model's parameter and the layout."""
    names: dict[str, tuple[str, Layout]] = {}
    if config.char_cnn is None:
        names["embedding"] = "token_encoder.embedding.weight", SAME
    else:
        names[_CHARACTERS] = "token_encoder.char_embedding.weight", MASKED
        for i in range(len(config.char_cnn.filters)):
            conv = f"token_encoder.convolutions.{i}"
            names[f"CNN/W_cnn_{i}"] = f"{conv}.weight", CONVOLUTION
            names[f"CNN/b_cnn_{i}"] = f"{conv}.bias", SAME
        for i in range(config.char_cnn.n_highway):
            for part in ("carry", "transform"):
                linear = f"token_encoder.highways.{i}.{part}"
                names[f"CNN_high_{i}/W_{part}"] = f"{linear}.weight", TRANSPOSED
                names[f"CNN_high_{i}/b_{part}"] = f"{linear}.bias", SAME
        if config.has_char_projection:
            names["CNN_proj/W_proj"] = "token_encoder.projection.weight", TRANSPOSED
            names["CNN_proj/b_proj"] = "token_encoder.projection.bias", SAME
    for number, direction in enumerate(("forward_layers", "backward_layers")):
        for i in range(config.lstm.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            layer = f"lstm.{direction}.{i}"
            names[f"{cell}/W_0"] = f"{layer}.gate_weight", TRANSPOSED
            names[f"{cell}/B"] = f"{layer}.gate_bias", SAME
            if config.lstm.has_projection:
                names[f"{cell}/W_P_0"] = f"{layer}.projection_weight", TRANSPOSED
    return names


def read(path: Path, config: BiLMConfig, vocabulary: Optional[Sequence[str]] = None) -> BiLM:
    """Read an HDF5 file of weights.

    RAISES (ValueError): If the file is damaged or contradicts the options; the message names the
        dataset with the expected and the found shape.
    """
    try:
        with h5py.File(path, "r") as file:
            arrays = _datasets(file)
    except (OSError, RuntimeError, KeyError, TypeError) as error:  # h5py raises all of them.
        raise ValueError(f"{path} is not a complete HDF5 file: {error}") from error
    config = _with_projection_as_stored(config, arrays)
    names = name_map(config)
    check_names(path, names, arrays)
    for dataset, array in arrays.items():
        if array.dtype.kind != "f":
            raise ValueError(f"{path}: {dataset} does not hold real numbers, but {array.dtype}")
    if _CHARACTERS in arrays and arrays[_CHARACTERS].shape[:1] == (N_CHARACTERS,):
        arrays[_CHARACTERS] = _without_extra_row(arrays[_CHARACTERS])
    model = empty_model(config, vocabulary)
    parameters = dict(model.named_parameters())
    tensors = {}
    for dataset, array in arrays.items():
        name, layout = names[dataset]
        expected = layout.to_file(numpy.empty(parameters[name].shape, dtype=bool)).shape
        check_shape(path, dataset, expected, array.shape)
        tensors[name] = torch.from_numpy(numpy.ascontiguousarray(layout.to_model(array)))
    return fill(model, tensors, path)


def write(model: BiLM, folder: Path) -> None:
    """Write a folder of `options.json`, `weights.hdf5` and, for word input, `vocab.txt`.
    An existing folder is replaced when the new one is complete."""
    from . import write_options

    tensors = stored_tensors(model)
    with atomic_folder(folder) as new:
        with h5py.File(new / WEIGHTS, "w") as file:
            for dataset, (name, layout) in name_map(model.config).items():
                file[dataset] = layout.to_file(tensors[name].numpy())
        write_options(model.config, model.vocabulary, new)


def _datasets(file: h5py.File) -> dict[str, numpy.ndarray]:
    arrays: dict[str, numpy.ndarray] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith(_OUR_GROUPS):
            arrays[name] = numpy.asarray(item[()])

    file.visititems(visit)
    return arrays


def _with_projection_as_stored(config: BiLMConfig, arrays: dict[str, numpy.ndarray]) -> BiLMConfig:
    """The options do not say whether a projection ends the character encoder. bilm-tf leaves it
    out where widths agree, AllenNLP never does: follow the file."""
    if config.char_cnn is None or config.has_char_projection or "CNN_proj/W_proj" not in arrays:
        return config
    return replace(config, char_cnn=replace(config.char_cnn, projection=True))


def _without_extra_row(table: numpy.ndarray) -> numpy.ndarray:
    """262 rows: a masking row of zeros in front, or, in a model trained with n_characters = 262, a
    last row that no character uses."""
    return table[:-1] if table[0].any() else table[1:]
