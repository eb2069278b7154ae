"""One LSTM layer with the gradient written out.

Autograd would record a dozen operations per step, and allocate memory for each. Here the forward
pass keeps the gates and the cells. The backward pass does per step what depends on the next step,
and everything else for all steps at once: above all the gradients of the weights, which are one
large product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import Kernel, load_kernels
from .config import LSTMConfig
from .lstm_layer import (
    COMPILED_CELL,
    FORGET_BIAS,
    LayerProducts,
    LayerState,
    lstm_step,
    projection_clip,
    run_layer,
)
from .mixed_precision import operand, product_dtype, product_rows, step_product
from .packing import previous_rows, to_device
from .threads import run_side_by_side


class LSTMFunction(torch.autograd.Function):
    """One layer with autograd. Products are in the type that `torch.autocast` asks for, if it is
    on; cells, outputs and gradients of weights are in that of the weights, and so are the gates
    without a compiled cell."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        projection_weight: Optional[Tensor],
        batch_sizes: Sequence[int],
        config: LSTMConfig,
        state: Optional[LayerState] = None,
        kernel: Kernel = "auto",
        *second: Optional[Tensor],
    ) -> Tensor:
        """Run one direction, if x has 2 dimensions; both in batched products, if it has 3; or both
        side by side, each in a thread (see `threads`), if `second` is given.

        x (Tensor): Packed inputs, shape (..., rows, in).
        gate_weight (Tensor): Shape (..., 4H, in + P), gates in the order i, j (candidate), f, o.
        gate_bias (Tensor): Shape (..., 4H).
        projection_weight (Optional[Tensor]): Shape (..., P, H).
        batch_sizes (Sequence[int]): Sequences that are active at each step; falling.
        config (LSTMConfig): The hyper-parameters.
        state (Optional[LayerState]): Before the first step, changed in place to that after the last
            one: then all sequences must be of one length. No gradient flows into it. None: zeros.
        kernel (str): "torch": without a compiled cell. Batched products always are.
        second (Optional[Tensor]): Gate weight, gate bias and projection weight of the backward
            direction. Then the three above are those of the forward direction, and x has shape
            (2, rows, in). This avoids copies of the weights and of their gradients.
        RETURNS (Tensor): The outputs, packed like x, shape (..., rows, P).
        """
        dtype = product_dtype(x)
        ctx.batch_sizes, ctx.config, ctx.dtype = batch_sizes, config, dtype
        ctx.cell = None
        if second or x.dim() == 2:
            ctx.cell = load_kernels(COMPILED_CELL, kernel, x.device, dtype, weight_dtype=x.dtype)
        y = x.new_empty(*x.shape[:-1], config.projection_dim)
        weights = gate_weight, gate_bias, projection_weight
        runs: Any = [(x, y, *(state or (None, None)), *weights)]
        if second:  # Each direction has a row of what they share.
            runs = [*zip(x, y, *(state or [(None, None)] * 2), *zip(weights, second))]
        ctx.n_runs = len(runs)
        saved = run_side_by_side([partial(_forward, ctx, *run) for run in runs], x.device)
        ctx.save_for_backward(x, y, *chain(*saved))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Optional[Tensor], ...]:
        x, y, *saved = ctx.saved_tensors
        runs: Any = [(x, y, dy, *saved)]
        if ctx.n_runs > 1:
            half = len(saved) // 2
            runs = zip(x, y, dy, *zip(saved[:half], saved[half:]))
        gradients = run_side_by_side([partial(_backward, ctx, *run) for run in runs], x.device)
        if len(gradients) == 1:
            return *gradients[0], None, None, None, None
        (d_first, *d_weights), (d_second, *d_others) = gradients
        d_x = None if d_first is None or d_second is None else torch.stack((d_first, d_second))
        return d_x, *d_weights, None, None, None, None, *d_others


@torch.no_grad()  # A setting of each thread.
def _forward(
    ctx: Any,
    x: Tensor,
    y: Tensor,
    h: Optional[Tensor],
    c: Optional[Tensor],
    gate_weight: Tensor,
    gate_bias: Tensor,
    projection_weight: Optional[Tensor],
) -> tuple[Optional[Tensor], ...]:
    """Takes y as `run_layer` does. RETURNS (tuple): What `_backward` needs: the matrices, gates
    after the activation, cells, and the outputs and cells before the first step."""
    dtype, config = ctx.dtype, ctx.config
    width, dim, n_rows = x.shape[-1], config.dim, x.shape[-2]
    weight = gate_weight.to(dtype)
    bias = gate_bias.clone()
    bias[..., 2 * dim : 3 * dim] += FORGET_BIAS
    transposed = weight[..., :width].transpose(-1, -2)
    x_cast = operand(x, dtype)
    if ctx.cell is not None:
        gates = torch.addmm(bias.to(dtype), x_cast, transposed)
    else:
        gates = torch.matmul(x_cast, transposed)[..., :n_rows, :].to(x.dtype)
        gates += bias.unsqueeze(-2)
    recurrent = weight[..., width:].transpose(-1, -2).contiguous()
    projection: Any = None
    if projection_weight is not None:
        projection_cast = projection_weight.to(dtype).transpose(-1, -2).contiguous()
        projection = partial(step_product, weight=projection_cast, dtype=gates.dtype)
    cell = lstm_step if ctx.cell is None else ctx.cell.forward
    products = LayerProducts(
        lambda x: gates, partial(step_product, weight=recurrent), projection, n_rows, cell
    )
    cells = x.new_empty(*x.shape[:-1], dim)
    h0, c0, state = None, x.new_zeros(*x.shape[:-2], ctx.batch_sizes[0], dim), None
    if h is not None and c is not None:
        h0, c0, state = h.clone(), c.clone(), (h, c)
    run_layer(x, ctx.batch_sizes, products, config, y, state, cells)
    return gate_weight, projection_weight, gates, cells, h0, c0


@torch.no_grad()
def _backward(
    ctx: Any,
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    gate_weight: Tensor,
    projection_weight: Optional[Tensor],
    gates: Tensor,
    cells: Tensor,
    h0: Optional[Tensor],
    c0: Tensor,
) -> tuple[Optional[Tensor], ...]:
    """RETURNS (tuple): The gradients of x, of the gates' weight and bias, and of the projection."""
    batch_sizes, dtype = ctx.batch_sizes, ctx.dtype
    width, n_rows = x.shape[-1], x.shape[-2]
    weight = gate_weight.to(dtype)
    recurrent = weight[..., width:].contiguous()
    projection = None if projection_weight is None else projection_weight.to(dtype)
    previous = to_device(previous_rows(batch_sizes), x.device)
    d_out = dy.clone(memory_format=torch.contiguous_format)
    if ctx.cell is not None:
        d_gates_cast, hidden = torch.empty_like(gates), gates.new_empty(len(gates), ctx.config.dim)
        outputs = d_gates_cast, hidden, d_out
        d_bias = _compiled_steps(ctx, gates, cells, c0, *outputs, y, recurrent, projection)
        for padded in (d_gates_cast, hidden):
            padded[n_rows:] = 0
    else:
        factors = _derivatives(gates, cells, c0, previous, ctx.config.cell_clip)
        d_gates_cast = _backward_steps(ctx, factors, d_out, y, recurrent, projection)
        d_bias, hidden = factors.gates.sum(-2), factors.hidden
    h_previous = torch.empty_like(y)
    h_previous[..., : batch_sizes[0], :] = 0 if h0 is None else h0
    h_previous[..., batch_sizes[0] :, :] = y[..., previous, :]
    inputs = operand(torch.cat((x, h_previous), dim=-1), dtype)
    d_gates = d_gates_cast[..., : inputs.shape[-2], :]
    d_weight = torch.matmul(d_gates.transpose(-1, -2), inputs).to(gate_weight.dtype)
    d_projection = None
    if projection is not None:
        d_out_cast = operand(d_out, dtype).transpose(-1, -2)
        d_projection = torch.matmul(d_out_cast, operand(hidden, dtype)).to(x.dtype)
    d_x = None
    if ctx.needs_input_grad[0]:
        d_x = torch.matmul(d_gates, weight[..., :width])[..., :n_rows, :].to(x.dtype)
    return d_x, d_weight, d_bias, d_projection


def _compiled_steps(
    ctx: Any,
    gates: Tensor,
    cells: Tensor,
    c0: Tensor,
    d_gates: Tensor,
    hidden: Tensor,
    d_out: Tensor,
    y: Tensor,
    recurrent: Tensor,
    projection: Optional[Tensor],
) -> Tensor:
    """Go back through time with `ctx.cell`. Fills `d_gates` with the gradients of the gates, and
    `hidden` with the outputs before the projection; turns `d_out` into the gradients of the outputs
    before the clipping. RETURNS (Tensor): The gradient of the bias."""
    batch_sizes, config = ctx.batch_sizes, ctx.config
    inside = None
    if (clip := projection_clip(config, ctx.dtype)) is not None:
        inside = (y.abs() < clip).to(d_out.dtype)
    d_c, d_bias = torch.zeros_like(c0), c0.new_zeros(gates.shape[1])
    d_h_next: Optional[Tensor] = None
    start = len(y)
    for step in reversed(range(len(batch_sizes))):
        n = batch_sizes[step]
        start -= n
        rows = slice(start, start + n)
        d_h = d_out[rows]
        if d_h_next is not None:
            d_h[: len(d_h_next)] += d_h_next
        if inside is not None:
            d_h *= inside[rows]
        d_hidden = d_h.to(ctx.dtype) if projection is None else step_product(d_h, projection)
        c_previous = c0
        if step:
            before = start - batch_sizes[step - 1]
            c_previous = cells[before : before + n]
        out = d_c[:n], d_bias, d_gates[rows], hidden[rows]
        ctx.cell.backward(gates[rows], c_previous, cells[rows], d_hidden, *out, config.cell_clip)
        if step:
            d_h_next = step_product(d_gates[rows], recurrent)
    return d_bias


class _Derivatives(NamedTuple):
    """What does not depend on later steps, for all rows at once. c is the cell, h the output before
    the projection, z a gate before its activation.

    gates (Tensor): dc/dz of the gates i, j and f, and dh/dz of o, shape (..., rows, 4H).
        `_backward_steps` replaces them by the gradients of the gates.
    forget (Tensor): The forget gates, shape (..., rows, H), as the following.
    hidden (Tensor): h.
    cell (Tensor): dh/dc = o (1 - tanh(c)^2).
    inside (Optional[Tensor]): 1 where a cell is not clipped, else 0.
    """

    gates: Tensor
    forget: Tensor
    hidden: Tensor
    cell: Tensor
    inside: Optional[Tensor]


def _derivatives(
    gates: Tensor, cells: Tensor, c0: Tensor, previous: Tensor, cell_clip: Optional[float]
) -> _Derivatives:
    first = c0.shape[-2]
    i, j, f, o = gates.chunk(4, dim=-1)
    tanh_c = (cells * 2).sigmoid_().mul_(2).sub_(1)
    hidden = tanh_c * o
    d_gates = torch.empty_like(gates)
    d_i, d_j, d_f, d_o = d_gates.chunk(4, dim=-1)
    torch.mul(j, i, out=d_i).addcmul_(d_i, i, value=-1)
    torch.mul(j, j, out=d_j).neg_().add_(1).mul_(i)
    d_f[..., :first, :] = c0
    d_f[..., first:, :] = cells[..., previous, :]
    d_f.mul_(f).addcmul_(d_f, f, value=-1)
    torch.mul(hidden, o, out=d_o).neg_().add_(hidden)
    d_cell = tanh_c.square_().neg_().add_(1).mul_(o)
    inside = None
    if cell_clip is not None:
        inside = (cells.abs() < cell_clip).to(cells.dtype)
    return _Derivatives(d_gates, f, hidden, d_cell, inside)


def _backward_steps(
    ctx: Any,
    factors: _Derivatives,
    d_out: Tensor,
    y: Tensor,
    recurrent: Tensor,
    projection: Optional[Tensor],
) -> Tensor:
    """Go back through time. Turns `factors.gates` into the gradients of the gates, and `d_out` into
    those of the outputs before the clipping.

    RETURNS (Tensor): The gradients of the gates in the type of products. If that is not the type of
        y, rows of zeros are appended, for `mixed_precision.product_rows`.
    """
    batch_sizes, config, dtype = ctx.batch_sizes, ctx.config, ctx.dtype
    d_gates = d_gates_cast = factors.gates
    device, n_rows, first = y.device, y.shape[-2], batch_sizes[0]
    if dtype != y.dtype:
        n_rows_padded = product_rows(n_rows, device, dtype) + product_rows(first, device, dtype)
        d_gates_cast = d_gates.new_empty(
            *y.shape[:-2], n_rows_padded, d_gates.shape[-1], dtype=dtype
        )
        d_gates_cast[..., n_rows:, :] = 0
    d_cells = y.new_zeros(*y.shape[:-2], first, factors.cell.shape[-1])
    d_h_next: Optional[Tensor] = None
    start = n_rows
    for n in reversed(batch_sizes):
        start -= n
        rows = slice(start, start + n)
        d_h = d_out[..., rows, :]
        if d_h_next is not None:
            d_h[..., : d_h_next.shape[-2], :] += d_h_next
        if projection is not None:
            if config.proj_clip is not None:
                d_h.mul_(y[..., rows, :].abs() < config.proj_clip)
            d_h = torch.matmul(operand(d_h, dtype), projection)[..., :n, :].to(y.dtype)
        d_c = d_cells[..., :n, :]
        d_c.addcmul_(d_h, factors.cell[..., rows, :])
        if factors.inside is not None:
            d_c *= factors.inside[..., rows, :]
        by_gate = d_gates[..., rows, :].unflatten(-1, (4, -1))
        by_gate[..., :3, :] *= d_c.unsqueeze(-2)
        by_gate[..., 3, :] *= d_h
        d_c *= factors.forget[..., rows, :]
        if d_gates_cast is not d_gates:
            d_gates_cast[..., rows, :] = d_gates[..., rows, :]
        if start:
            n_operands = n if d_gates_cast is d_gates else product_rows(n, device, dtype)
            operands = d_gates_cast[..., start : start + n_operands, :]
            d_h_next = torch.matmul(operands, recurrent)[..., :n, :]
    return d_gates_cast
