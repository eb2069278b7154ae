"""The cell of an LSTM and a whole layer, forward and backward, and the gradient of a softmax, in C:
`_kernels.c`. Importing this file needs the extension, which is built if there is a compiler."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _kernels, cell_error, relative_error  # type: ignore[attr-defined]

# Rows that share a row of `d_bias`.
BIAS_ROWS = sys.maxsize

# How many outputs lie side by side in the weights of `pack_layer`, and in those of 8 bits: what the
# processor computes at once. 0 where C does not run whole layers: on an old processor, or not built
# by GCC for Linux.
PANEL, PANEL_INT8 = getattr(_kernels, "outputs_per_panel", lambda: (0, 0))()
# Asked once: on a virtual machine, the answer comes from the host.
_bfloat16_kind = cache(getattr(_kernels, "bfloat16_kind", int))
# In bfloat16, panels have 32 outputs, and rows are rounded up to blocks of as many inputs.
_BLOCK = 32
# The numbers of the arrangements in C.
_SINGLE, _HALF, _PAIRS, _TILES, _BYTES = range(5)

# Bytes of gates that inputs contribute to at once: enough rows to read the weights seldom, and few
# enough to stay in a cache.
_GATE_BYTES = 2 << 20


def _call(kind: int, tensors: Any, shape: Any, clip: Any = None, keep: bool = False) -> None:
    addresses = _addresses([*tensors, *[None] * (8 - len(tensors))])
    is_low = tensors[0].dtype == torch.bfloat16
    _kernels.run(kind, addresses, *shape, *_bounds(clip), keep, is_low)


def forward(*args: Any) -> None:
    """Run one step as `lstm_layer.lstm_step`, with its arguments; without `keep_gates`, the gates'
    values are lost. Cells are in float32, all else in that or bfloat16; rows have no gaps."""
    *tensors, clip, keep_gates = args
    _call(0, tensors, tensors[3].shape, clip, keep_gates)


def backward(*args: Any) -> None:
    """Go back through `forward`. Takes tensors with rows without gaps, and the clip of the cells.

    gates (Tensor): After the activation. The output and its gradient have their type.
    c_previous, c (Tensor): The cells before and after the step.
    d_hidden (Tensor): The gradient of the output.
    d_c (Tensor): The gradient of the cells after the step; becomes that of the cells before it.
    d_bias (Tensor): Gets the gradient of the bias added, in float32; shape (1, 4H).
    d_gates, hidden (Tensor): Take the gradient of the gates before the activation, and the output.
    """
    *tensors, clip = args
    _call(1, tensors, tensors[2].shape, clip)


def softmax_gradient(
    logits: Tensor,
    bias: Tensor,
    targets: Tensor,
    target_logits: Optional[Tensor],
    *,
    loss: Tensor,
    d_bias: Tensor,
) -> None:
    """Turn logits into the gradient of `logsumexp - logit of the target`, summed over the rows.

    logits (Tensor): Without the bias, in float32 or bfloat16; shape (rows, words).
    targets (Tensor): The column of each row's target.
    target_logits (Optional[Tensor]): The targets' logits if they are not among `logits`: then the
        columns `targets` (-1 for none) are left out.
    loss (Tensor): Takes the loss of each row.
    d_bias (Tensor): Gets the gradient of the bias added.
    RAISES (IndexError): If a target is no column: the kernel would write past the end of a row.
    """
    if len(targets):
        least, most = targets.aminmax()
        if least < (0 if target_logits is None else -1) or most >= logits.shape[1]:
            raise IndexError(f"targets are {least} to {most}, of {logits.shape[1]} words")
    tensors = logits, bias, targets, target_logits, loss, d_bias, torch.empty_like(d_bias)
    _call(2, tensors, logits.shape)


def runs_layers(precision: str) -> bool:
    """RETURNS (bool): Whether `pack_layer` is for this precision on this processor. The first call
    for "bfloat16" asks the system for the use of AMX."""
    return bool(_bfloat16_kind()) if precision == "bfloat16" else PANEL > 0


def pack_layer(
    weights: Sequence[Any],
    bias: Tensor,
    precision: str,
    cell_clip: Optional[float],
    clip: Optional[float],
) -> Callable[..., None]:
    """Arrange the weights of one layer and direction, for a precision of `runs_layers`. "float32"
    keeps a weight in half precision if that has all of its values, "float16" if all are in its
    range.

    weights (Sequence): What multiplies inputs, outputs, and, or None, the cells' output: float32,
        shape (out, in), or for "int8" an `Int8Weight`.
    bias (Tensor): As the gates add it, shape (4H,).
    RETURNS (Callable): Runs the layer as `lstm_layer.run_layer`: takes x, batch_sizes, y and state,
        in float32. A row's result does not depend on the other rows. To train (`trains_layers`), it
        takes tensors for all cells and, in bfloat16, gates, too, and only reads the state, whose
        h may be None.
    """
    arrange: Callable[[Any], tuple[int, Tensor]] = partial(_panels, low=precision == "float16")
    arrange = {"bfloat16": _blocks, "int8": _bytes}.get(precision, arrange)
    arranged = [(0, None) if weight is None else arrange(weight) for weight in weights]
    kinds, panels = zip(*arranged)
    values = (x.values if precision == "int8" and x is not None else x for x in weights)
    shapes = [(0, 0) if x is None else tuple(x.shape) for x in values]
    widths, depths = zip(*shapes)
    panel = PANEL_INT8 if precision == "int8" else PANEL
    clips = _bounds(cell_clip, clip)
    bias = bias.float().contiguous()
    return partial(_run_layer, panels, (depths, widths, kinds), panel, bias, clips)


def _panels(weight: Tensor, low: bool) -> tuple[int, Tensor]:
    weight = weight.detach()
    half = weight.half()
    fits = bool(half.isfinite().all()) if low else torch.equal(half.float(), weight)
    kept = half if fits else weight
    padded = F.pad(kept, (0, 0, 0, -len(kept) % PANEL))
    panels = padded.unflatten(0, (-1, PANEL)).transpose(1, 2)
    # NumPy asks for large pages of memory, which are read faster; PyTorch does not.
    return _HALF if fits else _SINGLE, torch.from_numpy(panels.numpy().copy())


def _blocks(weight: Tensor) -> tuple[int, Tensor]:
    out, depth = weight.shape
    padded = F.pad(weight.detach().bfloat16(), (0, -depth % _BLOCK, 0, -out % _BLOCK))
    pairs = padded.unflatten(0, (-1, 2, _BLOCK // 2)).unflatten(-1, (-1, _BLOCK // 2, 2))
    kind = _bfloat16_kind()  # In tiles, each half of the outputs is by itself within a block.
    order = (0, 3, 1, 4, 2, 5) if kind == _TILES else (0, 3, 4, 1, 2, 5)
    return kind, pairs.permute(order).contiguous()


def _bytes(weight: Any) -> tuple[int, Tensor]:
    """See `_bytes.h`. Sums begin with -128 times the weights, because x is 128 too large there."""
    out, depth = weight.values.shape
    values = F.pad(weight.values, (0, -depth % 4, 0, -out % PANEL_INT8))
    fours = values.unflatten(1, (-1, 4)).unflatten(0, (-1, PANEL_INT8)).transpose(1, 2)
    scales = F.pad(weight.scales[0], (0, -out % PANEL_INT8)).unflatten(0, (-1, PANEL_INT8))
    start = (-128 * values.sum(1, dtype=torch.int32)).unflatten(0, (-1, PANEL_INT8))
    parts = scales.view(torch.int8), start.view(torch.int8), fours.flatten(1)
    return _BYTES, torch.cat(parts, dim=1)


def _run_layer(
    panels: Sequence[Any],
    facts: tuple[Sequence[int], Sequence[int], Sequence[int]],
    panel: int,
    bias: Tensor,
    clips: Sequence[float],
    x: Tensor,
    batch_sizes: Sequence[int],
    y: Tensor,
    state: Optional[tuple[Optional[Tensor], Tensor]] = None,
    kept: Sequence[Optional[Tensor]] = (None, None),
) -> None:
    n, width = batch_sizes[0], len(bias)
    max_rows = max(n, min(len(x), _GATE_BYTES // (4 * width)))
    gates, hidden = x.new_empty(max_rows, width), x.new_empty(n, width // 4)
    h, c = state or (None, torch.zeros_like(hidden))
    rounded = None
    if facts[2][0] in (_PAIRS, _TILES, _BYTES):  # Room for x, or for the rows of a step.
        most = max(max_rows * (x.shape[1] + _BLOCK), n * (max(facts[0]) + _BLOCK))
        rounded = x.new_empty(most, dtype=torch.bfloat16)
    steps = torch.tensor(batch_sizes, device="cpu")
    if x.shape != (sum(batch_sizes), facts[0][0]) or bool((steps.diff() > 0).any()):
        raise ValueError(f"the shape {tuple(x.shape)} does not fit falling rows {batch_sizes}")
    tensors = x, steps, *panels, bias, gates, hidden, c, h, y, rounded, *kept
    _kernels.layer(_addresses(tensors), *facts, len(batch_sizes), panel, max_rows, *clips)


def trains_layers(dtype: torch.dtype, dim: int) -> bool:
    """RETURNS (bool): Whether a layer with cells of this width is trained in C."""
    # Gates and their gradients are rounded, and read, as whole blocks of 32 values.
    return dtype == torch.bfloat16 and dim % 8 == 0 and runs_layers("bfloat16")


def layer_backward(
    batch_sizes: Sequence[int],
    weights: Sequence[Optional[Tensor]],
    clips: Sequence[Optional[float]],
    kept: Sequence[Tensor],
    d_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Go back through a layer of `trains_layers`, whose gates may have more rows than its outputs.

    weights (Sequence): That of the projection, or None, and what multiplies outputs.
    clips (Sequence): Of cells and outputs.
    kept (Sequence): Outputs, gates and cells of the layer, and the cells before the first step.
    d_y (Tensor): The gradient of the outputs; becomes that before they are clipped.
    RETURNS (tuple): The gradients of the gates before the activation, the outputs before the
        projection, both with what was in memory in the rows that are more, and the gradient of the
        bias, shape (1, 4H).
    """
    y, gates, *_, c0 = kept
    (n, dim), out = c0.shape, y.shape[1]
    d_gates, hidden = torch.empty_like(gates), gates.new_empty(len(gates), dim)
    d_bias = c0.new_zeros(1, 4 * dim)
    panels = [None if x is None else _blocks(x.T)[1] for x in weights]
    rounded = gates.new_empty(n * (max(dim, out) + _BLOCK))
    steps = torch.tensor(batch_sizes, device="cpu")
    results = torch.zeros_like(c0), d_bias, d_gates, hidden
    tensors = steps, *panels, *kept, d_y, *results, torch.empty_like(c0), rounded
    shape = len(batch_sizes), dim, out
    _kernels.layer_back(_addresses(tensors), _bfloat16_kind(), *shape, *_bounds(*clips))
    return d_gates, hidden, d_bias


def _bounds(*clips: Optional[float]) -> list[float]:
    return [math.inf if clip is None else clip for clip in clips]


def _addresses(tensors: Sequence[Optional[Tensor]]) -> tuple[int, ...]:
    return tuple(0 if one is None else one.data_ptr() for one in tensors)


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): The largest error of a function for a few rows; see `relative_error`."""
    generator = torch.Generator().manual_seed(0)
    logits, bias, given = (
        torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
        for shape in ((5, 140), (140,), (5,))
    )
    pairs, targets = [], torch.tensor([0, 7, 100, 99, 139], device=device)
    for target_logits in (None, given):
        ours, loss, d_bias = logits.to(dtype, copy=True), given.clone(), torch.zeros_like(bias)
        row, columns = ours.double() + bias, targets
        if target_logits is not None:  # As a column of its own.
            row = torch.cat((row.scatter(1, targets[:, None], -math.inf), given[:, None]), 1)
            columns = torch.full_like(targets, 140)
        expected = F.cross_entropy(row, columns, reduction="none")
        d_row = (row.softmax(1) - F.one_hot(columns, row.shape[1]))[:, :140]
        softmax_gradient(ours, bias, targets, target_logits, loss=loss, d_bias=d_bias)
        pairs += [(expected, loss), (d_row, ours), (d_row.sum(0), d_bias)]
    if runs_layers(str(dtype).split(".")[1]):
        pairs += _layer_pairs(generator, dtype)
    return max(cell_error(sys.modules[__name__], device, dtype), relative_error(pairs))


def _layer_pairs(generator: torch.Generator, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    # Rows that end within a block, except where a training needs whole ones.
    sizes, dim, width = [3, 3, 1], 40 if dtype == torch.bfloat16 else 37, 5
    draw = partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
    shapes = (sum(sizes), 9), (4 * dim, 9), (4 * dim, width), (width, dim), (4 * dim,)
    x, *weights, bias = (draw(*shape) for shape in shapes)
    pairs = []
    for kind in (dtype, torch.float16) if dtype == torch.float32 else (dtype,):
        weights = [weight.to(kind).float() for weight in weights]
        y, d_y = x.new_empty(len(x), width), draw(len(x), width)
        run = pack_layer(weights, bias, str(dtype).split(".")[1], 1.0, 2.0)
        run(x, sizes, y)
        with torch.inference_mode(False), torch.enable_grad():
            factors = [tensor.double().requires_grad_() for tensor in (*weights, bias)]
            *matrices, addend = factors
            inputs, outputs, projection = (weight.T for weight in matrices)
            c, h, expected = x.new_zeros(3, dim).double(), x.new_zeros(3, width).double(), []
            for n, rows in zip(sizes, x.double().split(sizes)):
                i, j, f, o = (rows @ inputs + addend + h[:n] @ outputs).chunk(4, dim=1)
                c = (i.sigmoid() * j.tanh() + f.sigmoid() * c[:n]).clamp(-1, 1)
                h = ((o.sigmoid() * c.tanh()) @ projection).clamp(-2, 2)
                expected.append(h)
            gradients = torch.autograd.grad(torch.cat(expected), factors, d_y.double())
        pairs.append((torch.cat(expected).detach(), y))
        if trains_layers(dtype, dim):
            c0, cells = x.new_zeros(3, dim), x.new_empty(len(x), dim)
            gates = x.new_empty(len(x), 4 * dim, dtype=dtype)
            run(x, sizes, y, (None, c0), (cells, gates))
            back = weights[2], weights[1]
            parts = layer_backward(sizes, back, (1.0, 2.0), (y, gates, cells, c0), d_y)
            d_gates, hidden, d_bias = (part.float() for part in parts)
            found = d_gates.T @ x, d_y.T @ hidden, d_bias[0]
            pairs += zip((gradients[0], *gradients[2:]), found)
    return pairs + (_int8_pairs(x, weights, bias) if dtype == torch.float32 else [])


def _int8_pairs(x: Tensor, weights: Sequence[Tensor], bias: Tensor) -> list[tuple[Tensor, Tensor]]:
    """One step without a projection: what is rounded is known."""
    scales = weights[0].abs().amax(1) / 127
    low = SimpleNamespace(values=(weights[0].T / scales).T.round().char(), scales=scales[None])
    y = x.new_empty(len(x), len(bias) // 4)
    pack_layer([low, low, None], bias, "int8", None, None)(x, [len(x)], y)
    scale = x.double().abs().amax(1, keepdim=True) / 127
    gates = (x / scale).round() * scale @ (low.values.T * scales).double() + bias
    i, j, _, o = gates.chunk(4, dim=1)
    return [(o.sigmoid() * (i.sigmoid() * j.tanh()).tanh(), y)]
