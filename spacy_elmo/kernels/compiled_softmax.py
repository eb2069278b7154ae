"""The loss of a softmax and the gradient of its logits on a CPU, compiled: `_kernels.c`. Importing
this file needs the extension, which is built if there is a compiler."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..pretraining.losses.softmax import softmax_error
from . import _kernels  # type: ignore[attr-defined]


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
    d_bias (Tensor): To which the gradient of the bias is added.
    RAISES (IndexError): If a target is no column: the kernel would write past the end of a row.
    """
    if len(targets):
        least, most = targets.aminmax()
        if least < (0 if target_logits is None else -1) or most >= logits.shape[1]:
            raise IndexError(f"targets are {least} to {most}, of {logits.shape[1]} words")
    row = torch.empty_like(d_bias)
    _kernels.softmax_gradient(
        logits.data_ptr(),
        bias.data_ptr(),
        targets.data_ptr(),
        0 if target_logits is None else target_logits.data_ptr(),
        loss.data_ptr(),
        d_bias.data_ptr(),
        row.data_ptr(),
        *logits.shape,
        logits.dtype == torch.bfloat16,
    )


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): See `softmax_error`."""
    return softmax_error(softmax_gradient, device, dtype, 100)
