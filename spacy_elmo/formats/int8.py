"""Weights in 8 bits in safetensors files: whole numbers, NAME, and their scales, NAME.scales.

Only the products of the LSTMs, highways and projections are stored so, and the matrices of an
output layer, if that is exact (after `round_to_int8`): a scale for each row of each product. A
gate_weight has two products side by side, of the input and of the previous output; other tensors
have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..bilm.int8 import Int8Weight, named_weights
from ..bilm.model import BiLM, LSTMLayer
from .parameters import check_finite, to_float32

SCALES = ".scales"
_MAX_SCALE = 1e36  # Products with numbers of 8 bits are finite.


def encode(model: BiLM) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors to store, of all weights that 8 bits hold exactly."""
    return encode_weights(dict(named_weights(model)), _widths(model))


def encode_weights(
    weights: Mapping[str, Tensor | Int8Weight], widths: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors to store, of those with widths that 8 bits hold exactly."""
    tensors = {}
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and name in widths:
            weight = _quantize_if_exact(weight.to("cpu", torch.float32), widths[name])
        if isinstance(weight, Int8Weight):
            tensors[name], tensors[name + SCALES] = weight.values, weight.scales
    return tensors


def decode(model: BiLM, tensors: Mapping[str, Tensor], keep_int8: bool) -> dict[str, Tensor]:
    """RETURNS (dict): The weights of a file, float32. With `keep_int8`, the model gets those of
    the LSTMs that are in 8 bits instead, as they are.
    RAISES (ValueError): If a weight is impossible."""
    values, widths = dict(tensors), _widths(model)
    for name in [x for x in widths if x in tensors and tensors[x].dtype == torch.int8]:
        weight = take_weight(name, values, model.get_parameter(name).shape, widths[name])
        owner, _, key = name.rpartition(".")
        layer = model.get_submodule(owner)
        if keep_int8 and isinstance(layer, LSTMLayer):
            layer.int8[key] = weight
        else:
            values[name] = weight.dequantize()
    return {name: to_float32(name, value) for name, value in values.items()}


def take_weight(
    name: str, tensors: dict[str, Tensor], shape: Sequence[int], widths: tuple[int, ...]
) -> Int8Weight:
    """Take a weight out of the tensors of a file. RAISES (ValueError): If it is impossible."""
    numbers, scales = tensors.pop(name), to_float32(name + SCALES, tensors.pop(name + SCALES))
    fits = numbers.shape == shape and scales.shape == (len(widths), shape[0])
    in_range = ((scales > 0) & (scales < _MAX_SCALE)).all() and (numbers > -128).all()
    if not (fits and in_range):
        raise ValueError(
            f"{name} and {name}{SCALES} do not fit the options, or not all numbers are between "
            f"-127 and 127, and scales between 0 and {_MAX_SCALE:g}"
        )
    return Int8Weight(numbers, scales, widths)


def fits_int8(model: BiLM) -> bool:
    """RETURNS (bool): Whether the weights are those that the precision int8 computes with."""
    return all(
        isinstance(_quantize_if_exact(model.get_parameter(name).detach(), widths), Int8Weight)
        for name, widths in _widths(model).items()
    )


@torch.no_grad()
def round_to_int8(model: BiLM) -> None:
    """Round all weights to those that the precision int8 computes with, in place: convolutions to
    float16, the other products to 8 bits. Embeddings and biases remain as they are. All remain
    float32 tensors.
    RAISES (ValueError): If a convolution is not finite in float16."""
    widths = _widths(model)
    for name, parameter in model.named_parameters():
        if name in widths:
            parameter.copy_(Int8Weight.quantize(parameter, widths[name]).dequantize())
        elif parameter.dim() == 3:
            parameter.copy_(check_finite(f"cannot round to float16: {name}", parameter.half()))


def _widths(model: BiLM) -> dict[str, tuple[int, ...]]:
    """RETURNS (dict): For each weight that the precision int8 rounds to 8 bits, the columns of each
    of its products."""
    widths: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LSTMLayer):
            widths[f"{name}.gate_weight"] = module.widths
            if module.projection_weight is not None:
                widths[f"{name}.projection_weight"] = (module.projection_weight.shape[1],)
        elif isinstance(module, nn.Linear):
            widths[f"{name}.weight"] = (module.in_features,)
    return widths


def _quantize_if_exact(tensor: Tensor, widths: Sequence[int]) -> Tensor | Int8Weight:
    # Rows are rounded one by one: a few of them show that nearly all others are not exact.
    for rows in (tensor[:: len(tensor) // 16 + 1], tensor):
        int8 = Int8Weight.quantize(rows, widths)
        if not torch.equal(int8.dequantize(), rows):
            return tensor
    return int8
