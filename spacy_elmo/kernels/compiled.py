"""The cell of an LSTM, forward and backward, and the gradient of a softmax, in C: `_kernels.c`.
Importing this file needs the extension, which is built if there is a compiler."""

from __future__ import annotations

import math
import sys
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _kernels, cell_error, relative_error  # type: ignore[attr-defined]

# Rows that share a row of `d_bias`.
BIAS_ROWS = sys.maxsize


def _call(kind: int, tensors: Any, shape: Any, clip: Any = None, keep: bool = False) -> None:
    addresses = [0 if x is None else x.data_ptr() for x in tensors]
    addresses += [0] * (8 - len(addresses))
    bound, is_low = math.inf if clip is None else clip, tensors[0].dtype == torch.bfloat16
    _kernels.run(kind, tuple(addresses), *shape, bound, keep, is_low)


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
    return max(cell_error(sys.modules[__name__], device, dtype), relative_error(pairs))
