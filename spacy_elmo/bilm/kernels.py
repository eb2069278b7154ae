"""Which kernels run the LSTMs on a GPU: Triton's (see `triton_lstm`), or PyTorch's own.

Triton is no dependency. Where it is installed, its kernels are compiled for the GPU at hand, which
nobody may have tried before: so they are compared with the plain path first.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from .config import LSTMConfig

Kernel = Literal["auto", "torch", "triton"]

# How much a result may differ, in relation to its norm. In bfloat16, rounding decides for some
# values on which side of a clip they are.
_MAX_ERROR = {torch.float32: 0.005, torch.bfloat16: 0.05}
# The sizes of the steps that are compared.
_BATCH_SIZES = [5, 4, 4, 1]


def use_triton(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, config: LSTMConfig
) -> bool:
    """RETURNS (bool): Whether LSTMs run on Triton's kernels; never on a CPU.

    kernel (str): "auto": if they are installed, for this device, and give the same results there,
        else with a warning on PyTorch's. "torch" or "triton": without a comparison.
    dtype (dtype): Of products.
    """
    if kernel == "auto":
        return device.type == "cuda" and dtype in _MAX_ERROR and _agrees(device, dtype, config)
    return kernel == "triton" and device.type != "cpu"


@cache
def _agrees(device: torch.device, dtype: torch.dtype, config: LSTMConfig) -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    try:
        error = _max_error(device, dtype, config)
        if error <= _MAX_ERROR[dtype]:
            return True
        reason = f"a result differs by {error:.2g} of its norm"
    except Exception as error:  # Of Triton, its compiler, or the driver.
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"Triton's LSTM kernels do not work on {device} ({reason}): PyTorch's are used instead, "
        "which are slower. kernel = \"torch\" hides this warning",
        stacklevel=2,
    )
    return False


def _max_error(device: torch.device, dtype: torch.dtype, config: LSTMConfig) -> float:
    """RETURNS (float): The largest difference between Triton's results for a small batch, forward
    and backward, and those of the plain path; infinite if there are NaNs."""
    from . import triton_lstm
    from .lstm_function import train_layer

    generator = torch.Generator().manual_seed(0)
    p, dim, n_rows = config.projection_dim, config.dim, sum(_BATCH_SIZES)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(2, *shape, generator=generator) * scale).to(device)

    x, bias, dy = random(n_rows, p), random(4 * dim), random(n_rows, p)
    weight, projection = random(4 * dim, 2 * p, scale=p**-0.5), random(p, dim, scale=2 * dim**-0.5)
    results: list[list[Tensor]] = []
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
    ):
        for is_ours in (False, True):
            leaves = [t.clone().requires_grad_() for t in (x, weight, bias, projection)]
            weights = leaves[1], leaves[2], leaves[3] if config.has_projection else None
            if is_ours:
                y = triton_lstm.TritonLSTMFunction.apply(leaves[0], *weights, _BATCH_SIZES, config)
            else:
                y = train_layer(leaves[0], _BATCH_SIZES, *weights, config)
            used = leaves if config.has_projection else leaves[:3]
            results.append([y.detach(), *torch.autograd.grad(y, used, dy)])
        y = torch.empty_like(y)
        packed = triton_lstm.Weights.cast(*weights, dtype)
        triton_lstm.run_layer(x, _BATCH_SIZES, packed, n_rows, config, y)
    plain, ours = results
    pairs = zip([*plain, plain[0]], [*ours, y])
    errors = torch.stack([(b - a).norm() / a.norm() for a, b in pairs])
    return float(errors.nan_to_num(torch.inf).max())
