"""State dicts of AllenNLP and ELMoForManyLangs, which share the modules `ElmoLstm` and `Highway`.

All weights are (output, input). The gates are in the order i, f, candidate, o, and the bias of f
has its forget bias of 1 inside. One matrix has both halves of a highway, and the second half gates
the input, not the transformed input.

The files are pickles, which are programs. PyTorch runs them with `weights_only=True`, which calls
only its own functions for tensors. It does not limit memory: what may take more than the file has
is refused here.
"""

from __future__ import annotations

import mmap
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.lstm_layer import FORGET_BIAS
from .parameters import to_float32

# For each parameter of a biLM, the names of its tensors in the state, and what makes it of them.
StateMap = dict[str, tuple[list[str], Callable[..., Tensor]]]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors of a state dict that `torch.save` wrote, by name, on the CPU.
    They may share memory.
    RAISES (ValueError): If the file is damaged, holds other data, or declares more than it has."""
    try:
        size, n_bytes = path.stat().st_size, 0
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                n_bytes = sum(member.file_size for member in archive.infolist())
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # PyTorch's own files are not compressed. It allows a bytearray, of any size.
            is_safe = n_bytes <= size and data.find(b"bytearray") < 0
        values = torch.load(path, map_location="cpu", weights_only=True) if is_safe else {}
        tensors = {str(name): value.detach() for name, value in values.items()}
        # A tensor may be larger than its storage, and many may share one.
        if not is_safe or sum(tensor.nbytes for tensor in tensors.values()) > 4 * size:
            raise ValueError("it declares more bytes than it has")
        return tensors
    except Exception as error:  # For a damaged pickle, any.
        reason = str(error) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # Its text advises to execute the pickle.
            reason = "its pickle is damaged, or does more than to declare tensors. Convert it to "
            reason += "safetensors where you trust it"
        raise ValueError(f"{path} is not read as tensors of PyTorch: {reason}") from error


def state_map(
    config: BiLMConfig, convolution: str, encoder: str = "", lstm: str = ""
) -> tuple[StateMap, StateMap]:
    """Name the tensors of a state, except embeddings.

    convolution (str): How a convolution is named, for a number.
    encoder, lstm (str): What the names of highways and projection, and of the LSTMs, begin with.
    RETURNS (tuple): The parameters of the LSTMs, and of the token encoder.
    """
    layers: StateMap = {}
    for direction in ("forward", "backward"):
        for i in range(config.lstm.n_layers):
            ours, stem = f"lstm.{direction}_layers.{i}", f"{lstm}{direction}_layer_{i}"
            sides = [f"{stem}.{side}_linearity.weight" for side in ("input", "state")]
            layers[f"{ours}.gate_weight"] = sides, _gate_weight
            layers[f"{ours}.gate_bias"] = [f"{stem}.state_linearity.bias"], _gate_bias
            layers[f"{ours}.projection_weight"] = [f"{stem}.state_projection.weight"], torch.clone
    assert config.char_cnn is not None
    others: StateMap = {}
    for kind in ("weight", "bias"):
        for i in range(len(config.char_cnn.filters)):
            name = f"token_encoder.convolutions.{i}.{kind}"
            others[name] = [f"{convolution.format(i)}.{kind}"], torch.clone
        for i in range(config.char_cnn.n_highway):
            ours, names = f"token_encoder.highways.{i}", [f"{encoder}highways._layers.{i}.{kind}"]
            others[f"{ours}.transform.{kind}"] = names, lambda x: x.chunk(2)[0].clone()
            others[f"{ours}.carry.{kind}"] = names, lambda x: -x.chunk(2)[1]
        others[f"token_encoder.projection.{kind}"] = [f"{encoder}projection.{kind}"], torch.clone
    return layers, others


def read_state(tensors: Mapping[str, Tensor], names: StateMap) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters, and under their own names the tensors that are of none."""
    state = {name: to_float32(name, tensor) for name, tensor in tensors.items()}
    values = {name: make(*(state[x] for x in inputs)) for name, (inputs, make) in names.items()}
    others = state.keys() - {x for inputs, _ in names.values() for x in inputs}
    return values | {name: state[name] for name in others}


def _gate_weight(*sides: Tensor) -> Tensor:
    i, f, candidate, o = torch.cat(sides, dim=1).chunk(4)
    return torch.cat((i, candidate, f, o))


def _gate_bias(bias: Tensor) -> Tensor:
    i, f, candidate, o = bias.chunk(4)
    return torch.cat((i, candidate, f - FORGET_BIAS, o))
