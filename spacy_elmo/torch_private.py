"""All that this package uses of PyTorch although PyTorch does not promise to keep it. Where it is
missing, callers compute the same with public operators, which is slower; one warning says so."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Optional

import torch
from torch import Tensor

# Computes `x @ weight.T + bias`. The result may be overwritten.
Product = Callable[[Tensor], Tensor]

# The attribute of a tensor that counts its changes in place.
CHANGES = "_version"

# The rows for which oneDNN arranges weights: within a few percent of the best for 1 to 1,000 rows.
_PACKING_ROWS = 64


@cache
def warn_once() -> None:
    warnings.warn(
        f"PyTorch {torch.__version__} lacks fast operators on this processor: plain ones are used, "
        "which are slower",
        stacklevel=4,
    )


def onednn_product(weight: Tensor, bias: Optional[Tensor], pack: bool) -> Optional[Product]:
    """oneDNN's product in float32 or bfloat16, of inputs of the type of the weight. With `pack`, it
    keeps a copy of the weight in the order that oneDNN's kernels want. None, with a warning, if an
    operator is missing or not for this processor."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        linear, packed = torch.ops.mkldnn._linear_pointwise.default, weight.contiguous()
        if pack:
            packed = torch.ops.mkldnn._reorder_linear_weight(packed, _PACKING_ROWS)
    except (AttributeError, RuntimeError):
        return warn_once()
    return lambda x: linear(x, packed, bias, "none", [], "")


_tf32_lock = threading.Lock()
_tf32_before: list[str] = []  # The setting before the first thread inside, for each thread.


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """A context in which float32 products on a GPU use TF32. PyTorch has one setting for the whole
    process: the first thread that enters sets it, and the last one that leaves restores it."""
    matmul: Any = torch.backends.cuda.matmul
    with _tf32_lock:
        _tf32_before.append((_tf32_before or [getattr(matmul, "fp32_precision", "tf32")])[0])
        if _tf32_before[0] != "tf32":
            # Unlike its successor `fp32_precision`, this sets what both PyTorch's old and new
            # interfaces read. They must not contradict each other.
            matmul.allow_tf32 = True
    try:
        yield
    finally:
        with _tf32_lock:
            before = _tf32_before.pop()
            if not _tf32_before and before != "tf32":
                matmul.allow_tf32 = False
                matmul.fp32_precision = "none"  # The setting of all backends.
                if matmul.fp32_precision != before:
                    matmul.fp32_precision = before
