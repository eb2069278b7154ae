"""Matrix products with weights packed once for inference.

A plain float32 product with the few rows of one LSTM step reads its weights in an order that
wastes most of the machine. PyTorch ships operators that keep the weights in the order the kernels
want: oneDNN's for float32, FBGEMM's for half-precision and 8-bit weights.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, Optional, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from .forking import Lock

Precision = Literal["float32", "float16", "int8", "tf32", "bfloat16"]
CPU_PRECISIONS = ("float32", "float16", "int8")
GPU_PRECISIONS = ("float32", "tf32", "bfloat16")

# Computes `x @ weight.T + bias (+ addend)`; x and addend have as many leading dimensions as the
# weight it was packed from. The result is a new float32 tensor that the caller may overwrite.
Product = Callable[[Tensor, Optional[Tensor]], Tensor]

# The number of rows oneDNN lays the weights out for. A layout made for 64 rows is within a few
# percent of the best one for 1 to 1,000 rows; one made for a single row is half as fast.
_PACKING_ROWS = 64


def check_precision(precision: str, device: torch.device) -> None:
    """RAISES (ValueError): If the precision is unknown or is not for this kind of device."""
    if precision not in get_args(Precision):
        raise ValueError(
            f"unknown precision {precision!r}: choose one of {', '.join(get_args(Precision))}"
        )
    allowed = CPU_PRECISIONS if device.type == "cpu" else GPU_PRECISIONS
    if precision not in allowed:
        raise ValueError(
            f"precision {precision!r} is not for the device {str(device)!r}: "
            f"choose one of {', '.join(allowed)}"
        )


def pack(
    weight: Tensor, bias: Optional[Tensor], precision: Precision, *, many_rows: bool = False
) -> Product:
    """Prepare a weight for many products.

    weight (Tensor): Shape (out, in), or (directions, out, in) for a batched product (GPU).
    bias (Optional[Tensor]): Shape (out,) or (directions, out).
    precision (str): See `check_precision`.
    many_rows (bool): The product will mostly see hundreds of rows. In float32 on a CPU, such a
        product gains little by packing, and uses the weight as it is: a second copy of all
        weights would cost more than it brings.
    RETURNS (Product): The product. Where it has no copy of the weight, it follows its changes.
    """
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    if weight.dim() == 3 or weight.device.type != "cpu":
        return _dense(weight, bias, torch.bfloat16 if precision == "bfloat16" else torch.float32)
    if precision == "float16":
        return _fbgemm_float16(weight, bias)
    if precision == "int8":
        return _fbgemm_int8(weight, bias)
    if many_rows:
        return _unpacked(weight, bias)
    if weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return _onednn(weight, bias)
    return _dense(weight, bias, weight.dtype)


class _TF32:
    """A context in which float32 products on a GPU use TF32.

    PyTorch has one setting for the whole process. The first thread that enters sets it, and the
    last one that leaves restores it: products of other threads use TF32 in between.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._before = ""

    def __enter__(self) -> None:
        with self._lock:
            matmul = torch.backends.cuda.matmul
            if not self._users:
                if hasattr(matmul, "fp32_precision"):  # Since PyTorch 2.9.
                    self._before = matmul.fp32_precision
                else:
                    self._before = "tf32" if matmul.allow_tf32 else "ieee"
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
            if hasattr(matmul, "fp32_precision"):
                # "none" stands for the setting of all backends.
                matmul.fp32_precision = "none"
                if matmul.fp32_precision != self._before:
                    matmul.fp32_precision = self._before


_TF32_PRODUCTS = _TF32()


@contextlib.contextmanager
def product_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Let products have the precision that was asked for, whatever `torch.autocast` or the
    process's settings say around it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(autocast(device, False))
        if precision == "tf32" and device.type != "cpu":
            stack.enter_context(_TF32_PRODUCTS)
        yield


def _unpacked(weight: Tensor, bias: Optional[Tensor]) -> Product:
    def product(x: Tensor, addend: Optional[Tensor] = None) -> Tensor:
        y = F.linear(x, weight, bias)
        return y if addend is None else y.add_(addend)

    return product


def _dense(weight: Tensor, bias: Optional[Tensor], dtype: torch.dtype) -> Product:
    result = torch.float32 if dtype == torch.bfloat16 else dtype
    transposed = weight.to(dtype).transpose(-1, -2).contiguous()
    row = None if bias is None else bias.to(result).unsqueeze(-2)

    def product(x: Tensor, addend: Optional[Tensor] = None) -> Tensor:
        y = torch.matmul(x.to(dtype), transposed).to(result)
        for term in (row, addend):
            if term is not None:
                y += term
        return y

    return product


def _onednn(weight: Tensor, bias: Optional[Tensor]) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKING_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise

    def product(x: Tensor, addend: Optional[Tensor] = None) -> Tensor:
        n = len(x)
        rows = _few_sizes(n)
        x = _with_rows(x, rows)
        if addend is None:
            return linear(x, packed, bias, "none", [], "")[:n]
        return linear(x, _with_rows(addend, rows), packed, bias, "add")[:n]

    return product


def _few_sizes(n: int, per_power: int = 4) -> int:
    """Round up to one of a few numbers: powers of two to 16, then four (or `per_power`) to each
    power of two, 16 apart or more. oneDNN compiles a kernel for every number of rows it sees, which
    takes some milliseconds, and keeps up to 1,024 of them, 0.6 MB each."""
    if n <= 16:
        return 1 << (n - 1).bit_length() if n else 0
    step = max(16, (1 << ((n - 1).bit_length() - 1)) // per_power)
    return -(-n // step) * step


def _with_rows(x: Tensor, rows: int) -> Tensor:
    """More rows, whatever they hold: the memory behind x where there is enough, else a copy."""
    n, width = x.shape
    if rows == n:
        return x
    stride = x.stride(0)
    available = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if (rows - 1) * stride + width <= available:
        return x.as_strided((rows, width), (stride, 1))
    longer = x.new_zeros(rows, width)
    longer[:n] = x
    return longer


def _fbgemm_float16(weight: Tensor, bias: Optional[Tensor]) -> Product:
    packed = _prepack("float16", torch.ops.quantized.linear_prepack_fp16, weight, bias)
    return _fbgemm(lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed))


def _fbgemm_int8(weight: Tensor, bias: Optional[Tensor]) -> Product:
    # One scale per output row. Symmetric, so that a zero weight stays zero.
    scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch 2.13 announces that its quantized tensors will move; the operators stay.
        warnings.filterwarnings("ignore", message=".*quantize.*", category=UserWarning)
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed = _prepack("int8", torch.ops.quantized.linear_prepack, quantized, bias)
    # reduce_range: 8-bit products saturate 16-bit sums on CPUs without VNNI.
    return _fbgemm(lambda x: torch.ops.quantized.linear_dynamic(x, packed, True))


def _prepack(precision: str, prepack: Callable, weight: Tensor, bias: Optional[Tensor]) -> object:
    try:
        return prepack(weight, bias)
    except RuntimeError as error:
        raise ValueError(
            f"precision {precision!r} needs PyTorch's FBGEMM operators, which this build for this "
            f"processor lacks ({str(error).splitlines()[0]}): use precision 'float32'"
        ) from error


def _fbgemm(linear: Callable[[Tensor], Tensor]) -> Product:
    def product(x: Tensor, addend: Optional[Tensor] = None) -> Tensor:
        y = linear(x)
        return y if addend is None else y.add_(addend)

    return product


def product_dtype(x: Tensor) -> torch.dtype:
    """RETURNS (dtype): What `torch.autocast` asks for in products; that of x if it is off."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def autocast(device: torch.device, enabled: bool) -> contextlib.AbstractContextManager:
    """RETURNS (ContextManager): `torch.autocast` with bfloat16; nothing on PyTorch's meta device,
    which has no autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def compiles_per_size(device: torch.device, dtype: torch.dtype) -> bool:
    """RETURNS (bool): Whether a product in training compiles and keeps a kernel for every number of
    rows, as oneDNN does in bfloat16 on a CPU (see `_few_sizes`)."""
    return device.type == "cpu" and dtype == torch.bfloat16


def product_rows(n: int, device: torch.device, dtype: torch.dtype) -> int:
    """RETURNS (int): How many rows a product of n rows should have in training."""
    if not compiles_per_size(device, dtype):
        return n
    # Most products of more rows are those of a whole batch, of which there are few sizes anyway.
    return _few_sizes(n, 4 if n <= 256 else 8)


def operand(x: Tensor, dtype: torch.dtype) -> Tensor:
    """RETURNS (Tensor): For a product in training: x in `dtype`, with rows of zeros up to
    `product_rows`."""
    n = x.shape[-2]
    rows = product_rows(n, x.device, dtype)
    if rows == n:
        return x.to(dtype)
    padded = x.new_empty(*x.shape[:-2], rows, x.shape[-1], dtype=dtype)
    padded[..., :n, :] = x
    padded[..., n:, :] = 0
    return padded
