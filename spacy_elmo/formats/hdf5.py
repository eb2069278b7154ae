"""The published format: `options.json` and an HDF5 file, as bilm-tf and AllenNLP read and write.

Weights are stored as (input, output). The character table has 261 rows, without the masking row
that the models add at run time; files that already hold that row, as zeros, have 262.

A file may refer to others for its data, declare more than it holds, or be compressed, without a
limit to what a chunk inflates to: all this is refused. Links are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Optional, TypeVar

import h5py
import numpy
import torch

from ..bilm.config import N_CHARACTERS, BiLMConfig
from ..bilm.model import BiLM
from ..files import atomic_folder
from ..parallel import no_fork
from .options import read_files_beside, write_options
from .parameters import empty_model, fill, stored_tensor, to_float32, with_projections

NAME = "hdf5"
DESCRIPTION = "the format of AllenNLP and bilm-tf"
SUFFIXES = (".hdf5", ".h5")
WEIGHTS = "weights.hdf5"
# Other groups, such as the softmax of a training dump, are ignored.
GROUPS = ("char_embed", "embedding", "CNN", "RNN_")
_CELL = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell"
# bilm-tf's dump_weights.py leaves out a level for a single layer, and cannot read that itself.
_SINGLE = "/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"


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
NameMap = dict[str, tuple[str, Layout]]
Stored = TypeVar("Stored")


def name_map(config: BiLMConfig) -> NameMap:
    """RETURNS (dict): For each tensor of the file, the model's parameter and the layout."""
    names: NameMap = {}
    if config.char_cnn is None:
        names["embedding"] = "token_encoder.embedding.weight", SAME
    else:
        names["char_embed"] = "token_encoder.char_embedding.weight", MASKED
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
            layer, cell = f"lstm.{direction}.{i}", _CELL.format(number, i)
            names[f"{cell}/W_0"] = f"{layer}.gate_weight", TRANSPOSED
            names[f"{cell}/B"] = f"{layer}.gate_bias", SAME
            if config.lstm.has_projection:
                names[f"{cell}/W_P_0"] = f"{layer}.projection_weight", TRANSPOSED
    return names


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is an HDF5 file."""
    return start.startswith(b"\x89HDF\r\n\x1a\n")


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read an HDF5 file of weights."""
    config, vocabulary = read_files_beside(path, options)
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith(GROUPS):
            datasets[name.replace(*_SINGLE)] = item

    with h5py.File(path, "r") as file:
        file.visititems(visit)
        _check_storage(datasets, path.stat().st_size)
        return build(config, vocabulary, datasets, _read_values)


def _check_storage(datasets: Mapping[str, h5py.Dataset], size: int) -> None:
    """RAISES (ValueError): If data are not in the file, as they are."""
    n_declared = 0
    for name, item in datasets.items():
        n_declared += item.nbytes
        is_elsewhere = item.is_virtual or item.external
        has_filters = item.id.get_create_plist().get_nfilters() > 0
        is_partial = item.nbytes > item.id.get_storage_size() or n_declared > size
        if is_elsewhere or has_filters or is_partial:
            raise ValueError(
                f"the data of {name} are in other files, compressed or otherwise filtered, or not "
                "complete: refused. Where you trust the file, store them as they are (h5repack -f "
                "NONE)"
            )


def _read_values(item: h5py.Dataset) -> numpy.ndarray:
    return numpy.asarray(item[()], dtype=item.dtype.newbyteorder("="))


def build(
    config: BiLMConfig,
    vocabulary: Optional[Sequence[str]],
    tensors: Mapping[str, Stored],
    read_values: Callable[[Stored], numpy.ndarray],
) -> BiLM:
    """RETURNS (BiLM): A model of tensors in bilm-tf's layout, which are read one by one."""
    # bilm-tf leaves out projections where widths agree, AllenNLP never does: follow the file.
    has_lstm_projection = f"{_CELL.format(0, 0)}/W_P_0" in tensors
    config = with_projections(config, "CNN_proj/W_proj" in tensors, has_lstm_projection)
    names, weights = name_map(config), {}
    for tensor, stored in tensors.items():
        name, (to_model, _) = names.get(tensor, (tensor, SAME))
        array = numpy.ascontiguousarray(to_model(read_values(stored)))
        weights[name] = to_float32(tensor, torch.from_numpy(array))
    model = empty_model(config, vocabulary)
    fill(model, weights)
    return model


@no_fork()
def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder; with `half`, float16. All other ELMo software reads float32.
    RAISES (ValueError): If the model has settings that the format does not know."""
    if model.config.char_cnn is not None and model.config.char_cnn.characters is not None:
        raise ValueError(
            "the published layout (HDF5) cannot hold the Unicode characters and word embeddings of "
            "ELMoForManyLangs: use the safetensors format (--format safetensors)"
        )
    dtype = torch.float16 if half else torch.float32
    tensors = {name: stored_tensor(name, x, dtype) for name, x in model.named_parameters()}
    with atomic_folder(folder) as new:
        with h5py.File(new / WEIGHTS, "w") as file:
            for dataset, (name, (_, to_file)) in name_map(model.config).items():
                file[dataset] = to_file(tensors[name].numpy())
        write_options(model.config, model.vocabulary, new)
