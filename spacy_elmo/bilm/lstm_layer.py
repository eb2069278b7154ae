"""The steps of one LSTM layer, for inference and for the forward pass of training.

Rows are packed (see `packing`). All tensors may have leading dimensions for several directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Optional

import torch
from torch import Tensor

from ..torch_private import Product
from .config import LSTMConfig

# Added to the forget gate's bias at run time (bilm-tf stores it without).
FORGET_BIAS = 1.0

# Outputs and cells of one layer, shapes (..., sequences, P) and (..., sequences, H).
LayerState = tuple[Tensor, Tensor]

# The products of one layer: from inputs to gates, and how many rows at once; from outputs to gates;
# and from width H to P. The last one runs the rest of a step: `lstm_step`, or a kernel's `forward`.
LayerProducts = tuple[Product, int, Product, Optional[Product], Callable[..., object]]


def add_forget_bias(gate_bias: Tensor) -> Tensor:
    """RETURNS (Tensor): A copy of the gates' bias, shape (..., 4H), as the gates add it."""
    bias = gate_bias.detach().clone()
    bias.chunk(4, dim=-1)[2].add_(FORGET_BIAS)
    return bias


def lstm_step(
    gates: Tensor,
    addend: Optional[Tensor],
    c_previous: Tensor,
    c: Tensor,
    hidden: Tensor,
    cell_clip: Optional[float],
    keep_gates: bool = True,
) -> None:
    """One step without the projection. Writes the activations over the gates.

    gates (Tensor): In the order i, j (candidate), f, o, without `addend`; shape (..., n, 4H).
    c_previous (Tensor): The cells before the step, shape (..., n, H).
    c (Tensor): Takes the cells after it. If this is `c_previous`, the activation of i is lost.
    hidden (Tensor): Takes the output, shape (..., n, H).
    """
    if addend is not None:
        gates += addend
    i, j, f, o = gates.chunk(4, dim=-1)
    # tanh(j) = 2 sigmoid(2j) - 1: PyTorch's sigmoid is several times as fast as its tanh, and one
    # call serves all gates. The values differ by 1e-7 at most.
    j *= 2
    gates.sigmoid_()
    j.mul_(2).sub_(1)
    candidate = torch.mul(i, j, out=i if c is c_previous else c)
    torch.addcmul(candidate, c_previous, f, out=c)
    if cell_clip is not None:
        c.clamp_(-cell_clip, cell_clip)
    torch.mul(c, 2, out=hidden).sigmoid_().mul_(2).sub_(1).mul_(o)


def run_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    products: LayerProducts,
    config: LSTMConfig,
    y: Tensor,
    state: Optional[LayerState] = None,
    cells: Optional[Tensor] = None,
) -> None:
    """Run one layer, without autograd.

    x, y (Tensor): Packed inputs, and what takes the outputs, rounded to the type of the gates.
    state (Optional[LayerState]): Before the first step, changed in place to that after each
        sequence's last step. None: zeros.
    cells (Optional[Tensor]): Takes all cells, packed like x, shape (..., rows, H).
    """
    inputs, max_rows, recurrent, projection, cell = products
    h, c = state or (None, x.new_zeros(*x.shape[:-2], batch_sizes[0], config.dim))
    kept = None if cells is None else iter(cells.split(batch_sizes, dim=-2))
    c = c if kept is None else c.contiguous()  # A compiled cell reads rows without gaps.
    previous: Any = h
    hidden = None
    for gates in _input_gates(x, batch_sizes, inputs, max_rows):
        n = gates.shape[-2]
        if hidden is None:
            low_y = y if y.dtype == gates.dtype else torch.empty_like(y, dtype=gates.dtype)
            outputs = iter(low_y.split(batch_sizes, dim=-2))
            clip = projection_clip(config, gates.dtype) or math.inf
            # Products may read more rows, at most twice as many: see `add_rows`.
            hidden = gates.new_zeros(*c.shape[:-2], 2 * n, config.dim).narrow(-2, 0, n)
        if n < c.shape[-2]:  # The shortest sequences have ended.
            c, hidden, previous = (rows.narrow(-2, 0, n) for rows in (c, hidden, previous))
        c_next = c if kept is None else next(kept)
        addend = None if previous is None else recurrent(previous)
        cell(gates, addend, c, c_next, hidden, config.cell_clip, kept is not None)
        del gates  # Free them before those of later steps are computed.
        output = hidden if projection is None else projection(hidden)
        c, previous = c_next, next(outputs)
        torch.clamp(output, -clip, clip, out=previous)
        if h is not None:
            h.narrow(-2, 0, n).copy_(previous)
    if low_y is not y:
        y.copy_(low_y)
    if state is not None and cells is not None:
        state[1].copy_(c)


def _input_gates(
    x: Tensor, batch_sizes: Sequence[int], product: Product, max_rows: int
) -> Iterator[Tensor]:
    """Compute what inputs contribute to gates, for at most `max_rows`, but at least one step.
    YIELDS (Tensor): For each step, shape (..., n, 4H). Free it before the next one."""
    start = first = 0
    while first < len(batch_sizes):
        last, n_rows = first + 1, batch_sizes[first]
        while last < len(batch_sizes) and n_rows + batch_sizes[last] <= max_rows:
            n_rows += batch_sizes[last]
            last += 1
        gates = product(x.narrow(-2, start, n_rows)).narrow(-2, 0, n_rows)
        by_step = gates.split(batch_sizes[first:last], dim=-2)
        del gates
        yield from by_step
        del by_step
        start, first = start + n_rows, last


@cache
def projection_clip(config: LSTMConfig, dtype: torch.dtype) -> Optional[float]:
    """RETURNS (Optional[float]): The bound as `dtype` has it: what is clipped is equal to it."""
    clip = config.proj_clip if config.has_projection else None
    return None if clip is None else float(torch.tensor(clip, dtype=dtype, device="cpu"))
