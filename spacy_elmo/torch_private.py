"""All that this package uses of PyTorch although PyTorch does not promise to keep it.

Where a name is missing, or does not run on this processor, the caller computes the same with public
operators, which is slower. One warning says so.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, Optional

import torch
from torch import Tensor

# Computes `x @ weight.T + bias`. The result may be overwritten.
Product = Callable[[Tensor], Tensor]

# The attribute of a tensor that counts its changes in place.
CHANGES = "_version"

# The number of rows oneDNN arranges weights for. A layout made for 64 rows is within a few percent
# of the best one for 1 to 1,000 rows; one made for a single row is half as fast.
_PACKING_ROWS = 64


@cache
def warn_once() -> None:
    warnings.warn(
        f"PyTorch {torch.__version__} lacks fast operators on this processor: plain ones are used, "
        'which are slower; precision = "float32" needs the fewest of them',
        stacklevel=4,
    )


def _find(*names: str) -> Optional[list[Any]]:
    """RETURNS (Optional[list]): What has these names below `torch`. None, with a warning, if
    anything is missing."""
    try:
        return [attrgetter(name)(torch) for name in names]
    except AttributeError:
        warn_once()
        return None


def has_quantized_products() -> bool:
    """Whether products in float16 and int8 are fast on this processor."""
    engines = getattr(torch.backends, "quantized", None)
    return "fbgemm" in getattr(engines, "supported_engines", ())


def float16_product(weight: Tensor, bias: Optional[Tensor]) -> Optional[Product]:
    """FBGEMM's product of a float32 input and weights that are kept in half precision."""
    names = "ops.quantized.linear_prepack_fp16", "ops.quantized.linear_dynamic_fp16.default"
    if (operators := _find(*names)) is None:
        return None
    prepack, linear = operators
    try:
        packed = prepack(weight, bias)
    except RuntimeError:  # PyTorch was built without FBGEMM, or not for this processor.
        return warn_once()
    return lambda x: linear(x, packed)


def int8_product(values: Tensor, scales: Tensor, bias: Optional[Tensor]) -> Optional[Product]:
    """FBGEMM's product in 8 bits. All rows of the input share one scale.

    values (Tensor): The weight in int8, shape (out, in).
    scales (Tensor): The scale of each output, shape (out,).
    """
    names = "_make_per_channel_quantized_tensor", "ops.quantized.linear_prepack"
    if (operators := _find(*names, "ops.quantized.linear_dynamic.default")) is None:
        return None
    quantize, prepack, linear = operators
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch 2.13 announces that its quantized tensors will move.
        warnings.filterwarnings("ignore", message=".*quantize.*", category=UserWarning)
        try:
            packed = prepack(quantize(values, scales, zeros, 0), bias)
        except RuntimeError:
            packed = None
    if packed is None:
        return warn_once()
    # reduce_range: 8-bit products saturate 16-bit sums on CPUs without VNNI.
    return lambda x: linear(x, packed, True)


def onednn_product(weight: Tensor, bias: Optional[Tensor], pack: bool) -> Optional[Product]:
    """oneDNN's product in float32 or bfloat16, of inputs of the type of the weight.

    pack (bool): Keep a copy of the weight in the order that oneDNN's kernels want.
    """
    names = "ops.mkldnn._reorder_linear_weight", "ops.mkldnn._linear_pointwise.default"
    if not torch.backends.mkldnn.is_available() or (operators := _find(*names)) is None:
        return None
    reorder, linear = operators
    try:
        packed = reorder(weight.contiguous(), _PACKING_ROWS) if pack else weight.contiguous()
    except RuntimeError:
        return warn_once()
    return partial(_pointwise, linear, packed, bias)


def _pointwise(linear: Any, weight: Tensor, bias: Optional[Tensor], x: Tensor) -> Tensor:
    return linear(x, weight, bias, "none", [], "")


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
            matmul: Any = torch.backends.cuda.matmul
            self._users += 1
            if self._users == 1:
                self._before = getattr(matmul, "fp32_precision", "tf32")
                if self._before != "tf32":
                    # Unlike its successor `fp32_precision`, this sets what both PyTorch's old and
                    # new interfaces read. They must not contradict each other.
                    matmul.allow_tf32 = True

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._before == "tf32":
                return
            matmul: Any = torch.backends.cuda.matmul
            matmul.allow_tf32 = False
            matmul.fp32_precision = "none"  # The setting of all backends.
            if matmul.fp32_precision != self._before:
                matmul.fp32_precision = self._before


TF32_PRODUCTS = _TF32()
