"""Which kernels run: this package's own, or PyTorch's.

On a GPU these are Triton's. Triton is no dependency; where it is installed, its kernels are
compiled for the GPU at hand. On a CPU they are C, which is built if there is a compiler.
Nobody may have tried them on this machine before: so they are compared with the plain path first.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

Kernel = Literal["auto", "torch", "triton"]

# How much results may differ. In bfloat16, rounding decides for some values on which side of a clip
# they are, and there the gradient jumps.
_TOLERANCE = {torch.float32: 0.005, torch.bfloat16: 0.1}


@cache
def load_kernels(
    name: str,
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    *settings: Hashable,
    weight_dtype: torch.dtype = torch.float32,
) -> Any:
    """Import a module of kernels, if they are to run. The answer is kept.

    name (str): The module: `compiled_NAME` is for CPUs, `triton_NAME` for all other devices. Its
        `max_error(device, dtype, *settings)` compares a small batch with the plain path.
    kernel (str): "auto": on a CPU, if they were built, or on a CUDA device, if Triton is installed;
        and if the results agree. If they do not, a warning says so. "triton": on any device but a
        CPU, where it means "auto". "torch": never.
    dtype (dtype): The type of products.
    weight_dtype (dtype): The type of weights, cells and losses. Compiled kernels are for float32:
        they get addresses, and would read and write past the end of anything narrower.
    RETURNS (Optional[module]): None for the plain path.
    """
    on_cpu = device.type == "cpu"
    if kernel == "torch" or on_cpu != name.rpartition(".")[2].startswith("compiled"):
        return None
    if not on_cpu and kernel == "triton":
        if find_spec("triton") is None:
            raise ValueError(
                'kernel = "triton", but Triton is not installed: pip install triton, or set '
                'kernel = "auto"'
            )
        return import_module(name)
    fits = weight_dtype == torch.float32 if on_cpu else device.type == "cuda"
    required = f"{__package__}._kernels" if on_cpu else "triton"
    if not fits or dtype not in _TOLERANCE or find_spec(required) is None:
        return None
    try:
        kernels = import_module(name)
        error = kernels.max_error(device, dtype, *settings)
        if error <= _TOLERANCE[dtype]:
            return kernels
        reason = f"a result differs by {100 * error:.3g}%"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Of Triton, its compiler, or the driver.
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"the kernels of {name} do not work on {device} ({reason}): PyTorch's are used, "
        'which are slower; kernel = "torch" chooses them without a warning',
        stacklevel=2,
    )
    return None


def relative_error(pairs: Any) -> float:
    """RETURNS (float): The largest error of some pairs of tensors (expected, actual): their mean
    absolute difference, divided by the mean absolute value of the expected one; infinite for NaN.
    """
    errors = [(b - a).abs().mean() / a.abs().mean() for a, b in pairs]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())
