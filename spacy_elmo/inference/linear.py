"""Matrix products with weights prepared once for inference.

A plain float32 product with the few rows of one LSTM step reads its weights in an order that
wastes most of the machine. PyTorch ships operators that keep the weights in the order the kernels
want: oneDNN's for float32 and bfloat16, FBGEMM's for half-precision and 8-bit weights.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..bilm.int8 import Int8Weight
from ..bilm.mixed_precision import add_rows
from ..torch_private import Product, float16_product, int8_product, onednn_product
from .settings import Precision


def pack_linear(
    weight: Tensor | Int8Weight,
    bias: Optional[Tensor],
    precision: Precision,
    *,
    many_rows: bool = False,
    keep_type: bool = False,
) -> Product:
    """Prepare a weight for many products `x @ weight.T + bias`.

    weight (Tensor | Int8Weight): Shape (out, in), or (directions, out, in) for a batched product
        (GPU). 8 bits are for the precision int8 on a CPU.
    bias (Optional[Tensor]): Shape (out,) or (directions, out).
    precision (str): See `Settings`.
    many_rows (bool): The product will mostly see hundreds of rows. In float32 on a CPU, such a
        product gains little by packing, and uses the weight as it is: a second copy of all
        weights would cost more than it brings.
    keep_type (bool): The result is bfloat16 where the product is.
    RETURNS (Callable): Maps x to a new tensor, float32 but for `keep_type`, that the caller may
        overwrite. x has as many leading dimensions as the weight.
    """
    bias = None if bias is None else bias.detach()
    if isinstance(weight, Tensor) and precision == "int8":
        weight = Int8Weight.quantize(weight)
    if isinstance(weight, Int8Weight):
        packed = int8_product(weight.values.contiguous(), weight.scales[0], bias)
        # Without 8-bit products: the same weights, and inputs that are not rounded.
        return packed or pack_linear(weight.dequantize(), bias, "float32", many_rows=many_rows)
    weight = weight.detach()
    dtype = torch.bfloat16 if precision == "bfloat16" else weight.dtype
    out = dtype if keep_type else weight.dtype
    if weight.dim() == 3 or weight.device.type != "cpu":
        return _dense(weight.to(dtype), bias, out)
    if precision == "float16":
        half = weight.half().to(weight.dtype)
        return float16_product(weight, bias) or pack_linear(half, bias, "float32")
    if weight.dtype == torch.float32:
        product = onednn_product(weight.to(dtype), bias, precision == "bfloat16" or not many_rows)
        if product is not None:
            return _padded(product, dtype, out)
    return _dense(weight.to(dtype), bias, out)


def _dense(weight: Tensor, bias: Optional[Tensor], out: torch.dtype) -> Product:
    transposed = weight.transpose(-1, -2).contiguous()
    row = None if bias is None else bias.unsqueeze(-2).to(out)

    def product(x: Tensor) -> Tensor:
        y = torch.matmul(x.to(weight.dtype), transposed).to(out)
        return y if row is None else y.add_(row)

    return product


def _padded(linear: Product, dtype: torch.dtype, out: torch.dtype) -> Product:
    """RETURNS (Callable): oneDNN's product with as many rows as it has compiled kernels for."""

    def product(x: Tensor) -> Tensor:
        n = len(x)
        y = linear(add_rows(x.to(dtype)))
        return (y if len(y) == n else y[:n]).to(out)

    return product
