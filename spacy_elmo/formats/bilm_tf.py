"""TensorFlow checkpoints of bilm-tf, with the output layer.

The variables are those of its `bilm/training.py`: what `bin/dump_weights.py` writes as HDF5 (see
`hdf5`) under other names, the output layer, and the optimizer's, which are not read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor

from ..bilm.model import BiLM
from .hdf5 import GROUPS, build
from .options import VOCABULARY, read_files_beside, read_vocabulary
from .parameters import to_float32
from .tensor_bundle import StoredTensor, read_index, read_tensor

NAME = "bilm-tf"
DESCRIPTION = "a TensorFlow checkpoint of bilm-tf"
SUFFIXES = ()
# What LSTMs are called, and what it becomes in HDF5; a single layer lacks a level.
_RENAMED = {
    "/rnn/lstm_cell/": "/rnn/multi_rnn_cell/cell_0/lstm_cell/",
    "/rnn/multi_rnn_cell/cell_": "/RNN/MultiRNNCell/Cell",
    "/lstm_cell/projection/kernel": "/LSTMCell/W_P_0",
    "/lstm_cell/kernel": "/LSTMCell/W_0",
    "/lstm_cell/bias": "/LSTMCell/B",
}
_FILE = re.compile(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})", re.DOTALL)
# The file that says which checkpoint of a folder is the newest.
_STATE = "checkpoint"
_NEWEST = re.compile(rb'model_checkpoint_path:\s*"([^"]*)"')


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is a folder of checkpoints, or a file of one by its name."""
    if path.is_dir():
        return any(_FILE.fullmatch(file.name) for file in path.iterdir())
    return bool(_FILE.fullmatch(path.name)) or start.startswith(b"model_checkpoint_path")


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read a checkpoint: a folder, the file `checkpoint` in it, or any file of a checkpoint."""
    path = find_index(path)
    config, vocabulary = read_files_beside(path, options)
    tensors = {k: v for k, v in _read_variables(path).items() if k.startswith(GROUPS)}
    return build(config, vocabulary, tensors, read_tensor)


@torch.inference_mode(False)  # Else the weights could never be trained.
def read_output_layer(path: Path) -> tuple[list[str], Tensor, Tensor, bool]:
    """RETURNS (tuple): The output layer of a checkpoint, whose words are in `vocab.txt` beside it.
    See `formats`.
    RAISES (ValueError): If there is none, or a file is missing, damaged or of another model."""
    path = find_index(path)
    vocabulary = path.with_name(VOCABULARY)
    words = read_vocabulary(vocabulary)
    try:
        tensors = _read_variables(path)
        tied = "softmax/W" not in tensors
        names = "embedding" if tied else "softmax/W", "softmax/b"
        weight, bias = (
            to_float32(name, torch.from_numpy(read_tensor(tensors[name]))) for name in names
        )
        # An error if there are other words.
        weight, bias = weight.reshape(len(words), -1), bias.reshape(len(words))
    except Exception as error:  # For a damaged file, any.
        raise ValueError(
            f"{path} has no output layer for the {len(words):,} words of {vocabulary}: {error}"
        ) from error
    return words, weight, bias, tied


def find_index(path: Path) -> Path:
    """RETURNS (Path): The index of the checkpoint that a path means: in a folder, the one that its
    file `checkpoint` names, or the only one.
    RAISES (ValueError): If there is none, or one of several has to be chosen."""
    state = path / _STATE if path.is_dir() else path
    if state == path and (file_name := _FILE.fullmatch(path.name)):
        return path.with_name(f"{file_name[1]}.index")
    indices = {file.name: file for file in state.parent.glob("*.index")}
    match = _NEWEST.search(state.read_bytes()) if state.is_file() else None
    if match:  # The last part of the path: the others may be of another machine.
        newest = re.split(r"[/\\]", match[1].decode("utf8", "replace"))[-1]
        indices = {name: x for name, x in indices.items() if name == f"{newest}.index"} or indices
    if len(indices) != 1:
        raise ValueError(
            f"{state.parent} must hold one TensorFlow checkpoint, or a file {_STATE!r} that names "
            f"one of them, found {', '.join(sorted(indices)) or 'none'}: give one of the files"
        )
    return next(iter(indices.values()))


def _read_variables(path: Path) -> dict[str, StoredTensor]:
    """RETURNS (dict): The variables of the language model, by their names in HDF5."""
    tensors, variables = read_index(path), {}
    for name, tensor in tensors.items():
        # An optimizer's are named like the variable, with a level more.
        if name.startswith("lm/") and name.rpartition("/")[0] not in tensors:
            for ours, other in _RENAMED.items():
                name = name.replace(ours, other)
            variables[name.removeprefix("lm/")] = tensor
    return variables
