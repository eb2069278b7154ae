"""The layout of AllenNLP's modules `ElmoLstm` and `Highway` in a state dict. ELMoForManyLangs uses
the same modules.

All weights are (output, input). The gates are in the order i, f, candidate, o, and the bias of f
has its forget bias of 1 inside. One matrix has both halves of a highway, and the second half gates
the input, not the transformed input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor

from ..bilm.config import BiLMConfig, LSTMConfig
from ..bilm.lstm_layer import FORGET_BIAS
from .parameters import check_tensors, declared, to_float32

_DIRECTIONS = ("forward", "backward")
Shapes = dict[str, tuple[int, ...]]


def check_state(
    path: Path,
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Sequence[int]],
    options: Optional[str] = None,
) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors, float32, each with memory of its own.
    RAISES (ValueError): If a name, a shape, a type or a value is another one."""
    source = f"{path} (options: {options})" if options else path
    check_tensors(source, expected, declared(tensors))
    return {name: to_float32(path, name, x).clone() for name, x in tensors.items()}


def lstm_shapes(config: LSTMConfig, prefix: str = "") -> Shapes:
    """RETURNS (dict): The shapes of the LSTMs' tensors by name."""
    gates, p = 4 * config.dim, config.projection_dim
    shapes: Shapes = {}
    for stem in _stems(config, prefix).values():
        shapes[f"{stem}.input_linearity.weight"] = gates, p
        shapes[f"{stem}.state_linearity.weight"] = gates, p
        shapes[f"{stem}.state_linearity.bias"] = (gates,)
        shapes[f"{stem}.state_projection.weight"] = p, config.dim
    return shapes


def lstm_parameters(
    config: LSTMConfig, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters of a `BiLM`'s LSTMs by name, from tensors of `lstm_shapes`.
    `config.projection` must be true."""
    parameters = {}
    for layer, stem in _stems(config, prefix).items():
        sides = [tensors[f"{stem}.{side}_linearity.weight"] for side in ("input", "state")]
        i, f, candidate, o = torch.cat(sides, dim=1).chunk(4)
        parameters[f"{layer}.gate_weight"] = torch.cat((i, candidate, f, o))
        i, f, candidate, o = tensors[f"{stem}.state_linearity.bias"].chunk(4)
        parameters[f"{layer}.gate_bias"] = torch.cat((i, candidate, f - FORGET_BIAS, o))
        parameters[f"{layer}.projection_weight"] = tensors[f"{stem}.state_projection.weight"]
    return parameters


def encoder_shapes(config: BiLMConfig, convolution: str, prefix: str = "") -> Shapes:
    """RETURNS (dict): The shapes of the tensors of convolutions, highways and projection.

    convolution (str): How the convolutions are named, for a number.
    prefix (str): What the names of the others begin with.
    """
    char_cnn = config.char_cnn
    assert char_cnn is not None
    shapes: Shapes = {}
    for i, (width, number) in enumerate(char_cnn.filters):
        shapes[f"{convolution.format(i)}.weight"] = number, char_cnn.embedding_dim, width
        shapes[f"{convolution.format(i)}.bias"] = (number,)
    for i in range(char_cnn.n_highway):
        shapes[f"{prefix}highways._layers.{i}.weight"] = 2 * char_cnn.n_filters, char_cnn.n_filters
        shapes[f"{prefix}highways._layers.{i}.bias"] = (2 * char_cnn.n_filters,)
    p = config.projection_dim
    shapes[f"{prefix}projection.weight"] = p, char_cnn.word_dim + char_cnn.n_filters
    shapes[f"{prefix}projection.bias"] = (p,)
    return shapes


def encoder_parameters(
    config: BiLMConfig, tensors: Mapping[str, Tensor], convolution: str, prefix: str = ""
) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters of a `CharCNN` by name, from tensors of `encoder_shapes`."""
    assert config.char_cnn is not None
    parameters = {}
    for kind in ("weight", "bias"):
        for i in range(len(config.char_cnn.filters)):
            name = f"token_encoder.convolutions.{i}.{kind}"
            parameters[name] = tensors[f"{convolution.format(i)}.{kind}"]
        for i in range(config.char_cnn.n_highway):
            transform, carry = tensors[f"{prefix}highways._layers.{i}.{kind}"].chunk(2)
            parameters[f"token_encoder.highways.{i}.transform.{kind}"] = transform.clone()
            parameters[f"token_encoder.highways.{i}.carry.{kind}"] = -carry
        parameters[f"token_encoder.projection.{kind}"] = tensors[f"{prefix}projection.{kind}"]
    return parameters


def _stems(config: LSTMConfig, prefix: str) -> dict[str, str]:
    """RETURNS (dict): What begins the names of a layer, by the layer's name in a `BiLM`."""
    return {
        f"lstm.{direction}_layers.{i}": f"{prefix}{direction}_layer_{i}"
        for direction in _DIRECTIONS
        for i in range(config.n_layers)
    }
