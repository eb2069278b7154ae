"""Products in bfloat16, and numbers of rows for oneDNN."""

from __future__ import annotations

import math
import time
import warnings
from functools import cache
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from ..parallel import no_fork, run_side_by_side

# Where training compiles and keeps a kernel for every number of rows (see `round_up`).
COMPILED_PER_SIZE = "cpu", torch.bfloat16
_SECONDS_OF_TURNS = 0.02


@cache
@no_fork()
def bfloat16_speed() -> float:
    """RETURNS (float): How many times as fast as in float32 a product is in bfloat16 on this
    processor, measured in some milliseconds in one thread: instructions do not tell. The two take
    turns, and the shortest time of each counts, because others may use the processor, too."""
    times = {torch.float32: math.inf, torch.bfloat16: math.inf}

    @torch.inference_mode()
    @torch.autocast("cpu", enabled=False)
    def measure() -> None:
        factors = {x: (torch.ones(64, 256, dtype=x), torch.ones(256, 512, dtype=x)) for x in times}
        end = time.perf_counter() + _SECONDS_OF_TURNS
        while math.inf in times.values() or time.perf_counter() < end:
            for dtype, pair in [*factors.items()] * 4:
                start = time.perf_counter()
                torch.mm(*pair)
                times[dtype] = min(time.perf_counter() - start, times[dtype])

    # Beside an empty task, so that the thread has one thread inside operators.
    run_side_by_side([measure, lambda: None], torch.device("cpu"))
    return times[torch.float32] / times[torch.bfloat16]


def bfloat16_is_faster() -> bool:
    """RETURNS (bool): Whether this processor is clearly faster in bfloat16 than in float32."""
    return bfloat16_speed() >= 1.2  # Processors that are made for it have 1.5, others 0.5 or less.


def usable_mixed_precision(enabled: bool, device: torch.device) -> bool:
    """RETURNS (bool): The setting, but False, with a warning, where bfloat16 brings nothing."""
    if not enabled or device.type not in ("cpu", "cuda"):
        return enabled
    if device.type == "cpu":
        supported = bfloat16_is_faster()
        why = f"processor: it is {bfloat16_speed():.2g} times as fast in bfloat16 as in float32"
    else:
        why = "GPU: it has no products of bfloat16 (NVIDIA's have them since Ampere)"
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
    if not supported:
        message = f"mixed_precision = true brings nothing on this {why}; training runs in float32"
        warnings.warn(message, stacklevel=3)
    return supported


def _autocast_device(device: torch.device) -> str:
    # PyTorch's meta device has no autocast: the CPU's stands for it.
    return device.type if torch.amp.is_autocast_available(device.type) else "cpu"


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """RETURNS (ContextManager): `torch.autocast` with bfloat16."""
    return torch.autocast(_autocast_device(device), torch.bfloat16, enabled=enabled)


def product_dtype(x: Tensor) -> torch.dtype:
    """RETURNS (dtype): What `autocast` asks for in products; the type of x if it is off."""
    kind = _autocast_device(x.device)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def round_up(n: int, per_power: int = 4) -> int:
    """Round a number of rows up to one of a few sizes: powers of two to 16, then four (or
    `per_power`) to each power of two. oneDNN compiles a kernel for every number of rows it sees,
    which takes some milliseconds, and keeps up to 1,024 of them, 0.6 MB each."""
    if n <= 16:
        return 1 << (n - 1).bit_length() if n else 0
    step = max(16, (1 << ((n - 1).bit_length() - 1)) // per_power)
    return -(-n // step) * step


def add_rows(x: Tensor) -> Tensor:
    """Add rows, whatever they hold, up to `round_up`: the memory behind x if it is enough."""
    n, width = x.shape
    rows = round_up(n)
    if rows == n:
        return x
    stride = x.stride(0)
    available = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if (rows - 1) * stride + width <= available:
        return x.as_strided((rows, width), (stride, 1))
    return F.pad(x, (0, 0, 0, rows - n))


def product_rows(n: int, device: torch.device, dtype: torch.dtype) -> int:
    """RETURNS (int): How many rows a product of n rows should have in training."""
    if (device.type, dtype) != COMPILED_PER_SIZE:
        return n
    return round_up(n, 4 if n <= 256 else 8)


def operand(x: Tensor, dtype: torch.dtype) -> Tensor:
    """RETURNS (Tensor): x in `dtype` as an operand of a training's products; see `product_rows`."""
    n = x.shape[-2]
    if x.dtype == dtype or (rows := product_rows(n, x.device, dtype)) == n:
        return x.to(dtype)
    padded = x.new_empty(*x.shape[:-2], rows, x.shape[-1], dtype=dtype)
    padded[..., :n, :], padded[..., n:, :] = x, 0
    return padded


def step_product(x: Tensor, weight: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """RETURNS (Tensor): `x @ weight` for one step of a training, computed in the weight's type."""
    n = x.shape[-2]
    if x.dtype == weight.dtype and (x.device.type, x.dtype) == COMPILED_PER_SIZE and x.dim() == 2:
        x = add_rows(x)
    return torch.matmul(operand(x, weight.dtype), weight)[..., :n, :].to(dtype or weight.dtype)
