"""Matrix products with weights prepared once for inference.

A plain float32 product with the few rows of one LSTM step reads its weights in an order that
wastes most of the machine. PyTorch ships operators that keep the weights in the order the kernels
want: oneDNN's for float32 and bfloat16, FBGEMM's for half-precision and 8-bit weights.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch import Tensor

from ..bilm.forking import no_fork
from ..bilm.int8 import Int8Weight
from ..bilm.lstm_layer import Product
from ..bilm.onednn import add_rows
from .settings import Precision

# The number of rows oneDNN arranges the weights for. A layout made for 64 rows is within a few
# percent of the best one for 1 to 1,000 rows; one made for a single row is half as fast.
_PACKING_ROWS = 64


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
    if isinstance(weight, Int8Weight):
        return _int8(weight, bias)
    weight = weight.detach()
    dtype = torch.bfloat16 if precision == "bfloat16" else weight.dtype
    if weight.dim() == 3 or weight.device.type != "cpu":
        return _dense(weight, bias, dtype)
    if precision == "float16":
        packed = _prepack("float16", torch.ops.quantized.linear_prepack_fp16, weight, bias)
        linear = torch.ops.quantized.linear_dynamic_fp16.default
        return lambda x: linear(x, packed)
    if precision == "int8":
        return _int8(Int8Weight.quantize(weight), bias)
    if weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        pack = precision == "bfloat16" or not many_rows
        return _onednn(weight, bias, dtype, dtype if keep_type else weight.dtype, pack)
    return _dense(weight, bias, dtype)


def _dense(weight: Tensor, bias: Optional[Tensor], dtype: torch.dtype) -> Product:
    transposed = weight.to(dtype).transpose(-1, -2).contiguous()
    row = None if bias is None else bias.unsqueeze(-2)

    def product(x: Tensor) -> Tensor:
        y = torch.matmul(x.to(dtype), transposed).to(weight.dtype)
        return y if row is None else y.add_(row)

    return product


def _onednn(
    weight: Tensor, bias: Optional[Tensor], dtype: torch.dtype, out: torch.dtype, pack: bool
) -> Product:
    low = weight.to(dtype).contiguous()
    if pack:
        low = torch.ops.mkldnn._reorder_linear_weight(low, _PACKING_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        n = len(x)
        y = linear(add_rows(x.to(dtype)), low, bias, "none", [], "")
        return (y if len(y) == n else y[:n]).to(out)

    return product


def _int8(weight: Int8Weight, bias: Optional[Tensor]) -> Product:
    values, [scales] = weight.values.contiguous(), weight.scales
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch 2.13 announces that its quantized tensors will move; the operators stay.
        warnings.filterwarnings("ignore", message=".*quantize.*", category=UserWarning)
        quantized = torch._make_per_channel_quantized_tensor(values, scales, zeros, 0)
        packed = _prepack("int8", torch.ops.quantized.linear_prepack, quantized, bias)
    # reduce_range: 8-bit products saturate 16-bit sums on CPUs without VNNI.
    linear = torch.ops.quantized.linear_dynamic.default
    return lambda x: linear(x, packed, True)


def _prepack(precision: str, prepack: Callable, weight: Tensor, bias: Optional[Tensor]) -> object:
    try:
        return prepack(weight, bias)
    except RuntimeError as error:
        raise ValueError(
            f"precision {precision!r} needs PyTorch's FBGEMM operators, which this build for this "
            f"processor lacks ({str(error).splitlines()[0]}): use precision 'float32'"
        ) from error


class _TF32:
    """A context in which float32 products on a GPU use TF32.

    PyTorch has one setting for the whole process. The first thread that enters sets it, and the
    last one that leaves restores it: products of other threads use TF32 in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = ""

    def __enter__(self) -> None:
        with self._lock:
            matmul = torch.backends.cuda.matmul
            if not self._users:
                self._before = matmul.fp32_precision
                if self._before != "tf32":
                    # Unlike its successor `fp32_precision`, this sets what both PyTorch's old and
                    # new interfaces read. They must not contradict each other.
                    matmul.allow_tf32 = True
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._before == "tf32":
                return
            matmul = torch.backends.cuda.matmul
            matmul.allow_tf32 = False
            # "none" means the setting of all backends.
            matmul.fp32_precision = "none"
            if matmul.fp32_precision != self._before:
                matmul.fp32_precision = self._before


TF32_PRODUCTS = _TF32()


@contextlib.contextmanager
def inference(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which a biLM runs: without autograd, with products of the precision that was
    asked for, whatever `torch.autocast` or the process's settings say around it. No other thread
    forks the process meanwhile."""
    no_context = contextlib.nullcontext()
    autocast: Any = no_context
    if torch.amp.is_autocast_available(device.type):  # Not on PyTorch's meta device.
        autocast = torch.autocast(device.type, enabled=False)
    tf32: Any = TF32_PRODUCTS if precision == "tf32" and device.type != "cpu" else no_context
    with no_fork(), torch.inference_mode(), autocast, tf32:
        yield
