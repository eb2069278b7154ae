"""The words that a language model predicts.

Files are bilm-tf's: one word per line, `<S> </S> <UNK>` first, the others by falling frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Optional

import numpy
from pydantic import Field
from pydantic.dataclasses import dataclass

from ..bilm.characters import BOS, EOS
from ..bilm.token_encoder import UNK
from ..bilm.validation import Whole

SPECIALS = (BOS, EOS, UNK)
BOS_ID, EOS_ID, UNK_ID = range(3)


@dataclass(frozen=True)
class VocabularyConfig:
    """Which words are predicted, besides the special ones.

    size (Optional[int]): The number of words, at most.
    min_count (int): The minimum count of a word.
    words (Optional[Sequence[str]]): All words, special ones included, instead of the other two.
    """

    size: Optional[Annotated[Whole, Field(ge=1)]] = None
    min_count: Annotated[Whole, Field(ge=1)] = 1
    words: Optional[list[str]] = None


def order_types(
    words: Sequence[str], counts: Sequence[int], config: VocabularyConfig
) -> tuple[list[str], numpy.ndarray, int]:
    """Put word types in order: special words, the vocabulary, the others by falling frequency.

    words (Sequence[str]): The types, special words first.
    counts (Sequence[int]): How often they occur.
    RETURNS (tuple): The types in order, the place of each of `words` among them, and the size of
        the vocabulary, special words included.
    RAISES (ValueError): If given words do not begin with the special ones, or occur twice.
    """
    # Ties by spelling, so that the order does not depend on the order of the texts.
    order = sorted(range(len(SPECIALS), len(words)), key=lambda i: (-counts[i], words[i]))
    if config.words is None:
        kept = sum(counts[i] >= config.min_count for i in order)
        n_vocabulary = len(SPECIALS) + (kept if config.size is None else min(kept, config.size))
        types = [*SPECIALS, *(words[i] for i in order)]
    else:
        _check_words(config.words)
        n_vocabulary, given = len(config.words), set(config.words)
        types = [*config.words, *(words[i] for i in order if words[i] not in given)]
    places = {word: place for place, word in enumerate(types)}
    return types, numpy.array([places[word] for word in words], dtype=numpy.uint32), n_vocabulary


def _check_words(words: Sequence[str]) -> None:
    if tuple(words[:3]) != SPECIALS:
        raise ValueError(
            f"the vocabulary begins with {', '.join(words[:3])}: its first words must be "
            f"{', '.join(SPECIALS)}, one per line"
        )
    [(word, count)] = Counter(words).most_common(1)
    if count > 1:
        raise ValueError(f"the vocabulary has {word!r} twice")
