"""The words that a language model predicts.

Files are bilm-tf's: one word per line, `<S> </S> <UNK>` first, the others by falling frequency.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Optional

import numpy

from ..bilm.token_encoder import SPECIAL_WORDS

BOS_ID, EOS_ID, UNK_ID = range(3)
# Scripts that are written without spaces: Thai and Lao, Burmese, Khmer, Kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
_MAX_MEAN_LENGTH = 7  # Words in these scripts have 2 to 5 characters on average, clauses ten.
_MIN_TYPES = 20  # Fewer are too few for a mean or a correlation.


def order_types(
    words: Sequence[str],
    counts: numpy.ndarray,
    vocabulary: Optional[Sequence[str]] = None,
    size: Optional[int] = None,
    min_count: int = 1,
) -> tuple[list[str], numpy.ndarray, int]:
    """Put word types, with special words first, in order: the vocabulary (see `prepare`), and the
    others by falling frequency.

    RETURNS (tuple): The types in order, the place of each of `words` among them, and the size of
        the vocabulary, special words included.
    """
    # Ties by spelling, so that the order does not depend on the order of the texts.
    order = sorted(range(len(SPECIAL_WORDS), len(words)), key=lambda i: (-counts[i], words[i]))
    if vocabulary is None:
        n_frequent = sum(counts[i] >= min_count for i in order)
        vocabulary = [*SPECIAL_WORDS, *(words[i] for i in order[:n_frequent][:size])]
    else:
        check_vocabulary(vocabulary)
    inside = set(vocabulary)
    types = [*vocabulary, *(words[i] for i in order if words[i] not in inside)]
    places = {word: place for place, word in enumerate(types)}
    return types, numpy.array([places[word] for word in words], dtype="uint32"), len(vocabulary)


def check_vocabulary(words: Sequence[str], name: str = "the vocabulary") -> None:
    """RAISES (ValueError): If words do not begin with the special ones, or one is there twice."""
    if tuple(words[:3]) != SPECIAL_WORDS:
        raise ValueError(f"the first words of {name} must be {', '.join(SPECIAL_WORDS)}")
    [(word, count)] = Counter(words).most_common(1)
    if count > 1:
        raise ValueError(f"{name} has {word!r} twice")


def warn_of_types(types: Sequence[str], counts: numpy.ndarray, n_vocabulary: int) -> None:
    """Warn if words of scripts without spaces are so long that they must be clauses; and if the
    counts of a vocabulary hardly fall with the rank, as in an alphabetical one."""
    chosen = [i for i, word in enumerate(types) if counts[i] and _UNSPACED.search(word)]
    n_words = int(counts[chosen].sum())
    n_characters = sum(int(counts[i]) * len(types[i]) for i in chosen)
    is_common = len(chosen) >= _MIN_TYPES and n_words >= 0.05 * counts.sum()
    if is_common and n_characters > _MAX_MEAN_LENGTH * n_words:
        warnings.warn(
            f"{n_words:,} words of a script without spaces have {n_characters / n_words:.0f} "
            f"characters on average, such as {types[chosen[0]]!r:.40}: give --lang zh, ja or th, "
            "or split them and --whitespace",
            stacklevel=3,
        )
    used = counts[len(SPECIAL_WORDS) : n_vocabulary]
    ranks = numpy.argsort(numpy.argsort(-used[used > 0], kind="stable"), kind="stable")
    is_enough = len(ranks) >= _MIN_TYPES
    if is_enough and numpy.corrcoef(ranks, numpy.arange(len(ranks)))[0, 1] <= 0.2:
        warnings.warn(
            "the words of the vocabulary are not sorted by falling frequency, as a sampled or "
            "adaptive softmax requires: sort them",
            stacklevel=3,
        )
