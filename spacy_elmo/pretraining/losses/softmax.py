"""A full softmax, computed or estimated from samples."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Optional

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...bilm.mixed_precision import autocast, operand, product_dtype
from ...bilm.packing import to_device
from ...kernels import Kernel, load_kernels
from ...parallel import run_side_by_side

# Each thread has a gradient of the weights of its own: numbers of all of them together.
_MAX_GRADIENTS = 64 << 20
# Bounds the logits that exist at a time, in bytes: they should fit into the processor's cache.
_LOGIT_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}

# Distinct words, rising, that a step estimates from, and the number of draws it took.
Samples = tuple[numpy.ndarray, int]


class Softmax(nn.Module):
    """A full softmax of words by falling frequency, whose training loss may be estimated.

    n_samples (Optional[int]): Words drawn per step; None: the exact loss.
    weight (Optional[Parameter]): A weight to share with another module.

    Attributes: `kernel` chooses what computes the loss, see `load_kernels`; `sparse`, whether the
    gradient of a weight that is not shared is a sparse tensor of the rows that were read.
    """

    def __init__(
        self,
        n_words: int,
        width: int,
        n_samples: Optional[int] = None,
        weight: Optional[nn.Parameter] = None,
    ) -> None:
        super().__init__()
        self.n_words = n_words
        self.n_samples = None if n_samples is None or n_samples >= n_words else n_samples
        self.tied = weight is not None
        if weight is None:
            weight = nn.Parameter(torch.empty(n_words, width))
            nn.init.normal_(weight, std=width**-0.5)
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(n_words))
        self.kernel: Kernel = "auto"
        self.sparse = False

    @torch.no_grad()
    def start_from(self, log_probabilities: Tensor) -> None:
        """Let a new layer begin with the words' frequencies, which it would learn first."""
        self.bias.copy_(log_probabilities)

    def draw(self, random: numpy.random.Generator) -> Optional[Samples]:
        """RETURNS (Optional[Samples]): The samples of one step, for both directions."""
        if self.n_samples is None:
            return None
        return draw_log_uniform(self.n_words, self.n_samples, random)

    def forward(self, h: Tensor, targets: Tensor, samples: Optional[Samples] = None) -> Tensor:
        """The loss that training minimises.

        h (Tensor): Shape (rows, P).
        targets (Tensor): The word of each row, shape (rows,), on the CPU.
        RETURNS (Tensor): The sum over all rows. With samples this is a classification among the
            samples and the target: its minimum is that of the full loss, its value is lower.
        """
        targets = to_device(numpy.ascontiguousarray(targets.numpy(), numpy.int64), h.device)
        if samples is None:
            return cross_entropy(h, self.weight, self.bias, targets, kernel=self.kernel)
        candidates, n_tries = to_device(samples[0], h.device), samples[1]
        # The column of the sample that is the row's target, or -1. Such an "accidental hit" is left
        # out of the row's samples.
        hit = torch.searchsorted(candidates, targets).clamp_max_(len(candidates) - 1)
        hit = torch.where(candidates[hit] == targets, hit, -1)
        # The logits of the samples and that of the target are all lowered by the logarithm of the
        # word's expected count, as in tf.nn.sampled_softmax_loss. Only then is the minimum of the
        # loss the true distribution (Jean et al. 2015, section 3; Bengio and Senécal 2008).
        log_counts, target_log_count = (
            log_expected_counts(words, self.n_words, n_tries) for words in (candidates, targets)
        )
        # One gather has one gradient; that of `F.embedding` is fast where many rows are the same.
        sparse = self.sparse and not self.tied
        parts, rows = (len(candidates), len(targets)), torch.cat((candidates, targets))
        weight, target_weight = F.embedding(rows, self.weight, sparse=sparse).split(parts)
        bias, target_bias = F.embedding(rows, self.bias[:, None]).squeeze(1).split(parts)
        target_logit = (h * target_weight).sum(1) + target_bias - target_log_count
        bias = bias - log_counts
        return cross_entropy(h, weight, bias, hit, target_logit, kernel=self.kernel)

    def log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """RETURNS (Tensor): The exact log probability of each row's word, shape (rows,)."""
        targets = to_device(targets.numpy(), h.device)
        result = h.new_empty(len(h))
        size = rows_per_chunk(h, self.n_words)
        for start in range(0, len(h), size):
            rows = slice(start, start + size)
            logits = torch.addmm(self.bias, h[rows], self.weight.t())
            result[rows] = -F.cross_entropy(logits, targets[rows], reduction="none")
        return result


def cross_entropy(
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    target_logit: Optional[Tensor] = None,
    *,
    kernel: Kernel,
) -> Tensor:
    """Matrix products have the type of `torch.autocast`, if it is on; all else that of the weights.

    h, weight, bias (Tensor): Shapes (rows, P), (words, P) and (words,).
    targets (Tensor): The column of each row's target, shape (rows,).
    target_logit (Optional[Tensor]): The targets' logits, shape (rows,), if they are not among those
        of `weight`: then the columns `targets` (-1 for none) are left out.
    RETURNS (Tensor): The sum over all rows of `logsumexp - logit of the target`.
    """
    dtype, kernels, n_parts = product_dtype(h), None, 1
    if h.device.type == "cpu":  # There are no kernels for other devices.
        kernels = load_kernels(kernel, h.device, dtype, h.dtype)
        n_parts = max(1, min(torch.get_num_threads(), _MAX_GRADIENTS // weight.numel()))
    with autocast(h.device, False):
        with torch.no_grad():
            d_h = torch.empty_like(h)
            rows = h, targets, target_logit, d_h
            parts = zip(*([None] * n_parts if t is None else t.tensor_split(n_parts) for t in rows))
            run = partial(_sum_rows, weight.to(dtype), bias, kernels)
            sums = run_side_by_side([partial(run, *part) for part in parts], h.device)
            total, d_weight, d_bias = (sum(terms[1:], terms[0]) for terms in list(zip(*sums))[:3])
            values, gradients = [h, weight, bias], [d_h, d_weight, d_bias]
            if target_logit is not None:
                values.append(target_logit)
                gradients.append(torch.expm1(-torch.cat([losses for *_, losses in sums])))
        return _WithGradients.apply(total, *values, *gradients)


class _WithGradients(torch.autograd.Function):
    """A number whose gradients are known. They were computed by chunks of rows, so that no matrix
    of all logits is kept."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return total.clone()

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Optional[Tensor], ...]:
        gradients = [gradient * d_total for gradient in ctx.saved_tensors]
        return None, *gradients, *[None for _ in gradients]


@torch.no_grad()  # A setting of each thread.
def _sum_rows(
    low_weight: Tensor,
    bias: Tensor,
    kernels: Any,
    h: Tensor,
    targets: Tensor,
    target_logit: Optional[Tensor],
    d_h: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # The sum of the losses, the gradients of weight and bias, each row's loss; `d_h` is written.
    losses, d_bias = h.new_empty(len(h)), torch.zeros_like(bias)
    d_weight: Any = None
    size = rows_per_chunk(h, len(low_weight))
    for start in range(0, len(h), size):
        rows = slice(start, start + size)
        low_h, target, loss = operand(h[rows], low_weight.dtype), targets[rows], losses[rows]
        n = len(target)
        given = None if target_logit is None else target_logit[rows]
        p = torch.mm(low_h, low_weight.t())
        if kernels is None:
            gradient, loss[:] = _softmax_gradient(p[:n].to(h.dtype).add_(bias), target, given)
            d_bias += gradient.sum(0)
            p = operand(gradient, low_weight.dtype)
        else:
            kernels.softmax_gradient(p[:n], bias, target, given, loss=loss, d_bias=d_bias)
            p[n:] = 0
        d_h[rows] = torch.mm(p, low_weight)[:n]
        change = torch.mm(p.t(), low_h[: len(p)])
        d_weight = change.to(h.dtype) if d_weight is None else d_weight.add_(change)
    if d_weight is None:  # More threads than rows.
        d_weight = torch.zeros_like(low_weight, dtype=h.dtype)
    return losses.sum(), d_weight, d_bias, losses


def _softmax_gradient(
    logits: Tensor, target: Tensor, target_logit: Optional[Tensor]
) -> tuple[Tensor, Tensor]:
    """RETURNS (tuple): The gradient of the logits, which are overwritten, and each row's loss."""
    if target_logit is None:
        chosen = logits.gather(1, target[:, None]).squeeze(1)
        norm = logits.logsumexp(1)
    else:
        column = target.clamp_min(0)[:, None]
        hits = logits.gather(1, column)
        logits.scatter_(1, column, hits.masked_fill_(target[:, None] >= 0, -math.inf))
        chosen = target_logit
        norm = torch.logaddexp(logits.logsumexp(1), chosen)
    p = logits.sub_(norm[:, None]).exp_()
    if target_logit is None:
        p[torch.arange(len(p), device=p.device), target] -= 1
    return p, norm - chosen


def rows_per_chunk(h: Tensor, n_words: int) -> int:
    """RETURNS (int): How many rows of logits to compute at a time."""
    limit = _LOGIT_BYTES["cpu" if h.device.type == "cpu" else "cuda"]
    return max(1, limit // (n_words * h.element_size()))


def log_expected_counts(words: Tensor, n_words: int, n_tries: int) -> Tensor:
    """RETURNS (Tensor): log(1 - (1 - p)^n_tries), with the probability p of one draw."""
    p = torch.log1p(1 / (words + 1)) / math.log(n_words + 1)
    return torch.log(-torch.expm1(n_tries * torch.log1p(-p)))


def draw_log_uniform(
    n_words: int, n_samples: int, random: numpy.random.Generator
) -> tuple[numpy.ndarray, int]:
    """Draw distinct words with probability `log(1 + 1 / (k + 1)) / log(n_words + 1)`, about Zipf's
    law for words sorted by frequency (TensorFlow's log_uniform_candidate_sampler)."""
    draws = numpy.zeros(0, numpy.int64)
    while True:
        uniform = random.random(max(2 * n_samples, len(draws)))
        values = numpy.exp(uniform * math.log(n_words + 1)) - 1
        draws = numpy.append(draws, numpy.minimum(values.astype(numpy.int64), n_words - 1))
        first = numpy.sort(numpy.unique(draws, return_index=True)[1])[:n_samples]
        if len(first) == n_samples:
            return numpy.sort(draws[first]), int(first[-1]) + 1
