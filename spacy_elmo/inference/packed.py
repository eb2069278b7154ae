"""All weights of a biLM, packed for inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..bilm.int8 import Int8Weight
from ..bilm.lstm_layer import LayerProducts, add_forget_bias, lstm_step, run_layer
from ..bilm.model import BiLSTM, LSTMLayer
from ..bilm.token_encoder import CharCNN, WordEmbedding
from ..kernels import load_kernels
from ..torch_private import Product
from .linear import pack_linear
from .settings import Precision, Settings

# Bytes of gate pre-activations computed at once: enough rows for a fast product, and little enough
# memory for the allocator to use again. FBGEMM is fastest at about 64 rows; int8 also allocates an
# int32 accumulator of the same size.
_GATE_BYTES = {"float32": 8 << 20, "bfloat16": 8 << 20, "float16": 4 << 20, "int8": 4 << 20}
_GATE_BYTES_UNPACKED = 16 << 20
_GATE_BYTES_GPU = 1 << 30

# Input weights per layer and direction of which float32 keeps a packed copy.
_MAX_PACKED_INPUT_WEIGHTS = 4 << 20


class PackedBiLM(NamedTuple):
    """The matrix products of a biLM.

    token_encoder (list): See `CharCNN.linears`; empty for word input.
    lstm (list): For each layer, what runs each direction, or one for both: `run_layer`, without the
        arguments `products` and `config`.
    """

    token_encoder: list[Product]
    lstm: list[list[Callable[..., None]]]


def pack_bilm(
    token_encoder: CharCNN | WordEmbedding, lstm: BiLSTM, settings: Settings
) -> PackedBiLM:
    """Pack the present weights."""
    precision, config = settings.precision, lstm.config
    linears = token_encoder.linears() if isinstance(token_encoder, CharCNN) else []
    char_products = []
    for weight, bias in linears:
        if precision == "int8" and bias is not None:  # Not a convolution.
            weight = Int8Weight.quantize(weight).dequantize()
        low = _char_precision(precision, weight)
        char_products.append(pack_linear(weight, bias, low, many_rows=True))
    bias = lstm.forward_layers[0].gate_bias
    on_cpu, dtype = bias.device.type == "cpu", bias.dtype
    product_dtype = torch.bfloat16 if precision == "bfloat16" else dtype
    cell = load_kernels(settings.kernel, bias.device, product_dtype, dtype, batched=not on_cpu)
    layers: list[list[Callable[..., None]]] = []
    for pair in zip(lstm.forward_layers, lstm.backward_layers):
        # On a GPU, both directions in one batched product.
        groups = zip(pair) if on_cpu else [pair]
        products = [_pack_layer(group, precision, cell) for group in groups]
        layers.append([partial(run_layer, products=one, config=config) for one in products])
    return PackedBiLM(char_products, layers)


def _char_precision(precision: Precision, weight: Tensor) -> Precision:
    """RETURNS (Precision): That of one of `CharCNN.linears`."""
    if precision == "int8":
        # Products of 8 bits quantise all rows of a call with one scale: a type's vector, which the
        # type cache keeps, would depend on the types that are computed with it. Products with
        # half-precision weights are as fast here.
        return "float16"
    is_highway = weight.shape[0] == weight.shape[1]
    if precision == "bfloat16" and weight.device.type == "cpu" and not is_highway:
        # Convolutions and projection are a small part of the work, but most of the error.
        return "float32"
    return precision


def _pack_layer(layers: Sequence[LSTMLayer], precision: Precision, cell: Any) -> LayerProducts:
    """Pack one direction, or both for batched products, with the kernels that run its cells."""
    pack = partial(pack_linear, precision=precision, keep_type=cell is not None)
    bias = add_forget_bias(_gather([layer.gate_bias for layer in layers]))
    dim, width = bias.shape[-1] // 4, layers[0].widths[0]
    inputs, recurrent, projection = map(_gather, zip(*(layer.matrices() for layer in layers)))
    # Packing helps the inputs' product, too, though less than the recurrent one: it sees the rows
    # of many steps at once. It is worth a second copy of the weights while they are small.
    many_rows = 4 * dim * width > _MAX_PACKED_INPUT_WEIGHTS
    if bias.device.type != "cpu":
        gate_bytes = _GATE_BYTES_GPU
    elif precision == "float32" and many_rows:
        gate_bytes = _GATE_BYTES_UNPACKED
    else:
        gate_bytes = _GATE_BYTES[precision]
    return LayerProducts(
        pack(inputs, bias, many_rows=many_rows),
        pack(recurrent, None),
        None if projection is None else pack(projection, None),
        gate_bytes // (4 * dim * bias.element_size() * len(layers)),
        lstm_step if cell is None else cell.forward,
    )


def _gather(weights: Sequence[Any]) -> Any:
    """RETURNS: The only one, or all on top of each other; None if there are none."""
    if weights[0] is None or isinstance(weights[0], Int8Weight):  # 8 bits are for a CPU.
        return weights[0]
    values = [weight.detach() for weight in weights]
    return values[0] if len(values) == 1 else torch.stack(values)
