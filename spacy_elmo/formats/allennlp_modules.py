"""The layout of AllenNLP's modules `ElmoLstm` and `Highway` in a state dict. ELMoForManyLangs uses
the same modules.

All weights are (output, input). The gates are in the order i, f, candidate, o, and the bias of f
has its forget bias of 1 inside. One matrix has both halves of a highway, and the second half gates
the input, not the transformed input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.lstm_layer import FORGET_BIAS
from .parameters import to_float32

# For each parameter of a biLM, the names of its tensors in the state, and what makes it of them.
StateMap = dict[str, tuple[list[str], Callable[..., Tensor]]]


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
    """RETURNS (dict): The parameters, and under their own names the tensors that are of none.
    RAISES (Exception): If a tensor is missing or of another kind."""
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
