"""The steps of one LSTM layer, for inference and for training, and their gradient written out.

Rows are packed (see `packing`). Tensors may have leading dimensions for several directions. In
training, the forward pass keeps the gates and the cells. The backward pass does per step what
depends on the next step, and everything else for all steps at once, above all the gradients of the
weights. Products are in the type that `torch.autocast` asks for; cells, outputs and gradients of
weights are in the type of the weights, and so are the gates without a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import Kernel, load_kernels
from ..parallel import run_side_by_side
from ..torch_private import Product
from .config import LSTMConfig
from .mixed_precision import operand, product_dtype, product_rows, step_product
from .packing import previous_rows, to_device

# Added to the forget gate's bias at run time (bilm-tf stores it without).
FORGET_BIAS = 1.0

# Outputs and cells of one layer, shapes (..., sequences, P) and (..., sequences, H).
LayerState = tuple[Tensor, Tensor]

# The products of one layer: from inputs to gates, and how many rows at once; from outputs to gates;
# and from width H to P. The last one runs the rest of a step: `lstm_step`, or a kernel's `forward`.
LayerProducts = tuple[Product, int, Product, Optional[Product], Callable[..., object]]

# What the passes of a layer share: the sequences that are active at each step, the configuration,
# the type of products, and the module of kernels that run cells or layers, or None.
Layer = tuple[Sequence[int], LSTMConfig, torch.dtype, Any]

# For the backward pass: the weights of the gates and of the projection, gates after the activation,
# the cells of all steps, and outputs and cells before the first step.
Saved = tuple[Tensor, Optional[Tensor], Tensor, Tensor, Optional[Tensor], Tensor]


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


def train_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    weights: Sequence[Sequence[Optional[Tensor]]],
    config: LSTMConfig,
    state: Optional[LayerState] = None,
    kernel: Kernel = "auto",
    batched: Optional[bool] = None,
) -> Tensor:
    """Run both directions of a layer with autograd.

    x (Tensor): Packed inputs, shape (2, rows, in), with so many sequences at each step.
    weights (Sequence): For each direction the gates' weight (4H, in + P) and bias (4H,), and the
        projection (P, H) or None.
    state (Optional[LayerState]): Before the first step, changed in place to that after the last
        one: then all sequences must be of one length. No gradient flows into it. None: zeros.
    batched (Optional[bool]): Run both directions in batched products, or each in a thread of its
        own, which copies no weights. None: threads on a CPU.
    RETURNS (Tensor): The outputs, packed like x, shape (2, rows, P).
    """
    if x.device.type != "cpu" if batched is None else batched:
        weights = [[None if pair[0] is None else torch.stack(pair) for pair in zip(*weights)]]
    return _LSTMFunction.apply(x, batch_sizes, config, state, kernel, *chain(*weights))


class _LSTMFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch_sizes: Any, *settings_and_weights: Any) -> Tensor:
        """Take the three weights of each direction, or three of stacked directions."""
        config, state, kernel, *weights = settings_and_weights
        dtype = product_dtype(x)
        cell = load_kernels(kernel, x.device, dtype, x.dtype, batched=len(weights) == 3)
        ctx.layer = batch_sizes, config, dtype, cell
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
        needs_dx, batched = ctx.needs_input_grad[0], len(saved) == 6
        runs: Any = [(x, y, dy)] if batched else zip(x, y, dy)
        parts = zip((saved[:6], saved[6:]), runs)
        tasks = [partial(_backward, ctx.layer, needs_dx, *part) for part in parts]
        gradients: Any = run_side_by_side(tasks, x.device)
        d_x = None
        if needs_dx:
            d_x = gradients[0][0] if batched else torch.stack([one[0] for one in gradients])
        return d_x, None, None, None, None, *chain(*(one[1:] for one in gradients))


@torch.no_grad()  # A setting of each thread.
def _forward(layer: Layer, x: Tensor, y: Tensor, state: Any, weights: Any) -> Saved:
    """Run one direction, or both in batched products. `y` takes the outputs."""
    batch_sizes, config, dtype, cell = layer
    gate_weight, gate_bias, projection_weight = weights
    width, n_rows = x.shape[-1], x.shape[-2]
    bias, cells = add_forget_bias(gate_bias), x.new_empty(*x.shape[:-1], config.dim)
    h0, c0 = None, x.new_zeros(*x.shape[:-2], batch_sizes[0], config.dim)
    if state is not None:
        h0 = c0.new_empty(*c0.shape[:-1], config.projection_dim).copy_(state[0])
        c0.copy_(state[1])
    if _runs_in_c(layer):
        gates = x.new_empty(product_rows(n_rows, x.device, dtype), 4 * config.dim, dtype=dtype)
        parts = *gate_weight.split((width, config.projection_dim), 1), projection_weight
        clips = config.cell_clip, projection_clip(config, x.dtype)
        run = cell.pack_layer(parts, bias, "bfloat16", *clips)
        run(x.contiguous(), batch_sizes, y, (h0, c0), (cells, gates))
        for part, rows in zip(state or (), (y, cells)):
            part.copy_(rows[-batch_sizes[-1] :])
        return gate_weight, projection_weight, gates, cells, h0, c0
    weight, x_cast = gate_weight.to(dtype), operand(x, dtype)
    transposed = weight[..., :width].transpose(-1, -2)
    if cell is not None and x.dim() == 2:
        gates = torch.addmm(bias.to(dtype), x_cast, transposed)
    else:
        gates = torch.matmul(x_cast, transposed)
        gates = gates[..., :n_rows, :].to(x.dtype) if cell is None else gates
        gates += bias.unsqueeze(-2)
    recurrent = weight[..., width:].transpose(-1, -2).contiguous()
    projection: Any = None
    if projection_weight is not None:
        projection_cast = projection_weight.to(dtype).transpose(-1, -2).contiguous()
        projection = partial(step_product, weight=projection_cast, dtype=gates.dtype)
    run_cell = lstm_step if cell is None else cell.forward
    step = partial(step_product, weight=recurrent)
    products = (lambda x: gates), n_rows, step, projection, run_cell
    run_layer(x, batch_sizes, products, config, y, state, cells)
    return gate_weight, projection_weight, gates, cells, h0, c0


@torch.no_grad()
def _backward(
    layer: Layer, needs_dx: bool, saved: Saved, run: tuple[Tensor, Tensor, Tensor]
) -> tuple[Optional[Tensor], ...]:
    """RETURNS (tuple): The gradients of x, of the gates' weight and bias, and of the projection."""
    (batch_sizes, _, dtype, _), (x, y, dy) = layer, run
    gate_weight, projection_weight, *_, h0, _ = saved
    width, n_rows = x.shape[-1], x.shape[-2]
    previous = to_device(previous_rows(batch_sizes), x.device)
    d_out = dy.clone(memory_format=torch.contiguous_format)
    steps = _steps_in_c if _runs_in_c(layer) else _steps
    d_gates, hidden, d_bias = steps(layer, saved, previous, y, d_out)
    for padded in (d_gates, hidden):
        padded[..., n_rows:, :] = 0
    h_previous = torch.empty_like(y)
    h_previous[..., : batch_sizes[0], :] = 0 if h0 is None else h0
    h_previous[..., batch_sizes[0] :, :] = y[..., previous, :]
    inputs = operand(torch.cat((x, h_previous), dim=-1), dtype)
    d_gates_cast = operand(d_gates, dtype)[..., : inputs.shape[-2], :]
    d_weight = torch.matmul(d_gates_cast.transpose(-1, -2), inputs).to(x.dtype)
    d_bias = d_gates.sum(-2) if d_bias is None else d_bias.sum(-2)
    d_projection = d_x = None
    if projection_weight is not None:
        d_out_cast = operand(d_out, dtype).transpose(-1, -2)
        d_projection = torch.matmul(d_out_cast, operand(hidden, dtype)).to(x.dtype)
    if needs_dx:
        weight = gate_weight[..., :width].to(dtype)
        d_x = torch.matmul(d_gates_cast, weight)[..., :n_rows, :].to(x.dtype)
    return d_x, d_weight, d_bias, d_projection


def _runs_in_c(layer: Layer) -> bool:
    _, config, dtype, cell = layer
    return hasattr(cell, "trains_layers") and cell.trains_layers(dtype, config.dim)


def _steps_in_c(layer: Layer, saved: Saved, previous: Tensor, y: Tensor, d_out: Tensor) -> Any:
    """Do what `_steps` does. The rows behind those of y hold nothing."""
    (batch_sizes, config, _, cell), (gate_weight, projection, gates, cells, _, c0) = layer, saved
    weights = projection, gate_weight[:, -config.projection_dim :]
    clips = config.cell_clip, projection_clip(config, y.dtype)
    return cell.layer_backward(batch_sizes, weights, clips, (y, gates, cells, c0), d_out)


def _steps(
    layer: Layer, saved: Saved, previous: Tensor, y: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Go back through time. Turns `d_out` into the gradients of the outputs before the clipping.
    RETURNS (tuple): The gradients of the gates before the activation, the outputs before the
    projection, and, from a kernel, the gradient of the bias in several rows."""
    (batch_sizes, config, dtype, cell), (gate_weight, weight, gates, cells, _, c0) = layer, saved
    recurrent = gate_weight[..., -config.projection_dim :].to(dtype).contiguous()
    projection = None if weight is None else weight.to(dtype)
    kind, clip, d_bias = gates.dtype, projection_clip(config, gates.dtype), None
    d_gates, hidden = torch.empty_like(gates), gates.new_empty(*gates.shape[:-1], config.dim)
    if cell is None:
        dh_dc, dc_dc = _derive(saved, previous, config.cell_clip, d_gates, hidden)
    else:
        n_groups = -(-batch_sizes[0] // cell.BIAS_ROWS)
        d_bias = c0.new_zeros(*c0.shape[:-2], n_groups, gates.shape[-1])
    inside = None if clip is None else (y.abs() < clip).to(d_out.dtype)
    d_cells, d_h_next, start = torch.zeros_like(c0), None, y.shape[-2]
    for step in reversed(range(len(batch_sizes))):
        n = batch_sizes[step]
        start -= n
        rows = slice(start, start + n)
        d_h, d_c, d_z = d_out[..., rows, :], d_cells[..., :n, :], d_gates[..., rows, :]
        if d_h_next is not None:
            d_h[..., : d_h_next.shape[-2], :] += d_h_next
        if inside is not None:
            d_h *= inside[..., rows, :]
        d_hidden = d_h.to(kind) if projection is None else step_product(d_h, projection, kind)
        if cell is None:
            d_c.addcmul_(d_hidden, dh_dc[..., rows, :])
            by_gate = d_z.unflatten(-1, (4, -1))
            by_gate[..., :3, :] *= d_c.unsqueeze(-2)
            by_gate[..., 3, :] *= d_hidden
            d_c *= dc_dc[..., rows, :]
        else:
            before = start - batch_sizes[step - 1]
            c_previous = cells[..., before : before + n, :] if step else c0
            now = gates[..., rows, :], c_previous, cells[..., rows, :], d_hidden
            cell.backward(*now, d_c, d_bias, d_z, hidden[..., rows, :], config.cell_clip)
        d_h_next = step_product(d_z, recurrent) if step else None
    return d_gates, hidden, d_bias


def _derive(
    saved: Saved, previous: Tensor, clip: Optional[float], d_gates: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute for all rows at once what does not depend on later steps: `hidden` takes the outputs
    h before the projection, `d_gates` the derivatives of the cell c by the gates i, j and f before
    their activation, and of h by o. RETURNS (tuple): dh/dc, and dc by the cell before it."""
    _, _, gates, cells, _, c0 = saved
    first, (i, j, f, o) = c0.shape[-2], gates.chunk(4, dim=-1)
    tanh_c = (cells * 2).sigmoid_().mul_(2).sub_(1)
    torch.mul(tanh_c, o, out=hidden)
    d_i, d_j, d_f, d_o = d_gates.chunk(4, dim=-1)
    torch.mul(j, i, out=d_i).addcmul_(d_i, i, value=-1)
    torch.mul(j, j, out=d_j).neg_().add_(1).mul_(i)
    d_f[..., :first, :] = c0
    d_f[..., first:, :] = cells[..., previous, :]
    d_f.mul_(f).addcmul_(d_f, f, value=-1)
    torch.mul(hidden, o, out=d_o).neg_().add_(hidden)
    dh_dc, dc_dc = tanh_c.square_().neg_().add_(1).mul_(o), f
    if clip is not None:
        inside = (cells.abs() < clip).to(cells.dtype)
        dc_dc = f * inside
        d_gates.unflatten(-1, (4, -1))[..., :3, :] *= inside.unsqueeze(-2)
    return dh_dc, dc_dc
