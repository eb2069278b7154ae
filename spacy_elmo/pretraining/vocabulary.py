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
# Words in these scripts have 2 to 5 characters on average; clauses have ten and more.
_MAX_MEAN_LENGTH = 7
_MIN_TYPES = 20  # Fewer are too few for a mean or a correlation.


def order_types(
    words: Sequence[str],
    counts: Sequence[int],
    vocabulary: Optional[Sequence[str]] = None,
    size: Optional[int] = None,
    min_count: int = 1,
) -> tuple[list[str], numpy.ndarray, int]:
    """Put word types in order: special words, the vocabulary, the others by falling frequency.

    words (Sequence[str]): The types, special words first.
    counts (Sequence[int]): How often they occur.
    vocabulary, size, min_count: See `prepare`.
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


def check_vocabulary(words: Sequence[str]) -> None:
    """RAISES (ValueError): If words do not begin with the special ones, or one is there twice."""
    if tuple(words[:3]) != SPECIAL_WORDS:
        raise ValueError(
            f"the vocabulary begins with {', '.join(words[:3])}: its first words must be "
            f"{', '.join(SPECIAL_WORDS)}, one per line"
        )
    [(word, count)] = Counter(words).most_common(1)
    if count > 1:
        raise ValueError(f"the vocabulary has {word!r} twice")


def warn_if_unsegmented(types: Sequence[str], counts: numpy.ndarray) -> None:
    """Warn if words of scripts without spaces are so long that they must be clauses."""
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
