"""Adagrad with clipped gradients on a GPU: one Triton kernel per parameter, which reads a gradient
once more after its norm, and no more. Importing this file needs Triton."""

# Triton reads the annotations of kernels: constexpr or nothing.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from . import relative_error
from .triton_cell import operator

# Numbers of one program, by 4 warps.
BLOCK = 1024


@triton.jit
def adagrad_kernel(
    parameter,
    gradient,
    sums,
    rows,  # None: all.
    norm,
    limit,
    rate,
    width,
    BLOCK: tl.constexpr,
):
    n_blocks = (width + BLOCK - 1) // BLOCK
    row, block = (tl.program_id(0) // n_blocks).to(tl.int64), tl.program_id(0) % n_blocks
    column = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    # As torch.nn.utils.clip_grad_norm_ and torch.optim.Adagrad have it.
    size = tl.load(norm)
    g = tl.load(gradient + row * width + column, inside, other=0.0)
    g *= tl.minimum(limit / (size + 1e-6), 1.0)
    # A gradient that is not finite changes nothing.
    g = tl.where(tl.abs(size) < float("inf"), g, 0.0)
    place = (row if rows is None else tl.load(rows + row)) * width + column
    total = tl.load(sums + place, inside, other=0.0) + g * g
    value = tl.load(parameter + place, inside, other=0.0)
    tl.store(sums + place, total, inside)
    tl.store(parameter + place, value - rate * tl.div_rn(g, tl.sqrt_rn(total) + 1e-10), inside)


@operator(
    "adagrad(Tensor(a!) parameter, Tensor gradient, Tensor(b!) sums, Tensor? rows, Tensor norm, "
    "float limit, float rate) -> ()"
)
def adagrad(
    parameter: Tensor,
    gradient: Tensor,
    sums: Tensor,
    rows: Optional[Tensor],
    norm: Tensor,
    limit: float,
    rate: float,
) -> None:
    """Update a parameter, or some rows of it, and the sums of squares.

    gradient (Tensor): Of these rows, before it is clipped.
    rows (Optional[Tensor]): Distinct rows. None: all.
    norm (Tensor): That of all gradients, shape ().
    limit (float): Its bound.
    """
    n_rows = 1 if rows is None else len(rows)
    width = gradient.numel() // n_rows
    block = min(BLOCK, triton.next_power_of_2(width))
    arguments = parameter, gradient.contiguous(), sums, rows, norm, limit, rate, width
    grid = (n_rows * triton.cdiv(width, block),)
    adagrad_kernel[grid](*arguments, BLOCK=block, num_warps=max(1, block // 256))


@torch.no_grad()
def clip_and_step(
    optimizer: torch.optim.Optimizer,
    limit: float,
    copies: Mapping[nn.Parameter, Tensor] = {},
    rows: Optional[Tensor] = None,
) -> Tensor:
    """Clip gradients by their global norm, and make a step of Adagrad, if the norm is finite.

    optimizer (Adagrad): Has all parameters in one group, without decay.
    limit (float): Bound of the norm.
    copies (Mapping): For parameters that have no gradient, copies of some rows that have one.
    rows (Optional[Tensor]): These rows.
    RETURNS (Tensor): The norm before it was clipped.
    """
    [group] = optimizer.param_groups
    updates: list[Any] = [(p, p.grad, None) for p in group["params"] if p.grad is not None]
    updates += [(p, copy.grad, rows) for p, copy in copies.items()]
    gradients = [gradient for _, gradient, _ in updates]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    for parameter, gradient, own_rows in updates:
        state = optimizer.state[parameter]
        adagrad(parameter, gradient, state["sum"], own_rows, norm, limit, group["lr"])
        state["step"] += 1
    return norm


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): How much a step differs from PyTorch's own, of all rows and of some; see
    `relative_error`."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for limit in (0.5, torch.inf):
        generator = torch.Generator().manual_seed(0)
        tensors = (torch.randn(60, 40, generator=generator).to(device) for _ in range(4))
        weight, other, gradient, other_gradient = tensors
        rows = torch.arange(0, 60, 7, device=device)
        in_rows = torch.zeros_like(other_gradient)
        in_rows[rows] = other_gradient[rows]
        results = []
        for is_ours in (False, True):
            parameters = [nn.Parameter(tensor.clone()) for tensor in (weight, other)]
            optimizer = torch.optim.Adagrad(parameters, 0.2, initial_accumulator_value=0.01)
            parameters[0].grad = gradient.clone()
            if is_ours:
                copy = torch.zeros_like(other[rows])
                copy.grad = other_gradient[rows]
                norm = clip_and_step(optimizer, limit, {parameters[1]: copy}, rows)
            else:
                parameters[1].grad = in_rows
                norm = nn.utils.clip_grad_norm_(parameters, limit)
                optimizer.step()
            sums = [optimizer.state[parameter]["sum"] for parameter in parameters]
            results.append([norm, *(parameter.detach() for parameter in parameters), *sums])
        pairs += zip(*results)
    return relative_error(pairs)
