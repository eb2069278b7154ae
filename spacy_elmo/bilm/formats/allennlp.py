"""The published format: `options.json` and an HDF5 file, as bilm-tf and AllenNLP read and write.

Weights are stored as (input, output). The character table has 261 rows, without the masking row
that the models add at run time; files that already hold that row, as zeros, have 262.
"""

from __future__ import annotations

from collections.abc import Callable, Container
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
from .parameters import check_tensors, empty_model, stored_tensors, to_float32
from .safe_hdf5 import check_storage, open_datasets, read_values

NAME = "hdf5"
DESCRIPTION = "the format of AllenNLP and bilm-tf"
SUFFIXES = (".hdf5", ".h5")
WEIGHTS = "weights.hdf5"
_CHARACTERS = "char_embed"
# Other groups, such as the softmax of a training dump, are ignored.
_GROUPS = ("char_embed", "embedding", "CNN", "RNN_")


def _add_masking_row(table: numpy.ndarray) -> numpy.ndarray:
    """A file of 262 rows has a masking row of zeros in front, or, of a model trained with
    n_characters = 262, a last row that no character uses."""
    if len(table) == N_CHARACTERS:
        table = table[:-1] if table[0].any() else table[1:]
    return numpy.concatenate((numpy.zeros_like(table[:1]), table))


# Two functions that change axes: from the file to the model, and back.
Layout = tuple[Callable[[numpy.ndarray], numpy.ndarray], Callable[[numpy.ndarray], numpy.ndarray]]
SAME: Layout = (lambda x: x, lambda x: x)
TRANSPOSED: Layout = (numpy.transpose, numpy.transpose)
# (1, width, dim, number) <-> (number, dim, width)
CONVOLUTION: Layout = (lambda x: x[0].transpose(2, 1, 0), lambda x: x.transpose(2, 1, 0)[None])
MASKED: Layout = (_add_masking_row, lambda x: x[1:])


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
        _check_layout(config, path)
        config = _with_stored_projections(config, datasets)
        names = name_map(config)
        model = empty_model(config, vocabulary, path)
        parameters = dict(model.named_parameters())
        expected, stored = {}, {}
        for dataset, (name, (_, to_file)) in names.items():
            # An array of this shape that takes no memory.
            empty = numpy.broadcast_to(numpy.False_, parameters[name].shape)
            expected[dataset] = to_file(empty).shape
        for dataset, item in datasets.items():
            shape = item.shape
            if dataset == _CHARACTERS and shape and shape[0] == N_CHARACTERS:
                shape = (N_CHARACTERS - 1, *shape[1:])
            stored[dataset] = shape, item.dtype.name
        check_tensors(path, expected, stored)
        check_storage(path, datasets)
        values = {}
        for dataset, (name, (to_model, _)) in names.items():
            array = to_model(read_values(path, dataset, datasets[dataset]))
            tensor = torch.from_numpy(numpy.ascontiguousarray(array))
            values[name] = to_float32(path, dataset, tensor)
    model.load_state_dict(values, assign=True)
    return model


def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder of `options.json`, `weights.hdf5` and, for word input, `vocab.txt`.
    An existing folder is replaced when the new one is complete.

    half (bool): Write float16. The default is float32, which all other ELMo software reads.
    RAISES (ValueError): If the model has settings that the format does not know.
    """
    _check_layout(model.config, folder)
    tensors = stored_tensors(model, torch.float16 if half else torch.float32)
    with atomic_folder(folder) as new:
        with h5py.File(new / WEIGHTS, "w") as file:
            for dataset, (name, (_, to_file)) in name_map(model.config).items():
                file[dataset] = to_file(tensors[name].numpy())
        write_options(model.config, model.vocabulary, new)


def _check_layout(config: BiLMConfig, path: Path) -> None:
    """RAISES (ValueError): If the biLM has more than the published layout."""
    if config.char_cnn is not None and config.char_cnn.characters is not None:
        words = " and word embeddings beside them" if config.char_cnn.word_dim else ""
        raise ValueError(
            f"{path}: the published layout (HDF5) has byte characters only. It cannot hold the "
            f"Unicode characters{words} of this biLM, which is of the kind of ELMoForManyLangs: "
            "use the safetensors format (spacy elmo export --format safetensors)"
        )


def _with_stored_projections(config: BiLMConfig, datasets: Container[str]) -> BiLMConfig:
    """The options do not say whether projections end the character encoder and the LSTM layers.
    bilm-tf leaves them out where widths agree, AllenNLP never does: follow the file."""
    char_cnn, lstm = config.char_cnn, config.lstm
    if char_cnn and not config.has_char_projection and "CNN_proj/W_proj" in datasets:
        config = replace(config, char_cnn=replace(char_cnn, projection=True))
    if not lstm.has_projection and "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0" in datasets:
        config = replace(config, lstm=replace(lstm, projection=True))
    return config
