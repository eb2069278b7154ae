"""How a doc or span becomes one vector: the mean of a row for each token that is not whitespace.

The rows of `MeanPooling` are the component's own mix. Those of `WeightedPooling` are

    y = (w x - m) M,   x = the sum of s_l h_l,   w = a / (a + p)

for a token with the layers h_l, shares s_l, and a word of the frequency p: frequent words say less
about a sentence (Arora, Liang and Ma 2017, section 3). m is the mean of w x over sentences, because
all have much in common. M scales each principal component of them by its variance to the power of
-0.35: a few components have most of the variance, and say little about meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

import numpy
import torch
from safetensors import numpy as safetensors_numpy
from spacy.attrs import IS_SPACE, LOWER
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Ops, torch2xp, xp2torch

from .files import atomic_file
from .parallel import no_fork

FILE = "pooling.safetensors"


@dataclass(eq=False)
class WordPooling:
    """What `WeightedPooling` has learned for the weights of a biLM.

    words (ndarray): spaCy's hashes of frequent words in lower case, sorted; shape (n,).
    word_weights (ndarray): The weight w of each. That of other words is 1.
    shares (ndarray): The weight s of each layer, shape (L+1,).
    mean (ndarray): m, shape (2P,).
    matrix (ndarray): M, shape (2P, width).
    """

    words: Any
    word_weights: Any
    shares: Any
    mean: Any
    matrix: Any

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    def prepare(self, docs: Sequence[Doc], ops: Ops) -> tuple[Any, Callable[[Any, Any], None]]:
        """RETURNS (tuple): An array for the rows of all tokens of the docs, on the device of the
        ops, and what computes some of them. It is called with the numbers of the tokens, shape
        (n,), and their layers, shape (L+1, n, 2P). Whitespace gets zeros."""
        values: list[numpy.ndarray] = [numpy.zeros((0, 2), dtype=numpy.uint64)]
        values += [doc.to_array([LOWER, IS_SPACE]) for doc in docs]
        lower, is_space = numpy.concatenate(values).T
        place = numpy.searchsorted(self.words, lower).clip(max=len(self.words) - 1)
        factors: Any = numpy.where(self.words[place] == lower, self.word_weights[place], 1)
        factors = numpy.where(is_space == 0, factors, 0)
        # The layer of the largest share is taken as it is: the factors have its share.
        first, *others = numpy.argsort(-abs(self.shares)).tolist()
        largest = self.shares[first]
        terms = [(number, float(self.shares[number] / (largest or 1))) for number in others]
        weights, has_zeros = ops.asarray1f(factors * largest), not factors.all()
        matrix = xp2torch(ops.asarray2f(self.matrix))
        shift = xp2torch(ops.asarray1f(self.mean @ self.matrix))
        rows: Any = ops.alloc2f(len(factors), len(shift))

        def compute(tokens: Any, layers: Any) -> None:
            with no_fork(), torch.no_grad():
                all_layers, w = xp2torch(layers), xp2torch(weights[tokens])[:, None]
                x = all_layers[first]
                for number, share in terms:
                    x = torch.add(x, all_layers[number], alpha=share)
                # The rows of the product are fewer numbers than those of x.
                y = (x @ matrix).mul_(w).sub_(shift)
                rows[tokens] = torch2xp(y.masked_fill_(w == 0, 0) if has_zeros else y, ops=ops)

        return rows, compute

    def to_bytes(self) -> bytes:
        """RETURNS (bytes): A safetensors file."""
        return safetensors_numpy.save({x.name: getattr(self, x.name) for x in fields(self)})

    def to_disk(self, path: Path) -> None:
        """Write a file of the contents of `to_bytes`."""
        with atomic_file(path) as temporary:
            temporary.write_bytes(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, n_layers: int, width: int) -> WordPooling:
        """The inverse of `to_bytes`, for a biLM of so many layers and of this width.
        RAISES (ValueError): If the bytes are damaged, or for another biLM."""
        try:
            self = cls(**safetensors_numpy.load(data))
            shapes = self.words.shape, (n_layers,), (width,), (width, self.matrix.shape[1])
        except Exception as error:  # For damaged bytes, safetensors raises several.
            raise ValueError(f"the pooling cannot be read: {error}") from error
        values = self.word_weights, self.shares, self.mean, self.matrix
        is_valid = self.words.dtype == numpy.uint64 and all(
            x.dtype == numpy.float32 and x.shape == shape and numpy.isfinite(x).all()
            for x, shape in zip(values, shapes)
        )
        if not is_valid or not len(self.words):
            raise ValueError(
                f"the pooling is damaged, or not for a biLM of {n_layers} layers of width {width}: "
                "fit it with `spacy elmo fit-pooling`"
            )
        return self


# From what the weights have to what is used: None for the mean.
Pooling = Callable[[Optional[WordPooling]], Optional[WordPooling]]


@registry.misc("spacy-elmo.MeanPooling.v1")
def MeanPooling() -> Pooling:
    """The mean of the component's mix over the tokens."""
    return _mean


@registry.misc("spacy-elmo.WeightedPooling.v1")
def WeightedPooling() -> Pooling:
    """What was fitted for the weights: fewer of what frequent words, and all sentences, share."""
    return _weighted


def _mean(fitted: Optional[WordPooling]) -> None:
    return None


def _weighted(fitted: Optional[WordPooling]) -> WordPooling:
    if fitted is None:
        raise ValueError(
            "the weights have no pooling for spacy-elmo.WeightedPooling.v1: make a pipeline that "
            "has one with `spacy elmo fit-pooling`, or set pooling = null for the mean"
        )
    return fitted
