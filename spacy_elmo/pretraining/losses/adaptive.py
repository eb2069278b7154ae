"""PyTorch's adaptive softmax (Grave et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...bilm.mixed_precision import product_dtype, product_rows
from ...bilm.packing import to_device
from .softmax import rows_per_chunk


class AdaptiveSoftmax(nn.Module):
    """PyTorch's adaptive softmax.

    n_words (int): Words that are predicted, by falling frequency.
    width (int): P.
    cutoffs (Sequence[int]): The first word of each cluster; those beyond the vocabulary are left
        out.
    RAISES (ValueError): If no cutoff is within the vocabulary, or there are too many for the width:
        each cluster has a quarter of the width of the one before.
    """

    def __init__(self, n_words: int, width: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        inside = [cutoff for cutoff in cutoffs if cutoff < n_words]
        if not inside or inside != sorted(set(inside)) or inside[0] < 1:
            raise ValueError(
                f"pretraining.loss.cutoffs {list(cutoffs)} must rise, and the first must be within "
                f"the vocabulary of {n_words} words: give others, or set pretraining.loss.name = "
                '"full"'
            )
        if width < 4 ** len(inside):
            raise ValueError(
                f"pretraining.loss: the {len(inside)} cutoffs {inside} leave nothing of a "
                f"projection_dim of {width} for the last cluster: give fewer"
            )
        self.n_words = n_words
        self.reads_rows = False
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, inside, head_bias=True)

    def draw(self, random: numpy.random.Generator) -> None:
        """Nothing is sampled."""

    def forward(self, h: Tensor, targets: Tensor, samples: None = None) -> Tensor:
        """See `Softmax.forward`."""
        return -self._log_likelihood(h, targets).sum()

    def log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """See `Softmax.log_likelihood`."""
        size = rows_per_chunk(h, self.n_words)
        chunks = [
            self._log_likelihood(h[start : start + size], targets[start : start + size])
            for start in range(0, len(h), size)
        ]
        return torch.cat(chunks) if chunks else h.new_empty(0)

    def _log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """What `self.softmax.forward` returns, without its faults: it waits for the device, to see
        which rows are in which cluster; it skips clusters without targets, for which other
        processes may expect a gradient; and under `torch.autocast` it computes logarithms in half
        precision."""
        n_head, *ends = self.softmax.cutoffs
        words = targets.numpy()
        cluster = numpy.searchsorted([n_head, *ends[:-1]], words, side="right")
        place = numpy.where(cluster == 0, words, n_head + cluster - 1)
        result = _log_probabilities(self.softmax.head, h, place)
        for number, (start, tail) in enumerate(zip([n_head, *ends[:-1]], self.softmax.tail), 1):
            inside = numpy.flatnonzero(cluster == number)
            rows = to_device(inside, h.device)
            in_cluster = _log_probabilities(tail, h[rows], words[inside] - start)
            result = result.index_add(0, rows, in_cluster)
        return result


def _log_probabilities(layer: nn.Module, h: Tensor, targets: numpy.ndarray) -> Tensor:
    n = len(h)
    more = product_rows(n, h.device, product_dtype(h)) - n
    logits = layer(F.pad(h, (0, 0, 0, more)))[:n].to(h.dtype)
    return -F.cross_entropy(logits, to_device(targets, h.device), reduction="none")
