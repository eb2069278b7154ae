"""How to run a biLM; not part of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional, get_args

import torch

from ..bilm.mixed_precision import bfloat16_is_faster, bfloat16_speed
from ..bilm.validation import check_range
from ..kernels import Kernel

Precision = Literal["float32", "float16", "int8", "tf32", "bfloat16", "auto"]
CPU_PRECISIONS = ("float32", "float16", "int8", "bfloat16")
GPU_PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """Settings of a `Session`.

    precision (str): Arithmetic of the products: float32, float16, int8 or (if the processor is
        faster in it) bfloat16 on a CPU, float32, tf32 or bfloat16 on a GPU. auto: the
        fastest one whose vectors have a cosine of 0.9999 or more with those of float32. While tf32
        runs, float32 products of other threads use TF32, too.
    max_tokens_per_batch (Optional[int]): Tokens that are computed at once, sentence boundaries
        included. None: 2,048 on a CPU, 8,192 on a GPU.
    type_cache_mb (float): Bound of the encodings of word types that are kept, in MiB.
    stateful (bool): Carry each row's LSTM state from one call to the next, as older
        implementations do: row i continues from row i of the last call. For comparisons only.
    kernel (str): What runs the LSTMs and, on a CPU, the loss of a pretraining. "auto": on a CPU the
        compiled kernels, if there was a C compiler at installation; on a GPU PyTorch. "torch":
        PyTorch alone. "triton": on a GPU Triton's kernels, which are experimental: no GPU has run
        them yet. Kernels that do not give PyTorch's results at first use are left out, with a
        warning.
    RAISES (ValueError): If a value is impossible on any device.
    """

    precision: Precision = "float32"
    max_tokens_per_batch: Optional[int] = None
    type_cache_mb: float = 64.0
    stateful: bool = False
    kernel: Kernel = "auto"

    def __post_init__(self) -> None:
        for name, choices in (("precision", get_args(Precision)), ("kernel", get_args(Kernel))):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")
        check_range("type_cache_mb", self.type_cache_mb, 0)
        if self.max_tokens_per_batch is not None:
            check_range("max_tokens_per_batch", self.max_tokens_per_batch, 1)

    def max_tokens(self, device: torch.device) -> int:
        """RETURNS (int): `max_tokens_per_batch` for a device. On a GPU, computing a step must take
        longer than asking for it."""
        return self.max_tokens_per_batch or (2048 if device.type == "cpu" else 8192)


def check_precision(precision: Precision, device: torch.device) -> None:
    """RAISES (ValueError): If the precision is not for this device."""
    allowed = ["auto", *(CPU_PRECISIONS if device.type == "cpu" else GPU_PRECISIONS)]
    why = f"is not for the device {str(device)!r}"
    if precision == "bfloat16" and device.type == "cpu" and not bfloat16_is_faster():
        allowed.remove(precision)
        speed = f"{bfloat16_speed():.2g} times as fast in it as in 'float32'"
        why = f"brings nothing on this processor, whose products are {speed}"
    if precision not in allowed:
        raise ValueError(f"precision {precision!r} {why}: choose one of {', '.join(allowed)}")
