"""The steps of one LSTM layer, with the gradient written out.

Autograd would record a dozen operations per step, and allocate for each. Here the forward pass
keeps the gates and the cells, and the backward pass does per step what depends on the next step,
everything else for all steps at once: above all the gradients of the weights, which are one large
product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .config import LSTMConfig
from .precision import autocast, operand, product_dtype, product_rows
from .transfer import to_device

# Added to the forget gate's bias at run time (bilm-tf stores it without).
FORGET_BIAS = 1.0


def lstm_scan(
    x: Tensor,
    sizes: Sequence[int],
    gate_weight: Tensor,
    gate_bias: Tensor,
    projection_weight: Optional[Tensor],
    config: LSTMConfig,
    state: Optional[tuple[Tensor, Tensor]] = None,
) -> Tensor:
    """Run one layer with autograd. Products are in the type that `torch.autocast` asks for, if it
    is on; everything else is in that of the weights.

    x (Tensor): Packed inputs (see `lstm`), shape (..., rows, in).
    sizes (Sequence[int]): Sequences that are active at each step; falling.
    gate_weight (Tensor): Shape (..., 4H, in + P), gates in the order i, j (candidate), f, o.
    gate_bias (Tensor): Shape (..., 4H).
    projection_weight (Optional[Tensor]): Shape (..., P, H).
    config (LSTMConfig): The hyper-parameters.
    state (Optional[tuple]): Outputs and cells before the first step, shapes (..., sequences, P) and
        (..., sequences, H), changed in place to those after the last one: then all sequences must
        be of one length. No gradient flows into it. None: zeros.
    RETURNS (Tensor): The outputs, packed like x, shape (..., rows, P).
    """
    dtype = product_dtype(x)
    with autocast(x.device, False):
        return _Scan.apply(
            x, list(sizes), gate_weight, gate_bias, projection_weight, config, state, dtype
        )


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sizes: list[int],
        gate_weight: Tensor,
        gate_bias: Tensor,
        projection_weight: Optional[Tensor],
        config: LSTMConfig,
        state: Optional[tuple[Tensor, Tensor]],
        dtype: torch.dtype,
    ) -> Tensor:
        width, dim = x.shape[-1], config.dim
        weight = gate_weight.to(dtype)
        bias = gate_bias.clone()
        bias[..., 2 * dim : 3 * dim] += FORGET_BIAS
        gates = torch.matmul(operand(x, dtype), weight[..., :width].transpose(-1, -2))
        gates = gates[..., : x.shape[-2], :].to(x.dtype)
        gates += bias.unsqueeze(-2)
        recurrent = weight[..., width:].transpose(-1, -2).contiguous()
        projection = None
        if projection_weight is not None:
            projection = projection_weight.to(dtype).transpose(-1, -2).contiguous()
        cells = x.new_empty(*x.shape[:-1], dim)
        y = x.new_empty(*x.shape[:-1], config.projection_dim)
        h0, c0 = (None, None) if state is None else (state[0].clone(), state[1].clone())
        previous_h, previous_c = h0, c0
        at = 0
        for n in sizes:
            now = gates[..., at : at + n, :]
            if previous_h is not None:
                low = operand(previous_h[..., :n, :], dtype)
                now += torch.matmul(low, recurrent)[..., :n, :]
            i, j, f, o = now.split(dim, dim=-1)
            # tanh(j) = 2 sigmoid(2j) - 1; see `lstm`.
            j *= 2
            now.sigmoid_()
            j.mul_(2).sub_(1)
            c = cells[..., at : at + n, :]
            torch.mul(i, j, out=c)
            if previous_c is not None:
                c.addcmul_(previous_c[..., :n, :], f)
            if config.cell_clip is not None:
                c.clamp_(-config.cell_clip, config.cell_clip)
            h = _tanh(c).mul_(o)
            out = y[..., at : at + n, :]
            if projection is None:
                out.copy_(h)
            else:
                out.copy_(torch.matmul(operand(h, dtype), projection)[..., :n, :])
                if config.proj_clip is not None:
                    out.clamp_(-config.proj_clip, config.proj_clip)
            previous_h, previous_c = out, c
            at += n
        if state is not None and previous_h is not None and previous_c is not None:
            state[0].copy_(previous_h)
            state[1].copy_(previous_c)
        ctx.save_for_backward(x, gate_weight, projection_weight, gates, cells, y, h0, c0)
        ctx.sizes, ctx.config, ctx.dtype = sizes, config, dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Optional[Tensor], ...]:
        x, gate_weight, projection_weight, gates, cells, y, h0, c0 = ctx.saved_tensors
        config, dtype, sizes = ctx.config, ctx.dtype, ctx.sizes
        width, dim = x.shape[-1], config.dim
        weight = gate_weight.to(dtype)
        recurrent = weight[..., width:].contiguous()
        projection = None if projection_weight is None else projection_weight.to(dtype)
        n_rows, first = x.shape[-2], sizes[0] if sizes else 0
        previous = _previous_rows(sizes, x.device)

        # Factors that do not depend on later steps, for all steps at once. Those of the gates are
        # written over a copy of the gates, and become the gates' gradients in the loop.
        i, j, f, o = gates.split(dim, dim=-1)
        tanh_c = _tanh(cells)
        h = tanh_c * o
        d_gates = torch.empty_like(gates)
        d_i, d_j, d_f, d_o = d_gates.split(dim, dim=-1)
        torch.mul(j, i, out=d_i).addcmul_(d_i, i, value=-1)
        torch.mul(j, j, out=d_j).neg_().add_(1).mul_(i)
        d_f[..., :first, :] = 0 if c0 is None else c0
        d_f[..., first:, :] = cells[..., previous, :]
        d_f.mul_(f).addcmul_(d_f, f, value=-1)
        torch.mul(h, o, out=d_o).neg_().add_(h)
        through = tanh_c.square_().neg_().add_(1).mul_(o)
        inside = None
        if config.cell_clip is not None:
            inside = (cells.abs() < config.cell_clip).to(x.dtype)
        # The gates' gradients as operands of products: behind those of each step, there must be
        # enough rows to round its number up.
        low = d_gates
        if dtype != x.dtype:
            most = product_rows(n_rows, x.device, dtype) + product_rows(first, x.device, dtype)
            low = d_gates.new_empty(*x.shape[:-2], most, 4 * dim, dtype=dtype)
            low[..., n_rows:, :] = 0
        d_out = dy.clone()
        d_c = x.new_zeros(*x.shape[:-2], first, dim)
        at = x.shape[-2]
        d_h_next: Optional[Tensor] = None
        for n in reversed(sizes):
            at -= n
            rows = slice(at, at + n)
            d_now = d_out[..., rows, :]
            if d_h_next is not None:
                d_now[..., : d_h_next.shape[-2], :] += d_h_next
            if projection is None:
                d_h = d_now
            else:
                if config.proj_clip is not None:
                    d_now.mul_(y[..., rows, :].abs() < config.proj_clip)
                d_h = torch.matmul(operand(d_now, dtype), projection)[..., :n, :].to(x.dtype)
            d_c_now = d_c[..., :n, :]
            d_c_now.addcmul_(d_h, through[..., rows, :])
            if inside is not None:
                d_c_now *= inside[..., rows, :]
            now = d_gates[..., rows, :]
            by_gate = now.unflatten(-1, (4, dim))
            by_gate[..., :3, :] *= d_c_now.unsqueeze(-2)
            by_gate[..., 3, :] *= d_h
            d_c_now *= f[..., rows, :]
            if low is not d_gates:
                low[..., rows, :] = now
            if at:
                now_low = low[..., at : at + product_rows(n, x.device, dtype), :]
                d_h_next = torch.matmul(now_low, recurrent)[..., :n, :]

        def weight_gradient(start: int, inputs: Tensor) -> Tensor:
            inputs = operand(inputs, dtype)
            rows = low[..., start : start + inputs.shape[-2], :]
            return torch.matmul(rows.transpose(-1, -2), inputs)

        d_weight = torch.empty_like(gate_weight)
        d_weight[..., :width] = weight_gradient(0, x)
        d_weight[..., width:] = weight_gradient(first, y[..., previous, :])
        if h0 is not None:
            d_weight[..., width:] += weight_gradient(0, h0)
        d_projection = None
        if projection is not None:
            d_low = operand(d_out, dtype).transpose(-1, -2)
            d_projection = torch.matmul(d_low, operand(h, dtype)).to(x.dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = torch.matmul(
                low[..., : product_rows(n_rows, x.device, dtype), :], weight[..., :width]
            )
            d_x = d_x[..., :n_rows, :].to(x.dtype)
        return d_x, None, d_weight, d_gates.sum(-2), d_projection, None, None, None


def _tanh(x: Tensor) -> Tensor:
    return (x * 2).sigmoid_().mul_(2).sub_(1)


def _previous_rows(sizes: Sequence[int], device: torch.device) -> Tensor:
    """For each row but those of the first step, the row of the same sequence one step before."""
    counts = numpy.array([0, *sizes[:-1]][: len(sizes)], dtype=numpy.int64)
    rows = numpy.arange(sum(sizes)) - numpy.repeat(counts, sizes)
    return to_device(rows[sizes[0] if sizes else 0 :], device)
