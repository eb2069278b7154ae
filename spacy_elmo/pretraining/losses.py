"""Output layers of the language model: from the LSTMs' outputs to the loss of the next word.

Both directions share the output layer, as in bilm-tf. Losses are sums of negative log
probabilities in nats; rows of the input are predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Optional

import numpy
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..bilm.mixed_precision import autocast, operand, product_dtype, product_rows
from ..bilm.packing import to_device

LossName = Literal["sampled", "full", "adaptive"]
# Bounds the logits that exist at a time, in bytes: they should stay near the processor.
_LOGIT_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}


@dataclass(frozen=True)
class LossConfig:
    """Which output layer.

    name (str): "sampled" and "full" train the same weights: a full softmax, estimated from some
        words (Jean et al. 2015) or computed. "adaptive" (Grave et al. 2017) has smaller weights for
        rare words.
    n_samples (int): Words that a sampled softmax draws per step.
    cutoffs (Sequence[int]): Where the clusters of an adaptive softmax begin.
    tied (bool): The weights are the word embeddings; for word input only.
    """

    name: LossName = "sampled"
    n_samples: int = 8192
    cutoffs: Sequence[int] = (2000, 10000)
    tied: bool = False

    def __post_init__(self) -> None:
        if self.name not in ("sampled", "full", "adaptive"):
            raise ValueError(f"loss: name must be sampled, full or adaptive, found {self.name!r}")
        if self.n_samples < 1:
            raise ValueError(f"loss: n_samples must be 1 or more, found {self.n_samples}")
        if self.tied and self.name == "adaptive":
            raise ValueError("loss: an adaptive softmax cannot be tied to the word embeddings")


class Samples(NamedTuple):
    """What a sampled softmax estimates from.

    words (ndarray): Distinct words.
    n_tries (int): How many draws it took to have so many distinct ones.
    """

    words: numpy.ndarray
    n_tries: int


class Rows(NamedTuple):
    """Copies of some rows of a `Softmax`. As leaves of the graph, they get the gradient of these
    rows alone, not of the whole layer.

    words (Tensor): Distinct words, rising.
    parts (dict[Parameter, Tensor]): The layer's parameters, and these rows of them.
    """

    words: Tensor
    parts: dict[nn.Parameter, Tensor]


class Softmax(nn.Module):
    """A full softmax, which training may estimate from samples.

    n_words (int): Words that are predicted, by falling frequency.
    width (int): P.
    n_samples (Optional[int]): Words drawn per step in training; None for all.
    weight (Optional[Parameter]): Of another module, to share.
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

    @property
    def reads_rows(self) -> bool:
        """Whether training reads only some rows, which nothing else reads."""
        return self.n_samples is not None and not self.tied

    def draw(self, random: numpy.random.Generator) -> Optional[Samples]:
        """RETURNS (Optional[Samples]): For one step, in both directions."""
        if self.n_samples is None:
            return None
        return draw_log_uniform(self.n_words, self.n_samples, random)

    def gather(self, words: numpy.ndarray) -> Rows:
        """Copy the rows of some words, to train these alone.

        words (ndarray): Distinct words, rising.
        """
        index = to_device(words, self.weight.device)
        parts = {p: p.detach()[index].requires_grad_() for p in (self.weight, self.bias)}
        return Rows(index, parts)

    def forward(
        self,
        h: Tensor,
        targets: Tensor,
        samples: Optional[Samples] = None,
        rows: Optional[Rows] = None,
    ) -> Tensor:
        """The loss that training minimises.

        h (Tensor): Shape (rows, P).
        targets (Tensor): The word of each row, shape (rows,), on the CPU.
        samples (Optional[Samples]): The words to estimate from; None for all.
        rows (Optional[Rows]): Get the gradient instead of this layer; for samples only. They must
            include the samples and the targets.
        RETURNS (Tensor): The sum over all rows. With samples this is a classification among the
            samples and the target: its minimum is that of the full loss, its value is lower.
        """
        targets = to_device(targets.numpy(), h.device)
        if samples is None:
            return _cross_entropy(h, self.weight, self.bias, targets, None)
        candidates, n_tries = to_device(samples[0], h.device), samples[1]
        # The column of the sample that is the row's target, -1 for none: it does not count as a
        # sample there (an "accidental hit").
        hit = torch.searchsorted(candidates, targets).clamp_max_(len(candidates) - 1)
        hit = torch.where(candidates[hit] == targets, hit, -1)
        # The logits of the samples and that of the target are all lowered by the logarithm of the
        # word's expected count, as in tf.nn.sampled_softmax_loss. Only then is the minimum of the
        # loss the true distribution (Jean et al. 2015, section 3; Bengio and Senécal 2008).
        log_counts, own_log_count = (
            log_expected_counts(words, self.n_words, n_tries) for words in (candidates, targets)
        )
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if rows is not None:
            weight, bias = rows.parts[self.weight], rows.parts[self.bias]
            candidates, targets = (
                torch.searchsorted(rows.words, words) for words in (candidates, targets)
            )
        own = (h * weight[targets]).sum(1) + bias[targets] - own_log_count
        return _cross_entropy(h, weight[candidates], bias[candidates] - log_counts, hit, own)

    def log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """RETURNS (Tensor): The exact log probability of each row's word, shape (rows,)."""
        targets = to_device(targets.numpy(), h.device)
        result = h.new_empty(len(h))
        size = _rows(h, self.n_words)
        for start in range(0, len(h), size):
            rows = slice(start, start + size)
            logits = torch.addmm(self.bias, h[rows], self.weight.t())
            chosen = logits.gather(1, targets[rows, None]).squeeze(1)
            result[rows] = chosen - logits.logsumexp(1)
        return result


def _cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, own: Optional[Tensor]
) -> Tensor:
    """Products are in the type that `torch.autocast` asks for, if it is on; everything else is in
    that of the weights."""
    dtype = product_dtype(h)
    with autocast(h.device, False):
        return _CrossEntropy.apply(h, weight, bias, targets, own, dtype)


class _CrossEntropy(torch.autograd.Function):
    """Sum of `logsumexp - logit of the target`, with the gradient computed at once, so that no
    matrix of all logits is ever kept."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        own: Optional[Tensor],
        dtype: torch.dtype,
    ) -> Tensor:
        """With `own`, the target's logit stands apart, and the column `targets` (-1 for none) is
        left out of the others."""
        total = h.new_zeros(())
        d_h, d_weight, d_bias = (
            torch.empty_like(h),
            torch.zeros_like(weight),
            torch.zeros_like(bias),
        )
        d_own = None if own is None else torch.empty_like(own)
        size = _rows(h, len(weight))
        low_weight = weight.to(dtype)
        for start in range(0, len(h), size):
            rows = slice(start, start + size)
            part, goal = operand(h[rows], dtype), targets[rows]
            n = len(goal)
            logits = torch.mm(part, low_weight.t())[:n].to(h.dtype).add_(bias)
            if own is None:
                chosen = logits.gather(1, goal[:, None]).squeeze(1)
                norm = logits.logsumexp(1)
            else:
                at = goal.clamp_min(0)[:, None]
                found = logits.gather(1, at)
                logits.scatter_(1, at, found.masked_fill_(goal[:, None] >= 0, -math.inf))
                chosen = own[rows]
                norm = torch.logaddexp(logits.logsumexp(1), chosen)
            total += (norm - chosen).sum()
            p = logits.sub_(norm[:, None]).exp_()
            if d_own is None:
                p[torch.arange(n, device=h.device), goal] -= 1
            else:
                d_own[rows] = (chosen - norm).exp() - 1
            d_bias += p.sum(0)
            p = operand(p, dtype)
            d_h[rows] = torch.mm(p, low_weight)[:n]
            d_weight += torch.mm(p.t(), part)
        ctx.save_for_backward(d_h, d_weight, d_bias, *(() if d_own is None else (d_own,)))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Optional[Tensor], ...]:
        d_h, d_weight, d_bias, *rest = ctx.saved_tensors
        d_own = rest[0] * d_total if rest else None
        return d_h * d_total, d_weight * d_total, d_bias * d_total, None, d_own, None


def _rows(h: Tensor, n_words: int) -> int:
    limit = _LOGIT_BYTES.get(h.device.type, 1 << 30)
    return max(1, limit // (n_words * h.element_size()))


def log_expected_counts(words: Tensor, n_words: int, n_tries: int) -> Tensor:
    """RETURNS (Tensor): How often each word is expected among the samples of `draw_log_uniform`, as
    log(1 - (1 - p)^n_tries) with the probability p of one draw."""
    p = torch.log1p(1 / (words + 1)) / math.log(n_words + 1)
    return torch.log(-torch.expm1(n_tries * torch.log1p(-p)))


def draw_log_uniform(n_words: int, n_samples: int, random: numpy.random.Generator) -> Samples:
    """Draw distinct words with probability `log(1 + 1 / (k + 1)) / log(n_words + 1)`, about Zipf's
    law for words sorted by frequency (TensorFlow's log_uniform_candidate_sampler).

    RETURNS (Samples): The words, rising, and how many draws it took to have so many distinct ones.
    """
    seen = numpy.zeros(n_words, dtype=bool)
    n_tries = n_seen = 0
    while True:
        values = numpy.exp(random.random(2 * n_samples) * math.log(n_words + 1)) - 1
        draws = numpy.minimum(values.astype(numpy.int64), n_words - 1)
        _, first = numpy.unique(draws, return_index=True)
        new = numpy.sort(first[~seen[draws[first]]])
        missing = n_samples - n_seen
        if len(new) >= missing:
            seen[draws[new[:missing]]] = True
            return Samples(numpy.flatnonzero(seen), n_tries + int(new[missing - 1]) + 1)
        seen[draws[new]] = True
        n_seen += len(new)
        n_tries += len(draws)


class AdaptiveSoftmax(nn.Module):
    """PyTorch's adaptive softmax.

    n_words (int): Words that are predicted, by falling frequency.
    width (int): P.
    cutoffs (Sequence[int]): Where the clusters begin; those beyond the vocabulary are left out.
    RAISES (ValueError): If no cutoff is within the vocabulary, or there are too many for the width,
        of which each cluster has a quarter of what the one before has.
    """

    def __init__(self, n_words: int, width: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        inside = [cutoff for cutoff in cutoffs if cutoff < n_words]
        if not inside or inside != sorted(set(inside)) or inside[0] < 1:
            raise ValueError(
                f"loss: the cutoffs {list(cutoffs)} must rise, and the first must be within the "
                f"vocabulary of {n_words} words"
            )
        if width < 4 ** len(inside):
            raise ValueError(
                f"loss: the {len(inside)} cutoffs {inside} leave nothing of a projection_dim of "
                f"{width} for the last cluster: give fewer"
            )
        self.n_words = n_words
        self.reads_rows = False
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, inside, head_bias=True)

    def draw(self, random: numpy.random.Generator) -> None:
        """Nothing is sampled."""

    def forward(
        self, h: Tensor, targets: Tensor, samples: None = None, rows: None = None
    ) -> Tensor:
        """See `Softmax.forward`."""
        return -self._log_likelihood(h, targets).sum()

    def log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """See `Softmax.log_likelihood`."""
        size = _rows(h, self.n_words)
        parts = [
            self._log_likelihood(h[start : start + size], targets[start : start + size])
            for start in range(0, len(h), size)
        ]
        return torch.cat(parts) if parts else h.new_empty(0)

    def _log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """PyTorch's own forward waits for the device to learn which rows are in which cluster, and
        leaves out clusters that no target is in: with several processes, all must take part in the
        gradient of every cluster. Under `torch.autocast` it computes logarithms in half
        precision."""
        n_head, *ends = self.softmax.cutoffs
        words = targets.numpy()
        cluster = numpy.searchsorted([n_head, *ends[:-1]], words, side="right")
        place = numpy.where(cluster == 0, words, n_head + cluster - 1)
        result = _log_probabilities(self.softmax.head, h, place)
        for number, (start, tail) in enumerate(zip([n_head, *ends[:-1]], self.softmax.tail), 1):
            inside = numpy.flatnonzero(cluster == number)
            rows = to_device(inside, h.device)
            found = _log_probabilities(tail, h[rows], words[inside] - start)
            result = result.index_add(0, rows, found)
        return result


def _log_probabilities(layer: nn.Module, h: Tensor, targets: numpy.ndarray) -> Tensor:
    n = len(h)
    more = product_rows(n, h.device, product_dtype(h)) - n
    logits = layer(F.pad(h, (0, 0, 0, more)))[:n].to(h.dtype)
    return -F.cross_entropy(logits, to_device(targets, h.device), reduction="none")


OutputLayer = Softmax | AdaptiveSoftmax


def build_output_layer(
    config: LossConfig, n_words: int, width: int, embedding: Any = None
) -> OutputLayer:
    """RETURNS (OutputLayer): What the config asks for.
    RAISES (ValueError): If weights are to be tied, but there are no word embeddings."""
    if config.name == "adaptive":
        return AdaptiveSoftmax(n_words, width, config.cutoffs)
    if config.tied and embedding is None:
        raise ValueError("loss: tied needs word input: a character CNN has no word embeddings")
    n_samples = config.n_samples if config.name == "sampled" else None
    return Softmax(n_words, width, n_samples, embedding if config.tied else None)
