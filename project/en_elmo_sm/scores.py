"""What the evaluations measure, on cosines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def pairs(vectors: Tensor, labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """RETURNS (tuple): The cosines of all pairs of one label, and of all pairs of two."""
    i, j = torch.triu_indices(len(labels), len(labels), 1)
    cosines = (vectors @ vectors.T)[i, j]
    of = torch.tensor(labels)
    return cosines[of[i] == of[j]], cosines[of[i] != of[j]]


def auc(same: Tensor, other: Tensor) -> float:
    """RETURNS (float): How often one of `same` is above one of `other`; equal ones count half."""
    other = other.sort().values
    same = same.contiguous()
    below = [torch.searchsorted(other, same, right=right) for right in (False, True)]
    return float((below[0] + below[1]).double().mean()) / 2 / len(other)


def similarity(cosines: Tensor, sources: Sequence[int]) -> float:
    """cosines (Tensor): Of first sentences (rows) and second ones."""
    of = torch.tensor(sources)
    scores = []
    for source in dict.fromkeys(sources):
        block = cosines[of == source][:, of == source]
        if len(block) > 1:
            others = block[~torch.eye(len(block), dtype=torch.bool)]
            scores.append(auc(block.diagonal(), others))
    return mean(scores)


def reciprocal_rank(cosines: Tensor) -> float:
    ranks = (cosines > cosines.diagonal()[:, None]).sum(1) + 1
    return float((1 / ranks).mean())


def accuracy(
    train: Sequence[tuple[Tensor, Tensor]], test: Sequence[tuple[Tensor, Tensor]]
) -> float:
    """RETURNS (float): Of the threshold that is best on `train`."""

    def of(sides: Sequence[tuple[Tensor, Tensor]], thresholds: Tensor) -> Tensor:
        same, other = (torch.cat(side).sort().values for side in zip(*sides))
        missed = torch.searchsorted(same, thresholds) / len(same)
        return (1 - missed + torch.searchsorted(other, thresholds) / len(other)) / 2

    if not train or not test:
        return 0.0
    thresholds = torch.linspace(-1, 1, 4001)
    best = of(train, thresholds).argmax()
    return float(of(test, thresholds[best, None]))


def vote(memory: Tensor, labels: Sequence[str], queries: Tensor, n: int) -> list[str]:
    """RETURNS (list): The most frequent label of the n nearest rows in memory of each query."""
    names = sorted(set(labels))
    numbers = torch.tensor([names.index(label) for label in labels])
    result: list[str] = []
    for part in queries.split(1024):
        nearest = numbers[(part @ memory.T).topk(min(n, len(memory))).indices]
        result.extend(names[i] for i in one_hot(nearest, len(names)).sum(1).argmax(1).tolist())
    return result
