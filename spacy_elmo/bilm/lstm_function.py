"""One LSTM layer with the gradient written out.

Autograd would record a dozen operations per step, and allocate memory for each. Here the forward
pass keeps the gates and the cells. The backward pass does per step what depends on the next step,
and everything else for all steps at once: above all the gradients of the weights, which are one
large product each.

Products are in the type that `torch.autocast` asks for, if it is on; cells, outputs and gradients
of weights are in the type of the weights, and so are the gates without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Optional, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import Kernel, load_kernels
from ..parallel import run_side_by_side
from .config import LSTMConfig
from .lstm_layer import (
    LayerProducts,
    LayerState,
    add_forget_bias,
    lstm_step,
    projection_clip,
    run_layer,
)
from .mixed_precision import operand, product_dtype, step_product
from .packing import previous_rows, to_device

# Goes back through the cells of some rows. Takes these rows, the cells before the step, the
# gradient of its output before the projection, and the gradient of its cells, which becomes that of
# the cells before it. Fills the rows of `d_gates`.
StepBack = Callable[[slice, Tensor, Tensor, Tensor], None]

# Gate weight (4H, in + P), gate bias (4H,), and projection weight (P, H) or None.
Weights = Sequence[Optional[Tensor]]


def train_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    weights: Sequence[Weights],
    config: LSTMConfig,
    state: Optional[LayerState] = None,
    kernel: Kernel = "auto",
) -> Tensor:
    """Run both directions of a layer with autograd.

    x (Tensor): Packed inputs, shape (2, rows, in).
    batch_sizes (Sequence[int]): Sequences that are active at each step; falling.
    weights (Sequence): The weights of the forward and of the backward direction.
    state (Optional[LayerState]): Before the first step, changed in place to that after the last
        one: then all sequences must be of one length. No gradient flows into it. None: zeros.
    kernel (str): See `load_kernels`.
    RETURNS (Tensor): The outputs, packed like x, shape (2, rows, P).
    """
    run = side_by_side if x.device.type == "cpu" else batched
    return run(x, batch_sizes, weights, config, state, kernel)


def side_by_side(x: Tensor, batch_sizes: Any, weights: Any, *settings: Any) -> Tensor:
    """As `train_layer`, each direction in a thread of its own. Copies no weights."""
    return _LSTMFunction.apply(x, batch_sizes, *settings, *chain(*weights))


def batched(x: Tensor, batch_sizes: Any, weights: Any, *settings: Any) -> Tensor:
    """As `train_layer`, by batched products for both directions."""
    both = (None if pair[0] is None else torch.stack(pair) for pair in zip(*weights))
    return _LSTMFunction.apply(x, batch_sizes, *settings, *both)


class _Layer(NamedTuple):
    """What the passes of a layer share.

    dtype (dtype): The type of products.
    cell (Optional[module]): The kernels that run the cells.
    """

    batch_sizes: Sequence[int]
    config: LSTMConfig
    dtype: torch.dtype
    cell: Any


class _LSTMFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        batch_sizes: Sequence[int],
        config: LSTMConfig,
        state: Optional[LayerState],
        kernel: Kernel,
        *weights: Any,
    ) -> Tensor:
        """Take the three weights of each direction, or three of stacked directions."""
        dtype = product_dtype(x)
        cell = load_kernels(kernel, x.device, dtype, x.dtype, batched=len(weights) == 3)
        ctx.layer = _Layer(batch_sizes, config, dtype, cell)
        y = x.new_empty(*x.shape[:-1], config.projection_dim)
        runs: Any = [(x, y, state, weights)]
        if len(weights) == 6:
            states = (None, None) if state is None else zip(*state)
            runs = zip(x, y, states, (weights[:3], weights[3:]))
        saved = run_side_by_side([partial(_forward, ctx.layer, *run) for run in runs], x.device)
        ctx.save_for_backward(x, y, *chain(*saved))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Optional[Tensor], ...]:
        x, y, *saved = ctx.saved_tensors
        n, needs_dx = len(_Saved._fields), ctx.needs_input_grad[0]
        runs: Any = [(x, y, dy)] if len(saved) == n else zip(x, y, dy)
        parts = (_Saved(*saved[i : i + n]) for i in range(0, len(saved), n))
        tasks = [
            partial(_backward, ctx.layer, needs_dx, part, *run) for part, run in zip(parts, runs)
        ]
        gradients = run_side_by_side(tasks, x.device)
        d_x: Any = None
        if needs_dx:
            sides = [d_side for d_side, *_ in gradients]
            d_x = sides[0] if len(sides) == 1 else torch.stack(cast("list[Tensor]", sides))
        return d_x, None, None, None, None, *chain(*(one[1:] for one in gradients))


class _Saved(NamedTuple):
    """What the backward pass needs: gates after the activation, the cells of all steps, and outputs
    and cells before the first step."""

    gate_weight: Tensor
    projection_weight: Optional[Tensor]
    gates: Tensor
    cells: Tensor
    h0: Optional[Tensor]
    c0: Tensor


@torch.no_grad()  # A setting of each thread.
def _forward(layer: _Layer, x: Tensor, y: Tensor, state: Any, weights: Any) -> _Saved:
    """Run one direction, or both in batched products. Takes y as `run_layer` does."""
    batch_sizes, config, dtype, cell = layer
    gate_weight, gate_bias, projection_weight = weights
    width, n_rows = x.shape[-1], x.shape[-2]
    weight, bias, x_cast = gate_weight.to(dtype), add_forget_bias(gate_bias), operand(x, dtype)
    transposed = weight[..., :width].transpose(-1, -2)
    if cell is not None and x.dim() == 2:
        gates = torch.addmm(bias.to(dtype), x_cast, transposed)
    else:
        gates = torch.matmul(x_cast, transposed)
        if cell is None:
            gates = gates[..., :n_rows, :].to(x.dtype)
        gates += bias.unsqueeze(-2)
    recurrent = weight[..., width:].transpose(-1, -2).contiguous()
    projection: Any = None
    if projection_weight is not None:
        projection_cast = projection_weight.to(dtype).transpose(-1, -2).contiguous()
        projection = partial(step_product, weight=projection_cast, dtype=gates.dtype)
    run_cell = lstm_step if cell is None else cell.forward
    products = LayerProducts(
        lambda x: gates, partial(step_product, weight=recurrent), projection, n_rows, run_cell
    )
    cells = x.new_empty(*x.shape[:-1], config.dim)
    h0, c0 = None, x.new_zeros(*x.shape[:-2], batch_sizes[0], config.dim)
    if state is not None:
        h0, c0 = (part.clone(memory_format=torch.contiguous_format) for part in state)
    run_layer(x, batch_sizes, products, config, y, state, cells)
    return _Saved(gate_weight, projection_weight, gates, cells, h0, c0)


@torch.no_grad()
def _backward(
    layer: _Layer, needs_dx: bool, saved: _Saved, x: Tensor, y: Tensor, dy: Tensor
) -> tuple[Optional[Tensor], ...]:
    """RETURNS (tuple): The gradients of x, of the gates' weight and bias, and of the projection."""
    gate_weight, projection_weight, gates, _, h0, c0 = saved
    (batch_sizes, config, dtype, cell), width, n_rows = layer, x.shape[-1], x.shape[-2]
    weight = gate_weight.to(dtype)
    projection = None if projection_weight is None else projection_weight.to(dtype)
    previous = to_device(previous_rows(batch_sizes), x.device)
    d_gates, hidden = torch.empty_like(gates), gates.new_empty(*gates.shape[:-1], config.dim)
    d_bias: Optional[Tensor] = None
    if cell is None:
        step_back = _plain_step(layer, saved, previous, d_gates, hidden)
    else:
        n_groups = -(-batch_sizes[0] // cell.BIAS_ROWS)
        d_bias = c0.new_zeros(*c0.shape[:-2], n_groups, gates.shape[-1])
        step_back = _kernel_step(layer, saved, d_bias, d_gates, hidden)
    d_out = dy.clone(memory_format=torch.contiguous_format)
    recurrent = weight[..., width:].contiguous()
    _steps(layer, saved, y, d_out, d_gates, step_back, recurrent, projection)
    for padded in (d_gates, hidden):
        padded[..., n_rows:, :] = 0
    d_bias = d_gates.sum(-2) if d_bias is None else d_bias.sum(-2)
    h_previous = torch.empty_like(y)
    h_previous[..., : batch_sizes[0], :] = 0 if h0 is None else h0
    h_previous[..., batch_sizes[0] :, :] = y[..., previous, :]
    inputs = operand(torch.cat((x, h_previous), dim=-1), dtype)
    d_gates_cast = operand(d_gates, dtype)[..., : inputs.shape[-2], :]
    d_weight = torch.matmul(d_gates_cast.transpose(-1, -2), inputs).to(gate_weight.dtype)
    d_projection = d_x = None
    if projection is not None:
        d_out_cast = operand(d_out, dtype).transpose(-1, -2)
        d_projection = torch.matmul(d_out_cast, operand(hidden, dtype)).to(x.dtype)
    if needs_dx:
        d_x = torch.matmul(d_gates_cast, weight[..., :width])[..., :n_rows, :].to(x.dtype)
    return d_x, d_weight, d_bias, d_projection


def _steps(
    layer: _Layer,
    saved: _Saved,
    y: Tensor,
    d_out: Tensor,
    d_gates: Tensor,
    step_back: StepBack,
    recurrent: Tensor,
    projection: Optional[Tensor],
) -> None:
    """Go back through time. Turns `d_out` into the gradients of the outputs before the clipping."""
    batch_sizes, config, *_ = layer
    kind, inside = d_gates.dtype, None
    if (clip := projection_clip(config, kind)) is not None:
        inside = (y.abs() < clip).to(d_out.dtype)
    d_cells = torch.zeros_like(saved.c0)
    d_h_next: Optional[Tensor] = None
    start = y.shape[-2]
    for step in reversed(range(len(batch_sizes))):
        n = batch_sizes[step]
        start -= n
        rows = slice(start, start + n)
        d_h = d_out[..., rows, :]
        if d_h_next is not None:
            d_h[..., : d_h_next.shape[-2], :] += d_h_next
        if inside is not None:
            d_h *= inside[..., rows, :]
        d_hidden = d_h.to(kind) if projection is None else step_product(d_h, projection, kind)
        before = start - batch_sizes[step - 1]
        c_previous = saved.cells[..., before : before + n, :] if step else saved.c0
        step_back(rows, c_previous, d_hidden, d_cells[..., :n, :])
        if step:
            d_h_next = step_product(d_gates[..., rows, :], recurrent)


def _kernel_step(
    layer: _Layer, saved: _Saved, d_bias: Tensor, d_gates: Tensor, hidden: Tensor
) -> StepBack:
    """RETURNS (Callable): Goes back by a kernel. It also fills the rows of `hidden` with the
    outputs before the projection, and adds to the gradient of the bias."""

    def step_back(rows: slice, c_previous: Tensor, d_hidden: Tensor, d_c: Tensor) -> None:
        outputs = d_c, d_bias, d_gates[..., rows, :], hidden[..., rows, :]
        gates, cells = saved.gates[..., rows, :], saved.cells[..., rows, :]
        layer.cell.backward(gates, c_previous, cells, d_hidden, *outputs, layer.config.cell_clip)

    return step_back


def _plain_step(
    layer: _Layer, saved: _Saved, previous: Tensor, d_gates: Tensor, hidden: Tensor
) -> StepBack:
    """Compute for all rows at once what does not depend on later steps. c is the cell, h the output
    before the projection, z a gate before its activation.

    d_gates (Tensor): Takes dc/dz of the gates i, j and f, and dh/dz of o, which the steps replace
        by the gradients of the gates.
    hidden (Tensor): Takes h.
    """
    gates, cells, c0, clip = saved.gates, saved.cells, saved.c0, layer.config.cell_clip
    first = c0.shape[-2]
    i, j, f, o = gates.chunk(4, dim=-1)
    tanh_c = (cells * 2).sigmoid_().mul_(2).sub_(1)
    torch.mul(tanh_c, o, out=hidden)
    d_i, d_j, d_f, d_o = d_gates.chunk(4, dim=-1)
    torch.mul(j, i, out=d_i).addcmul_(d_i, i, value=-1)
    torch.mul(j, j, out=d_j).neg_().add_(1).mul_(i)
    d_f[..., :first, :] = c0
    d_f[..., first:, :] = cells[..., previous, :]
    d_f.mul_(f).addcmul_(d_f, f, value=-1)
    torch.mul(hidden, o, out=d_o).neg_().add_(hidden)
    dh_dc = tanh_c.square_().neg_().add_(1).mul_(o)
    inside = None if clip is None else (cells.abs() < clip).to(cells.dtype)

    def step_back(rows: slice, c_previous: Tensor, d_hidden: Tensor, d_c: Tensor) -> None:
        d_c.addcmul_(d_hidden, dh_dc[..., rows, :])
        if inside is not None:
            d_c *= inside[..., rows, :]
        by_gate = d_gates[..., rows, :].unflatten(-1, (4, -1))
        by_gate[..., :3, :] *= d_c.unsqueeze(-2)
        by_gate[..., 3, :] *= d_hidden
        d_c *= f[..., rows, :]

    return step_back
