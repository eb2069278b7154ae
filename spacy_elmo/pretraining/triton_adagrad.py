"""Adagrad with clipped gradients on a GPU: one Triton kernel per parameter, which reads a gradient
once more after its norm, and no more. Importing this file needs Triton."""

# Triton reads the annotations of kernels: constexpr or nothing.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..bilm.kernels import mean_error
from ..bilm.triton_cell import operator

# Numbers of one program, by 4 warps.
BLOCK = 1024


@triton.jit
def adagrad_kernel(parameter, gradient, sums, norm, limit, rate, n, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    # As torch.nn.utils.clip_grad_norm_ and torch.optim.Adagrad have it.
    scale = tl.minimum(limit / (tl.load(norm) + 1e-6), 1.0, propagate_nan=tl.PropagateNan.ALL)
    g = tl.load(gradient + place, inside, other=0.0) * scale
    total = tl.load(sums + place, inside, other=0.0) + g * g
    value = tl.load(parameter + place, inside, other=0.0)
    tl.store(sums + place, total, inside)
    tl.store(parameter + place, value - rate * tl.div_rn(g, tl.sqrt_rn(total) + 1e-10), inside)


@operator(
    "adagrad(Tensor(a!) parameter, Tensor gradient, Tensor(b!) sums, Tensor norm, float limit, "
    "float rate) -> ()"
)
def adagrad(
    parameter: Tensor, gradient: Tensor, sums: Tensor, norm: Tensor, limit: float, rate: float
) -> None:
    """Update a parameter and its sums of squares.

    gradient (Tensor): Before it is clipped.
    norm (Tensor): That of all gradients, shape ().
    limit (float): Its bound.
    """
    n = parameter.numel()
    arguments = parameter, gradient.contiguous(), sums, norm, limit, rate, n
    adagrad_kernel[triton.cdiv(n, BLOCK),](*arguments, BLOCK=BLOCK, num_warps=4)


@torch.no_grad()
def clip_and_step(
    optimizer: torch.optim.Optimizer, others: Iterable[Tensor], limit: float
) -> Tensor:
    """Clip gradients by their global norm, and make a step of Adagrad.

    optimizer (Adagrad): Has all parameters in one group, without decay.
    others (Iterable[Tensor]): Further tensors, whose gradients are only clipped.
    RETURNS (Tensor): The norm before it was clipped.
    """
    [group] = optimizer.param_groups
    parameters = [p for p in group["params"] if p.grad is not None]
    gradients = [tensor.grad for tensor in (*parameters, *others)]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    for parameter in parameters:
        state = optimizer.state[parameter]
        adagrad(parameter, parameter.grad, state["sum"], norm, limit, group["lr"])
        state["step"] += 1
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients[len(parameters) :]:
        gradient *= scale
    return norm


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): How much a step differs from PyTorch's own; see `mean_error`."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for limit in (0.5, torch.inf):
        results: Any = []
        for is_ours in (False, True):
            generator = torch.Generator().manual_seed(0)
            tensors = [torch.randn(2000, generator=generator).to(device) for _ in range(4)]
            leaves = [tensor.clone().requires_grad_() for tensor in tensors[:2]]
            for leaf, gradient in zip(leaves, tensors[2:]):
                leaf.grad = gradient.clone()
            optimizer = torch.optim.Adagrad(leaves[:1], 0.2, initial_accumulator_value=0.01)
            if is_ours:
                norm = clip_and_step(optimizer, leaves[1:], limit)
            else:
                norm = torch.nn.utils.clip_grad_norm_(leaves, limit)
                optimizer.step()
            sums = optimizer.state[leaves[0]]["sum"]
            clipped: Any = leaves[1].grad
            results.append([norm, leaves[0].detach(), sums, clipped])
        pairs += zip(*results)
    return mean_error(pairs)
