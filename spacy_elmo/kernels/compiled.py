"""The cell of an LSTM, forward and backward, and the gradient of a softmax, in C: `_kernels.c`.
Importing this file needs the extension, which is built if there is a compiler. The options that the
compiler was given may have broken the code."""

from __future__ import annotations

import math
import sys
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _kernels, cell_error, relative_error  # type: ignore[attr-defined]

# Rows that share a row of `d_bias`.
BIAS_ROWS = sys.maxsize


def forward(
    gates: Tensor,
    addend: Optional[Tensor],
    c_previous: Tensor,
    c: Tensor,
    hidden: Tensor,
    cell_clip: Optional[float],
    keep_gates: bool = False,
) -> None:
    """Run one step as `lstm_layer.lstm_step` does. Gates, addend and output are in float32 or
    bfloat16, cells in float32; the rows of all tensors follow one another without gaps.

    keep_gates (bool): Write the activations over the gates.
    """
    tensors = gates, addend, c_previous, c, hidden
    addresses = (0 if x is None else x.data_ptr() for x in tensors)
    clip = math.inf if cell_clip is None else cell_clip
    is_low = gates.dtype == torch.bfloat16
    _kernels.cell_forward(*addresses, *c.shape, clip, keep_gates, is_low)


def backward(
    gates: Tensor,
    c_previous: Tensor,
    c: Tensor,
    d_hidden: Tensor,
    d_c: Tensor,
    d_bias: Tensor,
    d_gates: Tensor,
    hidden: Tensor,
    cell_clip: Optional[float],
) -> None:
    """Go back through `forward`.

    gates (Tensor): After the activation.
    d_hidden (Tensor): The gradient of the output, in the type of `gates`; shape (n, H).
    d_c (Tensor): The gradient of the cells after the step; becomes that of the cells before it.
    d_bias (Tensor): Gets the gradient of the bias added, in float32; shape (1, 4H).
    d_gates (Tensor): Takes the gradient of the gates before the activation, in their type.
    hidden (Tensor): Takes the output, in the type of `gates`.
    """
    tensors = gates, c_previous, c, d_hidden, d_c, d_bias, d_gates, hidden
    clip = math.inf if cell_clip is None else cell_clip
    is_low = gates.dtype == torch.bfloat16
    _kernels.cell_backward(*(x.data_ptr() for x in tensors), *c.shape, clip, is_low)


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
    bias (Tensor): Shape (words,).
    targets (Tensor): The column of each row's target, shape (rows,).
    target_logits (Optional[Tensor]): The targets' logits, shape (rows,), if they are not among
        `logits`: then the columns `targets` (-1 for none) are left out.
    loss (Tensor): Takes the loss of each row, shape (rows,).
    d_bias (Tensor): Gets the gradient of the bias added.
    RAISES (IndexError): If a target is no column: the kernel would write past the end of a row.
    """
    if len(targets):
        least, most = targets.aminmax()
        if least < (0 if target_logits is None else -1) or most >= logits.shape[1]:
            raise IndexError(f"targets are {least} to {most}, of {logits.shape[1]} words")
    tensors = logits, bias, targets, target_logits, loss, d_bias, torch.empty_like(d_bias)
    addresses = (0 if x is None else x.data_ptr() for x in tensors)
    is_low = logits.dtype == torch.bfloat16
    _kernels.softmax_gradient(*addresses, *logits.shape, is_low)


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): The largest error of a function for a few rows; see `relative_error`."""
    this = sys.modules[__name__]
    return max(cell_error(this, device, dtype), _softmax_error(device, dtype))


@torch.inference_mode(False)
def _softmax_error(device: torch.device, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(0)
    logits, bias, given = (
        torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
        for shape in ((5, 140), (140,), (5,))
    )
    targets = torch.tensor([0, 7, 100, 99, 139], device=device)
    pairs = []
    for target_logits in (None, given):
        ours, loss, d_bias = logits.to(dtype, copy=True), given.clone(), torch.zeros_like(bias)
        with torch.enable_grad():
            x = (ours + bias).requires_grad_()
            row, target = x, targets
            if target_logits is not None:  # In a column behind the others.
                left_out = x.scatter(1, targets[:, None], -math.inf)
                row, target = (
                    torch.cat((left_out, given[:, None]), 1),
                    torch.full_like(targets, 140),
                )
            losses = F.cross_entropy(row, target, reduction="none")
            [gradient] = torch.autograd.grad(losses.sum(), x)
        softmax_gradient(ours, bias, targets, target_logits, loss=loss, d_bias=d_bias)
        pairs += [(losses.detach(), loss), (gradient, ours.float()), (gradient.sum(0), d_bias)]
    return relative_error(pairs)
