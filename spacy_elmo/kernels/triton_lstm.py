"""LSTM layers on a GPU: `lstm_function` with few kernels and little traffic.

A step is two matrix products of cuBLAS, and between them `triton_cell`:

    forward    gates += h R           cell_forward        y = hidden P     clip y
    backward   mask d_y by the clip   d_hidden = d_y P'   cell_backward    d_y += d_gates R'

Gates, outputs and their gradients are in the type of the products, bfloat16 under `torch.autocast`:
they are operands without a cast. Importing this file needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..bilm.config import LSTMConfig
from ..bilm.lstm_function import LSTMFunction
from ..bilm.lstm_layer import FORGET_BIAS, LayerState, input_gates, projection_clip
from ..bilm.mixed_precision import product_dtype
from ..bilm.packing import previous_rows, to_device
from . import relative_error
from .triton_cell import ROWS, cell_backward, cell_forward


class Weights(NamedTuple):
    """The weights of a layer in both directions, in the type of the products.

    input (Tensor): Shape (2, 4H, in).
    bias (Tensor): With that of the forget gate, shape (2, 4H).
    recurrent (Tensor): Shape (2, 4H, P).
    projection (Optional[Tensor]): Shape (2, P, H).
    """

    input: Tensor
    bias: Tensor
    recurrent: Tensor
    projection: Optional[Tensor]

    @classmethod
    def cast(cls, directions: Sequence[Sequence[Any]], dtype: torch.dtype) -> Weights:
        """Make them of the weights of gates, their biases and the weights of the projection, or
        None, of each direction."""
        gate_weights, gate_biases, projections = zip(*directions)
        weight = _stack(gate_weights, dtype)
        bias = _stack(gate_biases, gate_biases[0].dtype)
        projection = _stack([one for one in projections if one is not None], dtype)
        dim = weight.shape[1] // 4
        bias[:, 2 * dim : 3 * dim] += FORGET_BIAS
        width = weight.shape[2] - (dim if projection is None else projection.shape[1])
        return cls(weight[..., :width], bias.to(dtype), weight[..., width:], projection)

    def input_gates(self, x: Tensor) -> Tensor:
        """RETURNS (Tensor): Of all rows, shape (2, rows, 4H)."""
        gates = x.new_empty(*x.shape[:2], self.input.shape[1])
        # One product each: cuBLAS adds a bias while it writes the result, but not in batches.
        for direction, out in enumerate(gates):
            transposed = self.input[direction].t()
            torch.addmm(self.bias[direction], x[direction], transposed, out=out)
        return gates

    def step(
        self,
        config: LSTMConfig,
        gates: Tensor,
        h: Optional[Tensor],
        c_previous: Tensor,
        keep_gates: bool,
        *,
        c: Tensor,
        hidden: Tensor,
        y: Tensor,
    ) -> None:
        """One step: `cell_forward` between its products.

        gates (Tensor): Of the input, shape (2, n, 4H).
        h (Optional[Tensor]): The outputs before the step, shape (2, n, P). None: zeros.
        y (Tensor): Takes the outputs; without a projection it is `hidden`.
        """
        if h is not None:
            gates.baddbmm_(h, self.recurrent.transpose(1, 2))
        cell_forward(gates, c_previous, config.cell_clip, keep_gates, c=c, hidden=hidden)
        if self.projection is not None:
            torch.bmm(hidden, self.projection.transpose(1, 2), out=y)
            clip = projection_clip(config, y.dtype)
            if clip is not None:
                y.clamp_(-clip, clip)


def _stack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Any:
    """Stack and cast in one pass. RETURNS (Optional[Tensor]): None if there is nothing."""
    if not tensors:
        return None
    stacked = tensors[0].new_empty(len(tensors), *tensors[0].shape, dtype=dtype)
    for tensor, out in zip(tensors, stacked):
        out.copy_(tensor.detach())
    return stacked


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """RETURNS (Tensor): `bmm(a, b)` in another type, without rounding where cuBLAS can."""
    if a.dtype == dtype or a.device.type == "cpu" or "dtype" not in torch.ops.aten.bmm.overloads():
        return torch.bmm(a, b).to(dtype)
    return torch.bmm(a, b, out_dtype=dtype)


def _step_rows(batch_sizes: Sequence[int]) -> list[slice]:
    return [slice(end - n, end) for n, end in zip(batch_sizes, accumulate(batch_sizes))]


def run_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    weights: Weights,
    max_rows: int,
    config: LSTMConfig,
    y: Tensor,
    state: Optional[LayerState] = None,
) -> None:
    """`lstm_layer.run_layer` for both directions.

    x (Tensor): Packed inputs, shape (2, rows, in).
    max_rows (int): Rows of gates to compute from inputs at once.
    y (Tensor): Takes the outputs, packed like x, shape (2, rows, P).
    """
    dtype, has_projection = weights.input.dtype, weights.projection is not None
    h, c = state or (None, x.new_zeros(2, batch_sizes[0], config.dim))
    low_x, low_y = x.to(dtype), y if y.dtype == dtype else torch.empty_like(y, dtype=dtype)
    hidden = torch.empty_like(c, dtype=dtype)
    previous = None if h is None else h.to(dtype)
    start = 0
    for gates in input_gates(low_x, batch_sizes, weights.input_gates, max_rows):
        n = gates.shape[1]
        cells, out = c[:, :n], low_y[:, start : start + n]
        h_previous = None if previous is None else previous[:, :n]
        into = hidden[:, :n] if has_projection else out
        weights.step(config, gates, h_previous, cells, False, c=cells, hidden=into, y=out)
        if h is not None:
            h[:, :n] = out
        previous = out
        start += n
        del gates  # Free them before those of later steps are computed.
    if low_y is not y:
        y.copy_(low_y)


def train_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    weights: Sequence[Sequence[Any]],
    config: LSTMConfig,
    state: Optional[LayerState] = None,
) -> Tensor:
    """`LSTMFunction` for both directions.

    x (Tensor): Packed inputs, shape (2, rows, in).
    weights (Sequence): See `Weights.cast`.
    state (Optional[LayerState]): Before the first step, changed in place to that after the last
        one: then all sequences must be of one length. No gradient flows into it. None: zeros.
    RETURNS (Tensor): The outputs, packed like x, shape (2, rows, P).
    """
    return _LSTMFunction.apply(x, batch_sizes, config, state, *chain(*weights))


class _LSTMFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        batch_sizes: Sequence[int],
        config: LSTMConfig,
        state: Optional[LayerState],
        *parameters: Any,
    ) -> Tensor:
        dtype = product_dtype(x)
        weights = Weights.cast((parameters[:3], parameters[3:]), dtype)
        low_x = x.to(dtype)
        cells = x.new_empty(*x.shape[:2], config.dim)
        y = hidden = torch.empty_like(cells, dtype=dtype)
        if weights.projection is not None:
            y = low_x.new_empty(*x.shape[:2], config.projection_dim)
        h0, c0 = None, x.new_zeros(2, batch_sizes[0], config.dim)
        if state is not None:
            h0, c0 = state[0].to(dtype, copy=True), state[1].clone()
        h, c = h0, c0
        gates = weights.input_gates(low_x)
        for n, rows in zip(batch_sizes, _step_rows(batch_sizes)):
            before = None if h is None else h[:, :n], c[:, :n]
            c, h = cells[:, rows], y[:, rows]
            out = hidden[:, rows]
            weights.step(config, gates[:, rows], *before, True, c=c, hidden=out, y=h)
        if state is not None and h is not None:
            state[0].copy_(h)
            state[1].copy_(c)
        ctx.save_for_backward(low_x, *weights, gates, cells, hidden, y, h0, c0)
        ctx.batch_sizes, ctx.config, ctx.dtype = batch_sizes, config, x.dtype
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Optional[Tensor], ...]:
        x, *saved, gates, cells, hidden, y, h0, c0 = ctx.saved_tensors
        weights, config, first = Weights(*saved), ctx.config, ctx.batch_sizes[0]
        clip = projection_clip(config, x.dtype)
        d_y = dy.to(x.dtype, copy=True)
        d_gates = torch.empty_like(gates)
        d_c = torch.zeros_like(c0)
        d_bias = c0.new_zeros(2, -(-first // ROWS), gates.shape[2])
        d_hidden = torch.empty_like(c0, dtype=x.dtype)
        all_rows = _step_rows(ctx.batch_sizes)
        for step in reversed(range(len(all_rows))):
            rows = all_rows[step]
            n, d_out = rows.stop - rows.start, d_y[:, rows]
            if clip is not None:
                mask = torch.ops.aten.hardtanh_backward.grad_input
                mask(d_out, y[:, rows], -clip, clip, grad_input=d_out)
            if weights.projection is not None:
                d_out = torch.bmm(d_out, weights.projection, out=d_hidden[:, :n])
            before = slice(all_rows[step - 1].start, all_rows[step - 1].start + n)
            cell_backward(
                gates[:, rows],
                cells[:, before] if step else c0,
                cells[:, rows],
                d_out,
                config.cell_clip,
                d_c[:, :n],
                d_bias,
                d_gates=d_gates[:, rows],
            )
            if step:
                d_y[:, before].baddbmm_(d_gates[:, rows], weights.recurrent)
        width = x.shape[2]
        inputs = x.new_empty(*x.shape[:2], width + y.shape[2])
        inputs[..., :width] = x
        inputs[:, :first, width:] = 0 if h0 is None else h0
        inputs[:, first:, width:] = y[:, to_device(previous_rows(ctx.batch_sizes), y.device)]
        d_weight = _product(d_gates.transpose(1, 2), inputs, ctx.dtype)
        d_projection: Any = None, None
        if weights.projection is not None:
            d_projection = _product(d_y.transpose(1, 2), hidden, ctx.dtype)
        d_x = _product(d_gates, weights.input, ctx.dtype) if ctx.needs_input_grad[0] else None
        gradients = zip(d_weight, d_bias.sum(1), d_projection)
        return d_x, None, None, None, *chain(*gradients)


def max_error(device: torch.device, dtype: torch.dtype, config: LSTMConfig) -> float:
    """RETURNS (float): How much the results for a small batch differ from those of the plain path,
    forward, backward and in inference; see `relative_error`."""
    generator = torch.Generator().manual_seed(0)
    sizes, p, dim = [5, 5, 5], config.projection_dim, config.dim

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(2, *shape, generator=generator) * scale).to(device)

    x, dy = (random(sum(sizes), p) for _ in range(2))
    leaves = [x, random(4 * dim, 2 * p, scale=p**-0.5), random(4 * dim)]
    if config.has_projection:
        leaves.append(random(p, dim, scale=2 * dim**-0.5))
    # So large that cells are clipped.
    state = random(sizes[0], p), random(sizes[0], dim, scale=config.cell_clip or 1.0)

    def run(train: Any) -> list[Tensor]:
        x, *weights = copies = [t.clone().requires_grad_() for t in leaves]
        after = state[0].clone(), state[1].clone()
        y = train(x, [*weights, None][:3], after)
        return [y.detach(), *torch.autograd.grad(y, copies, dy), *after]

    def plain(x: Tensor, weights: Any, after: LayerState) -> Tensor:
        return LSTMFunction.apply(x, *weights, sizes, config, after, "torch")

    def ours(x: Tensor, weights: Any, after: LayerState) -> Tensor:
        return train_layer(x, sizes, _by_direction(weights), config, after)

    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with torch.inference_mode(False), torch.enable_grad(), autocast:
        expected, results = run(plain), run(ours)
        after = state[0].clone(), state[1].clone()
        y = torch.empty_like(dy)
        weights = Weights.cast(_by_direction([*leaves[1:], None][:3]), dtype)
        run_layer(x, sizes, weights, 2 * sizes[0], config, y, after)
    return relative_error(zip([*expected, expected[0], *expected[-2:]], [*results, y, *after]))


def _by_direction(weights: Sequence[Any]) -> list[list[Any]]:
    return [[None if w is None else w[number] for w in weights] for number in (0, 1)]
