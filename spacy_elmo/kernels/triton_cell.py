"""The cell of an LSTM on a GPU, forward and backward: two Triton kernels. Experimental: no GPU has
run them yet; tests interpret them on a CPU. Importing this file needs Triton.

One launch serves both directions. Gates, outputs and their gradients are in bfloat16 or float32;
cells, their gradients and all arithmetic are in float32. The kernels are operators of PyTorch
(`torch.ops.spacy_elmo`): profilers see them, and on meta tensors they do nothing.
"""

# Triton reads the annotations of kernels: constexpr or nothing.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from . import cell_error

# Cells of one program, and, in the backward pass, the rows that it goes through, which share a row
# of `d_bias`: the more, the less is read and written for it.
BLOCK, BIAS_ROWS = 1024, 8


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def _place(H: tl.constexpr, BLOCK: tl.constexpr):
    # The direction and the row of this program, and its cells in the row.
    n_blocks: tl.constexpr = (H + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    # The offset of a row may exceed 32 bits, that within a row does not.
    direction, row = tl.program_id(1).to(tl.int64), (program // n_blocks).to(tl.int64)
    return direction, row, program % n_blocks * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _load(x, inside):
    return tl.load(x, inside, other=0.0).to(tl.float32)


@triton.jit
def _load_gates(gates, H: tl.constexpr, inside):
    # All four gates; `gates` are the places of the first one's.
    i, j = _load(gates, inside), _load(gates + H, inside)
    return i, j, _load(gates + 2 * H, inside), _load(gates + 3 * H, inside)


@triton.jit
def _store_gates(gates, i, j, f, o, H: tl.constexpr, inside):
    tl.store(gates, i, inside)
    tl.store(gates + H, j, inside)
    tl.store(gates + 2 * H, f, inside)
    tl.store(gates + 3 * H, o, inside)


@triton.jit
def forward_kernel(
    gates, addend, c_previous, c, hidden,
    gates_stride, addend_stride, c_previous_stride, c_stride, hidden_stride,
    clip, KEEP_GATES: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Strides are from direction to direction; rows are contiguous. `addend` may be None.
    direction, row, cell = _place(H, BLOCK)
    inside = cell < H
    gate = gates + direction * gates_stride + row * (4 * H) + cell
    i, j, f, o = _load_gates(gate, H, inside)
    if addend is not None:
        added = addend + direction * addend_stride + row * (4 * H) + cell
        i_added, j_added, f_added, o_added = _load_gates(added, H, inside)
        i, j, f, o = i + i_added, j + j_added, f + f_added, o + o_added
    i, j, f, o = _sigmoid(i), _tanh(j), _sigmoid(f), _sigmoid(o)
    value = i * j + f * _load(c_previous + direction * c_previous_stride + row * H + cell, inside)
    if clip is not None:
        value = tl.clamp(value, -clip, clip, propagate_nan=tl.PropagateNan.ALL)
    tl.store(c + direction * c_stride + row * H + cell, value, inside)
    tl.store(hidden + direction * hidden_stride + row * H + cell, o * _tanh(value), inside)
    if KEEP_GATES:
        _store_gates(gate, i, j, f, o, H, inside)


@triton.jit
def backward_kernel(
    gates, c_previous, c, d_hidden, d_c, d_bias, d_gates, hidden,
    gates_stride, c_previous_stride, c_stride, d_hidden_stride,
    d_c_stride, d_bias_stride, d_gates_stride, hidden_stride,
    clip, n, H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    direction, group, cell = _place(H, BLOCK)
    # Sums over these rows, of the later steps so far.
    bias = d_bias + direction * d_bias_stride + group * (4 * H) + cell
    d_i_sum, d_j_sum, d_f_sum, d_o_sum = _load_gates(bias, H, cell < H)
    for number in range(ROWS):
        row = group * ROWS + number
        inside = cell < tl.where(row < n, H, 0)
        gate = row * (4 * H) + cell
        i, j, f, o = _load_gates(gates + direction * gates_stride + gate, H, inside)
        value = _load(c + direction * c_stride + row * H + cell, inside)
        previous = _load(c_previous + direction * c_previous_stride + row * H + cell, inside)
        d_h = _load(d_hidden + direction * d_hidden_stride + row * H + cell, inside)
        d_cell = d_c + direction * d_c_stride + row * H + cell
        tanh = _tanh(value)
        d = _load(d_cell, inside) + d_h * o * (1 - tanh * tanh)
        if clip is not None:
            d = tl.where(tl.abs(value) < clip, d, 0.0)
        d_i, d_j = d * j * i * (1 - i), d * i * (1 - j * j)
        d_f, d_o = d * previous * f * (1 - f), d_h * tanh * o * (1 - o)
        tl.store(d_cell, d * f, inside)
        tl.store(hidden + direction * hidden_stride + row * H + cell, tanh * o, inside)
        d_gate = d_gates + direction * d_gates_stride + gate
        _store_gates(d_gate, d_i, d_j, d_f, d_o, H, inside)
        d_i_sum, d_j_sum = d_i_sum + d_i, d_j_sum + d_j
        d_f_sum, d_o_sum = d_f_sum + d_f, d_o_sum + d_o
    _store_gates(bias, d_i_sum, d_j_sum, d_f_sum, d_o_sum, H, cell < H)


_LIBRARY = torch.library.Library("spacy_elmo", "DEF")


def _operator(schema: str, function: Callable[..., None]) -> Any:
    """RETURNS (Callable): A function that launches a kernel, as an operator."""
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, lambda *args, **kwargs: None, "Meta")
    return getattr(torch.ops.spacy_elmo, name)


def _launch(kernel: Any, rows_each: int, tensors: Any, *args: Any, **constants: int) -> None:
    """Launch a kernel for all rows of some directions, `rows_each` to a program.

    tensors (Sequence): The third one is the cells, of shape (directions, n, H) or (n, H).
    """
    *directions, n, dim = tensors[2].shape
    strides = [0 if x is None or not directions else x.stride(0) for x in tensors]
    # A thread has 8 cells: 16 bytes of each gate in bfloat16.
    block = min(BLOCK, triton.next_power_of_2(dim))
    grid = triton.cdiv(n, rows_each) * triton.cdiv(dim, block), *(directions or [1])
    constants |= {"H": dim, "BLOCK": block, "num_warps": max(1, block // (8 * 32))}
    with torch.cuda.device_of(tensors[0]):
        kernel[grid](*tensors, *strides, *args, **constants)


# As those of `compiled`, also for tensors of several directions, whose rows have no gaps. `d_bias`
# has a row for each BIAS_ROWS rows of the others. PyTorch leaves out `keep_gates` if it is false.
forward = _operator(
    "cell_forward(Tensor(a!) gates, Tensor? addend, Tensor c_previous, Tensor(b!) c, "
    "Tensor(c!) hidden, float? clip, bool keep_gates=False) -> ()",
    lambda *args: _launch(forward_kernel, 1, args[:5], args[5], len(args) > 6),
)
backward = _operator(
    "cell_backward(Tensor gates, Tensor c_previous, Tensor c, Tensor d_hidden, Tensor(a!) d_c, "
    "Tensor(b!) d_bias, Tensor(c!) d_gates, Tensor(d!) hidden, float? clip) -> ()",
    lambda *args: _launch(
        backward_kernel, BIAS_ROWS, args[:8], args[8], args[2].shape[-2], ROWS=BIAS_ROWS
    ),
)


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): See `cell_error`."""
    return cell_error(sys.modules[__name__], device, dtype, 2)
