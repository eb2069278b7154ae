"""One step of an LSTM layer on a GPU without its matrix products: two Triton kernels.

Each reads every gate and cell once and writes it once, which is what limits the speed, for both
directions in one launch. Gates, outputs and their gradients are in bfloat16 or float32, cells and
the gradients of cells in float32, and so is all arithmetic.

The kernels are operators of PyTorch (`torch.ops.spacy_elmo`): profilers see them, and on meta
tensors they do nothing. Importing this file needs Triton.
"""

# Triton reads the annotations of kernels: constexpr or nothing.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

# Cells of one program, and, in the backward pass, the rows that it goes through: the more, the less
# is read and written for the gradient of the bias.
BLOCK, ROWS = 1024, 8


def n_warps(block: int) -> int:
    """RETURNS (int): So many that a thread has 8 cells: 16 bytes of each gate in bfloat16."""
    return max(1, block // (8 * 32))


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def _place(H: tl.constexpr, BLOCK: tl.constexpr):
    """RETURNS (tuple): The direction and the row of this program, and its cells in the row."""
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
    """RETURNS (tuple): The numbers of all four gates; `gates` are the places of the first one's."""
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
    gates,
    c_previous,
    c,
    hidden,
    gates_stride,  # From direction to direction; rows are contiguous.
    c_previous_stride,
    c_stride,
    hidden_stride,
    clip,
    KEEP_GATES: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    direction, row, cell = _place(H, BLOCK)
    inside = cell < H
    gate = gates + direction * gates_stride + row * (4 * H) + cell
    i, j, f, o = _load_gates(gate, H, inside)
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
    gates,
    c_previous,
    c,
    d_hidden,
    d_c,
    d_bias,
    d_gates,
    gates_stride,
    c_previous_stride,
    c_stride,
    d_hidden_stride,
    d_c_stride,
    d_bias_stride,
    clip,
    n,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    direction, group, cell = _place(H, BLOCK)
    # Sums over these rows, of the later steps so far.
    bias = d_bias + direction * d_bias_stride + group * (4 * H) + cell
    d_i_sum, d_j_sum, d_f_sum, d_o_sum = _load_gates(bias, H, cell < H)
    for number in range(ROWS):
        row = group * ROWS + number
        inside = (cell < H) & (row < n)
        gate = direction * gates_stride + row * (4 * H) + cell
        i, j, f, o = _load_gates(gates + gate, H, inside)
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
        _store_gates(d_gates + gate, d_i, d_j, d_f, d_o, H, inside)
        d_i_sum, d_j_sum = d_i_sum + d_i, d_j_sum + d_j
        d_f_sum, d_o_sum = d_f_sum + d_f, d_o_sum + d_o
    _store_gates(bias, d_i_sum, d_j_sum, d_f_sum, d_o_sum, H, cell < H)


_LIBRARY = torch.library.Library("spacy_elmo", "DEF")


def operator(schema: str) -> Callable[[Callable], Any]:
    """Make a function that launches a kernel an operator, on the device of its first argument. To
    meta tensors it does nothing."""

    def register(function: Callable) -> Any:
        def launch(first: Tensor, *args: Any, **kwargs: Any) -> None:
            with torch.cuda.device_of(first):
                function(first, *args, **kwargs)

        name = schema.split("(")[0]
        _LIBRARY.define(schema)
        _LIBRARY.impl(name, launch, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, lambda *args, **kwargs: None, "Meta")
        return getattr(torch.ops.spacy_elmo, name)

    return register


def _launch(kernel: Any, n: int, dim: int, *args: Any, **constants: int) -> None:
    """Launch a kernel for n rows, or groups of rows, of both directions."""
    block = min(BLOCK, triton.next_power_of_2(dim))
    grid = n * triton.cdiv(dim, block), 2
    kernel[grid](*args, H=dim, BLOCK=block, num_warps=n_warps(block), **constants)


@operator(
    "cell_forward(Tensor(a!) gates, Tensor c_previous, float? clip, bool keep_gates, *, "
    "Tensor(b!) c, Tensor(c!) hidden) -> ()"
)
def cell_forward(
    gates: Tensor,
    c_previous: Tensor,
    clip: Optional[float],
    keep_gates: bool,
    *,
    c: Tensor,
    hidden: Tensor,
) -> None:
    """One step without the products.

    gates (Tensor): Before the activation, in the order i, j (candidate), f, o, shape (2, n, 4H).
    c_previous (Tensor): The cells before the step, shape (2, n, H).
    clip (Optional[float]): Of the cells.
    keep_gates (bool): Write the activations over the gates.
    c (Tensor): Takes the cells after the step; may be c_previous.
    hidden (Tensor): Takes the output, shape (2, n, H).
    """
    tensors = gates, c_previous, c, hidden
    strides = [x.stride(0) for x in tensors]
    _, n, dim = c.shape
    _launch(forward_kernel, n, dim, *tensors, *strides, clip, keep_gates)


@operator(
    "cell_backward(Tensor gates, Tensor c_previous, Tensor c, Tensor d_hidden, float? clip, "
    "Tensor(a!) d_c, Tensor(b!) d_bias, *, Tensor(c!) d_gates) -> ()"
)
def cell_backward(
    gates: Tensor,
    c_previous: Tensor,
    c: Tensor,
    d_hidden: Tensor,
    clip: Optional[float],
    d_c: Tensor,
    d_bias: Tensor,
    *,
    d_gates: Tensor,
) -> None:
    """Go back through `cell_forward`.

    gates (Tensor): After the activation, shape (2, n, 4H).
    d_hidden (Tensor): The gradient of the output, shape (2, n, H).
    d_c (Tensor): That of the cells after the step; becomes that of the cells before it.
    d_bias (Tensor): To which that of the bias is added, in groups of ROWS rows, shape
        (2, n / ROWS or more, 4H).
    d_gates (Tensor): Takes that of the gates before the activation; of the strides of `gates`.
    """
    tensors = gates, c_previous, c, d_hidden, d_c, d_bias
    strides = [x.stride(0) for x in tensors]
    _, n, dim = c.shape
    n_groups = triton.cdiv(n, ROWS)
    _launch(backward_kernel, n_groups, dim, *tensors, d_gates, *strides, clip, n, ROWS=ROWS)
