"""The layout of AllenNLP's modules `ElmoLstm` and `Highway` in a state dict. ELMoForManyLangs uses
the same modules.

All weights are (output, input). The gates are in the order i, f, candidate, o, and the bias of f
has its forget bias of 1 inside. One matrix has both halves of a highway, and the second half gates
the input, not the transformed input.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..bilm.config import LSTMConfig
from ..bilm.lstm_layer import FORGET_BIAS

_DIRECTIONS = ("forward", "backward")


def lstm_shapes(config: LSTMConfig, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """RETURNS (dict): The shapes of the LSTMs' tensors by name.

    prefix (str): Of all names.
    """
    gates, p = 4 * config.dim, config.projection_dim
    shapes: dict[str, tuple[int, ...]] = {}
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
        parameters[f"{layer}.projection_weight"] = tensors[
            f"{stem}.state_projection.weight"
        ].clone()
    return parameters


def highway_shapes(width: int, n_layers: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """RETURNS (dict): The shapes of the highways' tensors by name.

    prefix (str): Of all names.
    """
    layers = [f"{prefix}_layers.{i}" for i in range(n_layers)]
    weights = {f"{layer}.weight": (2 * width, width) for layer in layers}
    return {**weights, **{f"{layer}.bias": (2 * width,) for layer in layers}}


def highway_parameters(
    n_layers: int, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """RETURNS (dict): The parameters of a `CharCNN`'s highways by name, from tensors of
    `highway_shapes`."""
    parameters = {}
    for i in range(n_layers):
        for kind in ("weight", "bias"):
            transform, carry = tensors[f"{prefix}_layers.{i}.{kind}"].chunk(2)
            parameters[f"token_encoder.highways.{i}.transform.{kind}"] = transform.clone()
            parameters[f"token_encoder.highways.{i}.carry.{kind}"] = -carry
    return parameters


def _stems(config: LSTMConfig, prefix: str) -> dict[str, str]:
    """RETURNS (dict): What begins the names of a layer, by the layer's name in a `BiLM`."""
    return {
        f"lstm.{direction}_layers.{i}": f"{prefix}{direction}_layer_{i}"
        for direction in _DIRECTIONS
        for i in range(config.n_layers)
    }
