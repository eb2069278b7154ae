"""Which kernels run the LSTMs on a GPU: Triton's (see `triton_lstm`), or PyTorch's own.

Triton is no dependency. Where it is installed, its kernels are compiled for the GPU at hand, which
nobody may have tried before: so they are compared with the plain path first.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from .config import LSTMConfig

Kernel = Literal["auto", "torch", "triton"]

# How much results may differ; see `max_error`. In bfloat16, rounding decides for some values on
# which side of a clip they are, and there the gradient jumps.
_MAX_ERROR = {torch.float32: 0.005, torch.bfloat16: 0.1}
# The sizes of the steps that are compared.
_BATCH_SIZES = [5, 5, 5]


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
        error = max_error(device, dtype, config)
        if error <= _MAX_ERROR[dtype]:
            return True
        reason = f"a result differs by {error:.1%}"
    except Exception as error:  # Of Triton, its compiler, or the driver.
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"Triton's LSTM kernels do not work on {device} ({reason}): PyTorch's are used instead, "
        'which are slower. kernel = "torch" hides this warning',
        stacklevel=2,
    )
    return False


def max_error(device: torch.device, dtype: torch.dtype, config: LSTMConfig) -> float:
    """Compare a small batch, forward and backward, with the plain path.

    RETURNS (float): The largest mean difference of a result, in relation to the mean of its
        absolute values.
    """
    from . import triton_lstm
    from .lstm_function import train_layer

    plain_layer: Any = train_layer

    generator = torch.Generator().manual_seed(0)
    n, p, dim = _BATCH_SIZES[0], config.projection_dim, config.dim

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(2, *shape, generator=generator) * scale).to(device)

    x, dy = (random(sum(_BATCH_SIZES), p) for _ in range(2))
    weights = [random(4 * dim, 2 * p, scale=p**-0.5), random(4 * dim)]
    weights += [random(p, dim, scale=2 * dim**-0.5)] if config.has_projection else []
    # So large that cells are clipped.
    state = random(n, p), random(n, dim, scale=config.cell_clip or 1.0)
    results: list[list[Tensor]] = []
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
    ):
        for is_ours in (False, True):
            leaves: Any = [t.clone().requires_grad_() for t in (x, *weights)]
            inputs: Any = leaves if config.has_projection else [*leaves, None]
            after = state[0].clone(), state[1].clone()
            if is_ours:
                y = triton_lstm.TritonLSTMFunction.apply(*inputs, _BATCH_SIZES, config, after)
            else:
                y = plain_layer(inputs[0], _BATCH_SIZES, *inputs[1:], config, after)
            results.append([y.detach(), *torch.autograd.grad(y, leaves, dy), *after])
        # In inference.
        projection = weights[2] if config.has_projection else None
        packed = triton_lstm.Weights.cast(weights[0], weights[1], projection, dtype)
        y = torch.empty_like(dy)
        after = state[0].clone(), state[1].clone()
        triton_lstm.run_layer(x, _BATCH_SIZES, packed, 2 * n, config, y, after)
    plain, ours = results
    pairs = zip([*plain, plain[0], *plain[-2:]], [*ours, y, *after])
    errors = torch.stack([(b - a).abs().mean() / a.abs().mean() for a, b in pairs])
    return float(errors.nan_to_num(torch.inf).max())
