"""The steps of one LSTM layer, for inference and for the forward pass of training.

Rows are packed (see `packing`). All tensors may have leading dimensions for several directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .config import LSTMConfig
from .packing import round_up

COMPILED_CELL = f"{__package__}.compiled_cell"

# Added to the forget gate's bias at run time (bilm-tf stores it without).
FORGET_BIAS = 1.0

# Outputs and cells of one layer, shapes (..., sequences, P) and (..., sequences, H).
LayerState = tuple[Tensor, Tensor]

# Computes `x @ weight.T + bias`. The result may be overwritten.
Linear = Callable[[Tensor], Tensor]


class LayerProducts(NamedTuple):
    """The matrix products of one layer, as `run_layer` uses them: packed for inference, or of plain
    tensors inside the autograd function.

    input, recurrent (Linear): From inputs and from outputs to gates, width 4H.
    projection (Optional[Linear]): From width H to P.
    max_rows (int): Rows of gates to compute from inputs at once.
    cell (Optional[module]): What runs the rest of a step: `compiled_cell`. None: `lstm_step`.
    """

    input: Linear
    recurrent: Linear
    projection: Optional[Linear]
    max_rows: int
    cell: Any = None


def lstm_step(
    gates: Tensor, c_previous: Tensor, c: Tensor, hidden: Tensor, cell_clip: Optional[float]
) -> Tensor:
    """One step without the projection. Writes the activations over the gates.

    gates (Tensor): Before the activation, in the order i, j (candidate), f, o; shape (..., n, 4H).
    c_previous (Tensor): The cells before the step, shape (..., n, H).
    c (Tensor): Takes the cells after it. If this is `c_previous`, the activation of i is lost.
    hidden (Tensor): Takes the output, shape (..., n, H).
    RETURNS (Tensor): The output.
    """
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
    return torch.mul(c, 2, out=hidden).sigmoid_().mul_(2).sub_(1).mul_(o)


def run_layer(
    x: Tensor,
    batch_sizes: Sequence[int],
    products: LayerProducts,
    config: LSTMConfig,
    y: Tensor,
    state: Optional[LayerState] = None,
    cells: Optional[Tensor] = None,
) -> None:
    """Run one layer, for inference and for the forward pass of training. Autograd must be off: the
    outputs are written in place.

    x (Tensor): Packed inputs, shape (..., rows, in).
    batch_sizes (Sequence[int]): Sequences that are active at each step; falling.
    y (Tensor): Takes the outputs, packed like x, shape (..., rows, P). They are rounded to the type
        of the gates.
    state (Optional[LayerState]): Before the first step, changed in place to that after each
        sequence's last step. None: zeros.
    cells (Optional[Tensor]): Takes all cells, packed like x, shape (..., rows, H).
    """
    h, c = state or (None, x.new_zeros(*x.shape[:-2], batch_sizes[0], config.dim))
    kept = None
    if cells is not None:
        # A compiled cell reads rows without gaps. The state is written at the end.
        c, kept = c.contiguous(), iter(cells.split(batch_sizes, dim=-2))
    previous, hidden, low_y = h, None, y
    for n, gates in zip(batch_sizes, _input_gates(x, batch_sizes, products)):
        if hidden is None:
            if gates.dtype != y.dtype:
                low_y = torch.empty_like(y, dtype=gates.dtype)
            outputs = iter(low_y.split(batch_sizes, dim=-2))
            clip = projection_clip(config, gates.dtype)
            # Products may read more rows, see `add_rows`.
            hidden = gates.new_zeros(*c.shape[:-2], round_up(n), config.dim)
        c, hidden = _first_rows(c, n), _first_rows(hidden, n)
        c_next = c if kept is None else next(kept)
        addend = None if previous is None else products.recurrent(_first_rows(previous, n))
        if products.cell is not None:
            keeps = kept is not None
            products.cell.forward(gates, addend, c, c_next, hidden, config.cell_clip, keeps)
        else:
            if addend is not None:
                gates += addend
            lstm_step(gates, c, c_next, hidden, config.cell_clip)
        del gates  # Free them before those of later steps are computed.
        output = hidden if products.projection is None else products.projection(hidden)
        c, previous = c_next, next(outputs)
        if clip is None:
            previous.copy_(output)
        else:
            torch.clamp(output, -clip, clip, out=previous)
        if h is not None:
            h.narrow(-2, 0, n).copy_(previous)
    if low_y is not y:
        y.copy_(low_y)
    if state is not None and cells is not None:
        state[1].copy_(c)


def _input_gates(
    x: Tensor, batch_sizes: Sequence[int], products: LayerProducts
) -> Iterator[Tensor]:
    """YIELDS (Tensor): For each step, what the inputs contribute to the gates."""
    start = 0
    for sizes in split_steps(batch_sizes, products.max_rows):
        n_rows = sum(sizes)
        gates = products.input(x.narrow(-2, start, n_rows)).narrow(-2, 0, n_rows)
        by_step = gates.split(sizes, dim=-2)
        del gates
        yield from by_step
        del by_step
        start += n_rows


def _first_rows(x: Tensor, n: int) -> Tensor:
    return x if x.shape[-2] == n else x.narrow(-2, 0, n)


def split_steps(batch_sizes: Sequence[int], max_rows: int) -> Iterator[Sequence[int]]:
    """Cut steps into runs of at most `max_rows` rows, but at least one step."""
    start = rows = 0
    for step, n in enumerate(batch_sizes):
        if step > start and rows + n > max_rows:
            yield batch_sizes[start:step]
            start, rows = step, 0
        rows += n
    if batch_sizes:
        yield batch_sizes[start:]


@cache
def projection_clip(config: LSTMConfig, dtype: torch.dtype) -> Optional[float]:
    """RETURNS (Optional[float]): The bound as `dtype` has it: what is clipped is equal to it."""
    clip = config.proj_clip if config.has_projection else None
    return None if clip is None else float(torch.tensor(clip, dtype=dtype, device="cpu"))
