"""PyTorch's adaptive softmax (Grave et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...bilm.mixed_precision import product_dtype, product_rows
from ...bilm.packing import to_device
from ...kernels import Kernel
from .softmax import cross_entropy


class AdaptiveSoftmax(nn.Module):
    """PyTorch's adaptive softmax.

    cutoffs (Sequence[int]): The first word of each cluster; those beyond the vocabulary are left
        out. Each cluster has a quarter of the width of the one before.
    """

    def __init__(self, n_words: int, width: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        inside = [cutoff for cutoff in cutoffs if cutoff < n_words]
        if not inside or inside != sorted({*inside} - {0}) or width < 4 ** len(inside):
            raise ValueError(
                f"pretraining.loss.cutoffs {list(cutoffs)} must rise from 1 or more within the "
                f"vocabulary of {n_words} words, and each divides the width ({width}) by four"
            )
        self.n_words = n_words
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, inside, head_bias=True)
        self.kernel: Kernel = "auto"

    @torch.no_grad()
    def start_from(self, log_probabilities: Tensor) -> None:
        """See `Softmax.start_from`. The words of a cluster have no biases of their own."""
        n_head, *ends = self.softmax.cutoffs
        words, *clusters = log_probabilities.tensor_split((n_head, *ends[:-1]))
        sums = torch.stack([cluster.logsumexp(0) for cluster in clusters])
        self.softmax.head.bias.copy_(torch.cat((words, sums)))

    def draw(self, random: numpy.random.Generator) -> None:
        """Nothing is sampled."""

    def forward(self, h: Tensor, targets: Tensor, samples: None = None) -> Tensor:
        """See `Softmax.forward`. Unlike that of `self.softmax`, it does not wait for the device, to
        see which rows are in which cluster; clusters without targets have a gradient, too, which
        other processes may expect; and logarithms are never in half precision."""
        (_, columns), *clusters = self._columns(targets.numpy())
        head, device = self.softmax.head, h.device
        loss = partial(cross_entropy, kernel=self.kernel)
        total = loss(h, head.weight, head.bias, to_device(columns, device))
        for (rows, columns), tail in zip(clusters, self.softmax.tail):
            down, up = cast("Sequence[nn.Linear]", tail)
            n = len(rows)
            more = product_rows(n, device, product_dtype(h)) - n
            x = down(F.pad(h[to_device(rows, device)], (0, 0, 0, more)))[:n].to(h.dtype)
            bias = up.weight.new_zeros(len(up.weight))
            total = total + loss(x, up.weight, bias, to_device(columns, device))
        return total

    def log_likelihood(self, h: Tensor, targets: Tensor) -> Tensor:
        """See `Softmax.log_likelihood`."""
        return self.softmax(h, to_device(targets.numpy(), h.device)).output

    def _columns(self, words: numpy.ndarray) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
        """RETURNS (list): For the head and each cluster, the rows that have it in their product of
        probabilities, and which of its columns."""
        n_head, *ends = self.softmax.cutoffs
        starts = [n_head, *ends[:-1]]
        cluster = numpy.searchsorted(starts, words, side="right")
        head = numpy.where(cluster == 0, words, n_head + cluster - 1)
        inside = [numpy.flatnonzero(cluster == number + 1) for number in range(len(starts))]
        tails = [(rows, words[rows] - start) for rows, start in zip(inside, starts)]
        return [(numpy.arange(len(words)), head), *tails]
