"""Matrix products in bfloat16 during training, as `torch.autocast` asks for them."""

from __future__ import annotations

import contextlib
import warnings
from typing import Optional

import torch
from torch import Tensor

from .onednn import add_rows, round_up

# The device and the type in which a product of training compiles and keeps a kernel for every
# number of rows, as oneDNN does (see `round_up`).
COMPILED_PER_SIZE = "cpu", torch.bfloat16


def cpu_has_bfloat16() -> bool:
    """RETURNS (bool): Whether the processor multiplies bfloat16, and PyTorch can use that."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # Not in old versions.
    supported = any(getattr(torch.cpu, name, lambda: False)() for name in tests)
    return supported and torch.backends.mkldnn.is_available()


def usable_mixed_precision(enabled: bool, device: torch.device) -> bool:
    """RETURNS (bool): The setting, but False, with a warning, on a processor or GPU that has no
    instructions for bfloat16: what emulates them is many times slower than float32."""
    if not enabled or device.type not in ("cpu", "cuda"):
        return enabled
    if device.type == "cpu":
        name, needed, supported = "processor", "AVX512-BF16 or AMX", cpu_has_bfloat16()
    else:
        name, needed = "GPU", "NVIDIA's have them since Ampere"
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
    if not supported:
        warnings.warn(
            f"mixed_precision = true would be many times slower than float32 on this {name}, which "
            f"has no instructions for bfloat16 ({needed}); training runs in float32",
            stacklevel=3,
        )
    return supported


def autocast(device: torch.device, enabled: bool) -> contextlib.AbstractContextManager:
    """RETURNS (ContextManager): `torch.autocast` with bfloat16. PyTorch's meta device has none: the
    CPU's stands for it."""
    kind = device.type if torch.amp.is_autocast_available(device.type) else "cpu"
    return torch.autocast(kind, torch.bfloat16, enabled=enabled)


def product_dtype(x: Tensor) -> torch.dtype:
    """RETURNS (dtype): What `autocast` asks for in products; that of x if it is off."""
    kind = x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu"
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def product_rows(n: int, device: torch.device, dtype: torch.dtype) -> int:
    """RETURNS (int): How many rows a product of n rows should have in training."""
    if (device.type, dtype) != COMPILED_PER_SIZE:
        return n
    # Most products of more rows are those of a whole batch, of which there are few sizes anyway.
    return round_up(n, 4 if n <= 256 else 8)


def operand(x: Tensor, dtype: torch.dtype) -> Tensor:
    """RETURNS (Tensor): For a product in training: x in `dtype`, with rows of zeros up to
    `product_rows`."""
    if x.dtype == dtype:
        return x
    n = x.shape[-2]
    rows = product_rows(n, x.device, dtype)
    if rows == n:
        return x.to(dtype)
    padded = x.new_empty(*x.shape[:-2], rows, x.shape[-1], dtype=dtype)
    padded[..., :n, :] = x
    padded[..., n:, :] = 0
    return padded


def step_product(x: Tensor, weight: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """RETURNS (Tensor): `x @ weight` for one step of a training, computed in the type of the
    weight, in that type or another one."""
    n = x.shape[-2]
    if x.dtype == weight.dtype and (x.device.type, x.dtype) == COMPILED_PER_SIZE:
        x = add_rows(x)
    return torch.matmul(operand(x, weight.dtype), weight)[..., :n, :].to(dtype or weight.dtype)
