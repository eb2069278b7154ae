"""Warnings of what makes a corpus of little use, although it can be made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy

# Scripts that are written without spaces: Thai and Lao, Burmese, Khmer, Kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
# Words in these scripts have 2 to 5 characters on average; clauses have ten and more.
_MAX_MEAN_LENGTH = 7
_MIN_TYPES = 20  # Fewer are too few for a mean or a correlation.


def warn_if_unsegmented(types: Sequence[str], counts: numpy.ndarray) -> None:
    """Warn if words of scripts without spaces are so long that they must be clauses.

    types (Sequence[str]): The word types.
    counts (ndarray): How often each occurs.
    """
    chosen = [i for i, word in enumerate(types) if counts[i] and _UNSPACED.search(word)]
    n_words = int(counts[chosen].sum())
    if len(chosen) < _MIN_TYPES or n_words < 0.05 * counts.sum():
        return
    mean = sum(int(counts[i]) * len(types[i]) for i in chosen) / n_words
    if mean > _MAX_MEAN_LENGTH:
        longest = max((types[i] for i in chosen), key=len)
        warnings.warn(
            f"{n_words:,} words of a script without spaces have {mean:.0f} characters on average, "
            f"such as {longest!r:.40}: the tokenizer does not split them. Give --lang zh, ja or "
            "th, or split the text yourself and use --whitespace",
            stacklevel=3,
        )


def warn_if_unsorted(counts: numpy.ndarray) -> None:
    """Warn if counts hardly fall with the rank, as in an alphabetical vocabulary. A vocabulary that
    is sorted by the frequencies in another text is accepted."""
    counts = counts[counts > 0]
    if len(counts) < _MIN_TYPES:
        return
    ranks = numpy.argsort(numpy.argsort(-counts, kind="stable"), kind="stable")
    if numpy.corrcoef(ranks, numpy.arange(len(counts)))[0, 1] <= 0.2:
        warnings.warn(
            "the words of the vocabulary are not sorted by falling frequency, as a sampled or "
            "adaptive softmax requires: sort them",
            stacklevel=3,
        )
