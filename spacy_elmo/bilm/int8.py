"""Weights in 8 bits, as the precision int8 multiplies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

# Rows of smaller weights become zeros: the inverse of a scale must be finite.
_MIN_WEIGHT = 1e-30


class Int8Weight(NamedTuple):
    """An int8 weight matrix of one product, or of several side by side: the first columns of a gate
    weight are for inputs, the others for previous outputs. Quantising `values * scales` again gives
    the same values, shape (out, in), and scales, shape (products, out). `widths` are the columns of
    each product."""

    values: Tensor
    scales: Tensor
    widths: tuple[int, ...]

    @classmethod
    def quantize(cls, weight: Tensor, widths: Sequence[int] = ()) -> Int8Weight:
        """Round a weight, shape (out, in), of one product, or of several with so many columns."""
        widths = tuple(widths) or (weight.shape[1],)
        values = torch.empty_like(weight, dtype=torch.int8, memory_format=torch.contiguous_format)
        scales = []
        columns = zip(weight.detach().float().split(widths, dim=1), values.split(widths, dim=1))
        for block, rounded in columns:
            low, high = torch.aminmax(block, dim=1)
            # Symmetric, so that a zero weight stays zero.
            scales.append(torch.maximum(high, -low).clamp_min_(_MIN_WEIGHT) / 127)
            rounded.copy_((block * (1 / scales[-1]).unsqueeze(1)).round_())
        return cls(values, torch.stack(scales), widths)

    def dequantize(self) -> Tensor:
        """RETURNS (Tensor): float32, shape (out, in)."""
        weight = self.values.to(torch.float32)
        for block, scale in zip(weight.split(self.widths, dim=1), self.scales):
            block.mul_(scale.unsqueeze(1))
        return weight

    def split(self) -> list[Int8Weight]:
        """RETURNS (list): The weight of each product."""
        values, scales = self.values.split(self.widths, dim=1), self.scales.split(1)
        return [Int8Weight(*one) for one in zip(values, scales, ((x,) for x in self.widths))]


def named_weights(module: nn.Module) -> Iterator[tuple[str, Tensor | Int8Weight]]:
    """Like `named_parameters`, with the 8 bits of parameters that are there in 8 bits only."""
    for owner, layer in module.named_modules():
        # First the 8 bits: another thread may call `dequantize`, which takes them away last.
        int8 = getattr(layer, "int8", {})
        for key, parameter in layer.named_parameters(recurse=False):
            yield f"{owner}.{key}".removeprefix("."), int8.get(key, parameter.detach())
