"""The words that a language model predicts.

Files are bilm-tf's: one word per line, `<S> </S> <UNK>` first, the others by falling frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

import numpy

from ..bilm.token_encoder import SPECIAL_WORDS

BOS_ID, EOS_ID, UNK_ID = range(3)


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
    RAISES (ValueError): If a vocabulary does not begin with the special words, or has one twice.
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
