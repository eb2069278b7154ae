"""Kernels that run instead of PyTorch's operators: C on a CPU, Triton on a GPU (experimental). At
first use, their results are compared with PyTorch's. What is deleted from `MODULES` is not used.
"""

from __future__ import annotations

import math
import warnings
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

Kernel = Literal["auto", "torch", "triton"]

# For each type of device a module, and what it needs. It has `forward` and `backward` for the cell
# of an LSTM and `max_error`, as `compiled` has; for a CPU, also `softmax_gradient`, and what
# runs and trains whole layers.
MODULES = {
    "cpu": (f"{__package__}.compiled", f"{__package__}._kernels"),
    "cuda": (f"{__package__}.triton_cell", "triton"),
}

# How much results may differ. In bfloat16, rounding decides for some values on which side of a clip
# they are, and there the gradient jumps.
_TOLERANCE = {torch.float32: 0.005, torch.bfloat16: 0.1}


@cache
def load_kernels(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    batched: bool = False,
) -> Any:
    """Import the module of kernels for a device, if they are to run. The answer is kept.

    dtype (dtype): The type of products.
    weight_dtype (dtype): The type of weights, cells and losses: float32, or C would read and write
        past the end.
    batched (bool): Both directions of a layer are in one tensor, which C does not read.
    RETURNS (Optional[module]): None for PyTorch's operators.
    """
    on_cpu = device.type == "cpu"
    name, required = MODULES.get("cpu" if on_cpu else "cuda", ("", ""))
    if kernel == "torch" or (batched if on_cpu else kernel != "triton"):
        return None
    if not name or weight_dtype != torch.float32 or dtype not in _TOLERANCE:
        return None
    if find_spec(required) is not None:
        return _compared(name, device, dtype)
    if on_cpu:
        return None
    raise ValueError(
        'kernel = "triton", but Triton is not installed: pip install triton, or set kernel = "auto"'
    )


def _compared(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """RETURNS (Optional[module]): None, with a warning, if its results are not PyTorch's."""
    try:
        module = import_module(name)
        # PyTorch's meta device has no values.
        error = 0.0 if device.type == "meta" else module.max_error(device, dtype)
        if error <= _TOLERANCE[dtype]:
            return module
        reason = f"a result differs by {100 * error:.3g}%"
    except Exception as error:  # Triton, its compiler, or the driver fails.
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"the kernels of {name} do not work on {device} ({reason}): PyTorch's are used, "
        'which are slower; kernel = "torch" chooses them without a warning',
        stacklevel=3,
    )
    return None


def cell_error(module: Any, device: torch.device, dtype: torch.dtype, *directions: int) -> float:
    """RETURNS (float): How much a small step of a cell, forward and backward, differs from
    PyTorch's; see `relative_error`."""
    n, dim, clip = 3, 37, 0.5
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        draw = partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
        kinds = (4 * dim, dtype), (dim, torch.float32), (dim, dtype), (dim, torch.float32)
        gates, c_previous, d_hidden, d_c = (
            draw(*directions, n, width).to(device, kind) for width, kind in kinds
        )
        leaves = [gates.double().requires_grad_(), c_previous.double().requires_grad_()]
        i, j, f, o = leaves[0].chunk(4, dim=-1)
        cells = (i.sigmoid() * j.tanh() + leaves[1] * f.sigmoid()).clamp(-clip, clip)
        output = o.sigmoid() * cells.tanh()
        expected = torch.autograd.grad([output, cells], leaves, [d_hidden.double(), d_c.double()])
    half, c, hidden, again = gates / 2, *(torch.empty_like(x) for x in (d_c, d_hidden, d_hidden))
    module.forward(half, half.clone(), c_previous, c, hidden, clip, True)
    d_bias = c.new_zeros(*directions, math.ceil(n / module.BIAS_ROWS), 4 * dim)
    d_gates = torch.empty_like(half)
    module.backward(half, c_previous, c, d_hidden, d_c, d_bias, d_gates, again, clip)
    wanted = output.detach(), output.detach(), cells.detach(), *expected, expected[0].sum(-2)
    return relative_error(zip(wanted, (hidden, again, c, d_gates, d_c, d_bias.sum(-2))))


def relative_error(pairs: Any) -> float:
    """RETURNS (float): The largest error of some pairs of tensors (expected, actual): their mean
    difference, divided by the mean of the expected one; infinite for NaN."""
    errors = [(b - a).abs().mean() / a.abs().mean() for a, b in pairs]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())
