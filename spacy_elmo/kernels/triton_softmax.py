"""The loss of a softmax and the gradient of its logits on a GPU: one Triton kernel, which reads a
logit from memory once and writes its gradient over it. Importing this file needs Triton."""

# Triton reads the annotations of kernels: constexpr or nothing.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..pretraining.losses.softmax import softmax_error
from .triton_cell import operator

# Logits of a row that its program reads at a time, 16 bytes per thread and load.
BLOCK, N_WARPS = 4096, 8


@triton.jit
def _load_logits(row, bias, word, n_words):
    x = tl.load(row + word, word < n_words, other=-float("inf")).to(tl.float32)
    return x + tl.load(bias + word, word < n_words, other=0.0)


@triton.jit
def softmax_kernel(
    logits,
    bias,
    targets,
    target_logits,  # None: they are among the logits.
    loss,
    n_words,
    row_stride,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0)
    row = logits + number.to(tl.int64) * row_stride
    target = tl.load(targets + number)
    # The logarithm of the sum of exponentials is most + log(total).
    if target_logits is None:
        chosen, most, total = 0.0, -float("inf"), 0.0
    else:
        chosen = tl.load(target_logits + number)
        most, total = chosen, 1.0
    for start in range(0, n_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        x = _load_logits(row, bias, word, n_words)
        if target_logits is None:
            chosen += tl.sum(tl.where(word == target, x, 0.0))
        else:
            x = tl.where(word == target, -float("inf"), x)
        before, most = most, tl.maximum(most, tl.max(x))
        total = total * tl.exp(before - most) + tl.sum(tl.exp(x - most))
    norm = most + tl.log(total)
    tl.store(loss + number, norm - chosen)
    for start in range(0, n_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        p = tl.exp(_load_logits(row, bias, word, n_words) - norm)
        p = tl.where(word == target, p - 1 if target_logits is None else 0.0, p)
        tl.store(row + word, p, word < n_words)


def softmax_gradient(
    logits: Tensor,
    bias: Tensor,
    targets: Tensor,
    target_logits: Optional[Tensor],
    *,
    loss: Tensor,
    d_bias: Tensor,
) -> None:
    """See `compiled_softmax`."""
    _softmax_gradient(logits, bias, targets, target_logits, loss=loss)
    d_bias += logits.sum(0, dtype=d_bias.dtype)


@operator(
    "softmax_gradient(Tensor(a!) logits, Tensor bias, Tensor targets, Tensor? target_logits, *, "
    "Tensor(b!) loss) -> ()"
)
def _softmax_gradient(
    logits: Tensor,
    bias: Tensor,
    targets: Tensor,
    target_logits: Optional[Tensor],
    *,
    loss: Tensor,
) -> None:
    n_rows, n_words = logits.shape
    arguments = logits, bias, targets, target_logits, loss, n_words, logits.stride(0)
    block = min(BLOCK, triton.next_power_of_2(n_words))
    softmax_kernel[n_rows,](*arguments, BLOCK=block, num_warps=N_WARPS)


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): See `softmax_error`."""
    return softmax_error(softmax_gradient, device, dtype, BLOCK)
