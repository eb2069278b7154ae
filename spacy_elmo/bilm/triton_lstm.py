"""LSTM layers on a GPU: `lstm_function` with few kernels and little traffic.

A step is two matrix products of cuBLAS, and between them `triton_cell`:

    forward    gates += h R           cell_forward        y = hidden P     clip y
    backward   mask d_y by the clip   d_hidden = d_y P'   cell_backward    d_y += d_gates R'

Gates, outputs and their gradients are in the type of the products, bfloat16 under `torch.autocast`:
they are operands without a cast. Importing this file needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, Optional

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .config import LSTMConfig
from .kernels import mean_error
from .lstm_function import FORGET_BIAS, LayerState, _split_steps, train_layer
from .mixed_precision import product_dtype
from .packing import to_device
from .triton_cell import cell_backward, cell_forward


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
    def cast(
        cls,
        gate_weight: Tensor,
        gate_bias: Tensor,
        projection: Optional[Tensor],
        dtype: torch.dtype,
    ) -> Weights:
        """Cast the weights as `LSTMLayer` has them, stacked."""
        dim = gate_weight.shape[1] // 4
        width = gate_weight.shape[2] - (dim if projection is None else projection.shape[1])
        bias = gate_bias.detach().clone()
        bias[:, 2 * dim : 3 * dim] += FORGET_BIAS
        weight = gate_weight.detach().to(dtype)
        low = None if projection is None else projection.detach().to(dtype)
        return cls(weight[..., :width], bias.to(dtype), weight[..., width:], low)

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
            clip = _proj_clip(config, y.dtype)
            if clip is not None:
                y.clamp_(-clip, clip)


@cache
def _proj_clip(config: LSTMConfig, dtype: torch.dtype) -> Optional[float]:
    """The bound as `dtype` has it: what is clipped is equal to it."""
    clip = config.proj_clip if config.has_projection else None
    return None if clip is None else float(torch.tensor(clip, dtype=dtype, device="cpu"))


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
    """`lstm_function.run_layer` for both directions.

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
    with torch.cuda.device_of(x):
        for sizes in _split_steps(batch_sizes, max_rows):
            gates = weights.input_gates(low_x[:, start : start + sum(sizes)])
            for n, rows in zip(sizes, _step_rows(sizes)):
                cells, out = c[:, :n], low_y[:, start : start + n]
                h_previous = None if previous is None else previous[:, :n]
                into = hidden[:, :n] if has_projection else out
                weights.step(
                    config, gates[:, rows], h_previous, cells, False, c=cells, hidden=into, y=out
                )
                if h is not None:
                    h[:, :n] = out
                previous = out
                start += n
            del gates  # Free them before those of the next chunk are computed.
    if low_y is not y:
        y.copy_(low_y)


class TritonLSTMFunction(torch.autograd.Function):
    """`lstm_function.train_layer` for both directions."""

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
    ) -> Tensor:
        """Run it.

        x (Tensor): Packed inputs, shape (2, rows, in).
        gate_weight (Tensor): Shape (2, 4H, in + P), gates in the order i, j (candidate), f, o.
        gate_bias (Tensor): Shape (2, 4H).
        projection_weight (Optional[Tensor]): Shape (2, P, H).
        batch_sizes (Sequence[int]): Sequences that are active at each step; falling.
        config (LSTMConfig): The hyper-parameters.
        state (Optional[LayerState]): Before the first step, changed in place to that after the last
            one: then all sequences must be of one length. No gradient flows into it. None: zeros.
        RETURNS (Tensor): The outputs, packed like x, shape (2, rows, P).
        """
        dtype = product_dtype(x)
        weights = Weights.cast(gate_weight, gate_bias, projection_weight, dtype)
        low_x = x.to(dtype)
        cells = x.new_empty(*x.shape[:2], config.dim)
        y = hidden = torch.empty_like(cells, dtype=dtype)
        if weights.projection is not None:
            y = low_x.new_empty(*x.shape[:2], config.projection_dim)
        h0, c0 = None, x.new_zeros(2, batch_sizes[0], config.dim)
        if state is not None:
            h0, c0 = state[0].to(dtype, copy=True), state[1].clone()
        h, c = h0, c0
        with torch.cuda.device_of(x):
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
        clip = _proj_clip(config, x.dtype)
        d_y = dy.to(x.dtype, copy=True)
        d_gates = torch.empty_like(gates)
        d_c = torch.zeros_like(c0)
        d_hidden = torch.empty_like(c0, dtype=x.dtype)
        all_rows = _step_rows(ctx.batch_sizes)
        with torch.cuda.device_of(x):
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
                    d_gates=d_gates[:, rows],
                )
                if step:
                    d_y[:, before].baddbmm_(d_gates[:, rows], weights.recurrent)
        # For each row but those of the first step, the row of the same sequence one step before.
        sizes = numpy.array(ctx.batch_sizes)
        distance = numpy.repeat(sizes[:-1], sizes[1:])
        previous = to_device(numpy.arange(first, y.shape[1]) - distance, y.device)
        width = x.shape[2]
        inputs = x.new_empty(*x.shape[:2], width + y.shape[2])
        inputs[..., :width] = x
        inputs[:, :first, width:] = 0 if h0 is None else h0
        inputs[:, first:, width:] = y[:, previous]
        d_weight = torch.bmm(d_gates.transpose(1, 2), inputs).to(ctx.dtype)
        d_bias = d_gates.sum(1, dtype=ctx.dtype)
        d_projection = None
        if weights.projection is not None:
            d_projection = torch.bmm(d_y.transpose(1, 2), hidden).to(ctx.dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = torch.bmm(d_gates, weights.input).to(ctx.dtype)
        return d_x, d_weight, d_bias, d_projection, None, None, None


def max_error(device: torch.device, dtype: torch.dtype, config: LSTMConfig) -> float:
    """RETURNS (float): How much the results for a small batch differ from those of the plain path,
    forward, backward and in inference; see `mean_error`."""
    plain_layer: Any = train_layer

    generator = torch.Generator().manual_seed(0)
    sizes = [5, 5, 5]
    n, p, dim = sizes[0], config.projection_dim, config.dim

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(2, *shape, generator=generator) * scale).to(device)

    x, dy = (random(sum(sizes), p) for _ in range(2))
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
                y = TritonLSTMFunction.apply(*inputs, sizes, config, after)
            else:
                y = plain_layer(inputs[0], sizes, *inputs[1:], config, after)
            results.append([y.detach(), *torch.autograd.grad(y, leaves, dy), *after])
        # In inference.
        projection = weights[2] if config.has_projection else None
        packed = Weights.cast(weights[0], weights[1], projection, dtype)
        y = torch.empty_like(dy)
        after = state[0].clone(), state[1].clone()
        run_layer(x, sizes, packed, 2 * n, config, y, after)
    plain, ours = results
    pairs = zip([*plain, plain[0], *plain[-2:]], [*ours, y, *after])
    return mean_error(pairs)
