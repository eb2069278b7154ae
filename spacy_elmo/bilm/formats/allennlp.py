"""The published format: `options.json` and an HDF5 file, as bilm-tf and AllenNLP read and write.

Weights are stored as (input, output). The character table has 261 rows, without the masking row
that the models add at run time; files that already hold that row, as zeros, have 262.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

import h5py
import numpy
import torch

from ...files import atomic_folder
from ..config import N_CHARACTERS, BiLMConfig
from ..model import BiLM
from .options import OPTIONS, read_files_beside, write_options
from .parameters import check_names, check_tensor, empty_model, stored_tensors, to_float32
from .safe_hdf5 import Dataset, check_dataset, check_sizes, open_datasets, read_values

NAME = "hdf5"
DESCRIPTION = "the format of AllenNLP and bilm-tf"
SUFFIXES = (".hdf5", ".h5")
WEIGHTS = "weights.hdf5"
_CHARACTERS = "char_embed"
# Other groups, such as the softmax of a training dump, are ignored.
_GROUPS = ("char_embed", "embedding", "CNN", "RNN_")

# Two functions that change axes: from the file to the model, and back.
Layout = tuple[Callable[[numpy.ndarray], numpy.ndarray], Callable[[numpy.ndarray], numpy.ndarray]]
SAME: Layout = (lambda x: x, lambda x: x)
TRANSPOSED: Layout = (numpy.transpose, numpy.transpose)
# (1, width, dim, number) <-> (number, dim, width)
CONVOLUTION: Layout = (lambda x: x[0].transpose(2, 1, 0), lambda x: x.transpose(2, 1, 0)[None])
# The model's first row is the masking row.
MASKED: Layout = (lambda x: numpy.concatenate((numpy.zeros_like(x[:1]), x)), lambda x: x[1:])


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
            for gate in ("carry", "transform"):
                linear = f"token_encoder.highways.{i}.{gate}"
                names[f"CNN_high_{i}/W_{gate}"] = f"{linear}.weight", TRANSPOSED
                names[f"CNN_high_{i}/b_{gate}"] = f"{linear}.bias", SAME
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


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is an HDF5 file."""
    return start.startswith(b"\x89HDF\r\n\x1a\n")


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read an HDF5 file of weights.

    RAISES (ValueError): If the file is damaged or contradicts the options. The message names the
        dataset, the expected and the actual shape.
    """
    config, vocabulary = read_files_beside(path, options)
    if config is None:
        raise ValueError(
            f"no options for {path}: put {OPTIONS} (or the published *_options.json) beside it"
        )
    with open_datasets(path, _GROUPS) as datasets:
        if "RNN_0/RNN/LSTMCell/W_0" in datasets:
            raise ValueError(
                f"{path} holds a single LSTM layer per direction, under names of bilm-tf that are "
                "not read yet: with h5py, move RNN_0/RNN/LSTMCell to "
                "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell, and RNN_1/RNN/LSTMCell likewise"
            )
        config = _with_projection_as_stored(config, datasets)
        names = name_map(config)
        check_names(path, names, datasets)
        model = empty_model(config, vocabulary, path)
        parameters = dict(model.named_parameters())
        for dataset, (name, (_, to_file)) in names.items():
            # An array of this shape that takes no memory.
            empty = numpy.broadcast_to(numpy.False_, parameters[name].shape)
            _check(path, dataset, to_file(empty).shape, datasets[dataset])
        check_sizes(path, datasets)
        values = {}
        for dataset, (name, (to_model, _)) in names.items():
            array = read_values(path, dataset, datasets[dataset])
            if dataset == _CHARACTERS and len(array) == N_CHARACTERS:
                # 262 rows: a masking row of zeros in front, or, in a model trained with
                # n_characters = 262, a last row that no character uses.
                array = array[:-1] if array[0].any() else array[1:]
            tensor = torch.from_numpy(numpy.ascontiguousarray(to_model(array)))
            values[name] = to_float32(path, dataset, tensor)
    model.load_state_dict(values, assign=True)
    return model


def _check(path: Path, name: str, expected: tuple[int, ...], dataset: Dataset) -> None:
    """RAISES (ValueError): If the dataset is not what the options require. It is not read."""
    check_dataset(path, name, dataset)
    shape = dataset.shape
    if name == _CHARACTERS and shape and shape[0] == N_CHARACTERS:
        shape = (N_CHARACTERS - 1, *shape[1:])
    check_tensor(path, name, expected, shape, dataset.dtype.name)


def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder of `options.json`, `weights.hdf5` and, for word input, `vocab.txt`.
    An existing folder is replaced when the new one is complete.

    half (bool): Write float16. The default is float32, which all other ELMo software reads.
    """
    tensors = stored_tensors(model, torch.float16 if half else torch.float32)
    with atomic_folder(folder) as new:
        with h5py.File(new / WEIGHTS, "w") as file:
            for dataset, (name, (_, to_file)) in name_map(model.config).items():
                file[dataset] = to_file(tensors[name].numpy())
        write_options(model.config, model.vocabulary, new)


def _with_projection_as_stored(config: BiLMConfig, datasets: Mapping[str, Dataset]) -> BiLMConfig:
    """The options do not say whether a projection ends the character encoder. bilm-tf leaves it
    out where widths agree, AllenNLP never does: follow the file."""
    if config.char_cnn is None or config.has_char_projection or "CNN_proj/W_proj" not in datasets:
        return config
    return replace(config, char_cnn=replace(config.char_cnn, projection=True))
