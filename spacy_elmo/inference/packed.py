"""The weights of a biLM in the order that fast products of few rows want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor

from ..bilm.config import LSTMConfig
from ..bilm.int8 import Int8Weight
from ..bilm.lstm_layer import add_forget_bias, lstm_step, projection_clip, run_layer
from ..bilm.mixed_precision import add_rows
from ..bilm.model import BiLSTM, LSTMLayer
from ..bilm.token_encoder import CharCNN, WordEmbedding
from ..kernels import load_kernels
from ..torch_private import Product, onednn_product
from .settings import Precision, Settings

# Bytes of gates computed at once: enough rows for a fast product, and on a CPU little enough memory
# for the allocator to use again.
_GATE_BYTES, _GATE_BYTES_GPU = 16 << 20, 1 << 30


def pack_linear(
    weight: Tensor,
    bias: Optional[Tensor],
    precision: Precision,
    many_rows: bool = False,
    keep_type: bool = False,
) -> Product:
    """Prepare a weight for many products `x @ weight.T + bias`.

    weight (Tensor): Shape (out, in), or (directions, out, in) for a batched product (GPU).
    precision (str): float16 rounds the weight; the product is in float32, as in int8.
    many_rows (bool): The product will mostly see hundreds of rows: in float32 on a CPU, it uses the
        weight as it is, without a second copy that would gain little.
    keep_type (bool): The result is bfloat16 where the product is.
    """
    bias, weight = None if bias is None else bias.detach(), weight.detach()
    if precision == "float16" and (half := weight.half()).isfinite().all():
        weight = half.to(weight.dtype)
    dtype = torch.bfloat16 if precision == "bfloat16" else weight.dtype
    out = dtype if keep_type else weight.dtype
    on_cpu = weight.dim() == 2 and weight.device.type == "cpu"
    if on_cpu and weight.dtype == torch.float32:
        pack = precision == "bfloat16" or not many_rows
        if (product := onednn_product(weight.to(dtype), bias, pack)) is not None:
            return partial(_padded, product, dtype, out)
    transposed = weight.to(dtype).transpose(-1, -2).contiguous()
    return partial(_dense, transposed, None if bias is None else bias.unsqueeze(-2).to(out), out)


def _dense(weight: Tensor, row: Optional[Tensor], out: torch.dtype, x: Tensor) -> Tensor:
    y = torch.matmul(x.to(weight.dtype), weight).to(out)
    return y if row is None else y.add_(row)


def _padded(product: Product, dtype: torch.dtype, out: torch.dtype, x: Tensor) -> Tensor:
    """oneDNN's product with as many rows as it has compiled kernels for."""
    y = product(add_rows(x.to(dtype)))
    return (y if len(y) == len(x) else y[: len(x)]).to(out)


def pack_token_encoder(encoder: CharCNN | WordEmbedding, precision: Precision) -> list[Product]:
    """RETURNS (list): The products of `CharCNN.linears`; empty for word input."""
    products = []
    for weight, bias in encoder.linears() if isinstance(encoder, CharCNN) else ():
        low = precision
        is_highway = weight.shape[0] == weight.shape[1]
        if precision == "int8":
            low = "float16"  # A small part of the work, once for each type.
            if bias is not None:  # Not a convolution.
                weight = Int8Weight.quantize(weight).dequantize().to(weight.dtype)
        elif precision == "bfloat16" and weight.device.type == "cpu" and not is_highway:
            # Convolutions and projection are a small part of the work, but most of the error.
            low = "float32"
        products.append(pack_linear(weight, bias, low, many_rows=True))
    return products


def pack_lstm(lstm: BiLSTM, settings: Settings) -> list[list[Callable[..., None]]]:
    """RETURNS (list): For each layer, `run_layer` with its weights for each direction, or on a GPU
    one for both by batched products."""
    bias, precision = lstm.forward_layers[0].gate_bias, settings.precision
    on_cpu, dtype = bias.device.type == "cpu", bias.dtype
    product_dtype = torch.bfloat16 if precision == "bfloat16" else dtype
    cell = load_kernels(settings.kernel, bias.device, product_dtype, dtype, batched=not on_cpu)
    pack = partial(_pack_layer, precision=precision, cell=cell, config=lstm.config)
    pairs = zip(lstm.forward_layers, lstm.backward_layers)
    return [[pack(group) for group in (zip(pair) if on_cpu else [pair])] for pair in pairs]


def runs_layers(cell: Any, precision: str) -> bool:
    """RETURNS (bool): Whether what `load_kernels` has found runs whole layers in a precision."""
    return hasattr(cell, "runs_layers") and cell.runs_layers(precision)


def _pack_layer(
    layers: Sequence[LSTMLayer], precision: Precision, cell: Any, config: LSTMConfig
) -> Callable[..., None]:
    """Pack one direction, or both for batched products."""
    bias = add_forget_bias(_gather([layer.gate_bias for layer in layers]))
    weights = [*map(_gather, zip(*(layer.matrices() for layer in layers)))]
    if precision == "int8":
        weights = [Int8Weight.quantize(x) if isinstance(x, Tensor) else x for x in weights]
    # In C from the first to the last step, without Python and its lock.
    if runs_layers(cell, precision):
        clips = config.cell_clip, projection_clip(config, bias.dtype)
        return cell.pack_layer(weights, bias, precision, *clips)
    # Else inputs are not rounded to 8 bits.
    inputs, recurrent, projection = (
        x.dequantize().to(bias.dtype) if isinstance(x, Int8Weight) else x for x in weights
    )
    pack = partial(pack_linear, keep_type=cell is not None)
    gate_bytes = _GATE_BYTES if bias.device.type == "cpu" else _GATE_BYTES_GPU
    products = (
        pack(inputs, bias, precision, many_rows=True),
        gate_bytes // (4 * config.dim * bias.element_size() * len(layers)),
        pack(recurrent, None, precision),
        None if projection is None else pack(projection, None, precision),
        lstm_step if cell is None else cell.forward,
    )
    return partial(run_layer, config=config, products=products)


def _gather(weights: Sequence[Any]) -> Any:
    """RETURNS: The only one, or all on top of each other; None if there are none."""
    if len(weights) == 1 or weights[0] is None:
        return weights[0]
    return torch.stack([weight.detach() for weight in weights])
