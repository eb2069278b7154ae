"""The words a language model predicts.

Files are bilm-tf's: one word per line, `<S> </S> <UNK>` first, the others by falling frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ..bilm.characters import BOS, EOS
from ..bilm.token_encoder import UNK

SPECIALS = (BOS, EOS, UNK)
BOS_ID, EOS_ID, UNK_ID = range(3)


@dataclass(frozen=True)
class VocabularySettings:
    """How many words there are, besides the special ones.

    size (Optional[int]): At most so many.
    min_count (int): Only words that occur so often.
    words (Optional[Sequence[str]]): These, special words included; then nothing else counts.
    RAISES (ValueError): If a number is less than 1.
    """

    size: Optional[int] = None
    min_count: int = 1
    words: Optional[Sequence[str]] = None

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("min_count", self.min_count)):
            if value is not None and value < 1:
                raise ValueError(f"vocabulary: {name} must be 1 or more, found {value}")


def order_types(
    words: Sequence[str], counts: Sequence[int], settings: VocabularySettings
) -> tuple[list[int], int]:
    """Put word types in order: special words, the vocabulary, then the others by falling frequency.

    words (Sequence[str]): The types.
    counts (Sequence[int]): How often they occur.
    RETURNS (tuple): Indices into `words` (-1 for a word that does not occur), from the first type
        after the special ones on, and the size of the vocabulary with the special words.
    RAISES (ValueError): If given words do not begin with the special ones, or occur twice.
    """
    # Ties by spelling, so that the order does not depend on who counted first.
    order = sorted(range(len(words)), key=lambda i: (-counts[i], words[i]))
    order = [i for i in order if words[i] not in SPECIALS]
    if settings.words is None:
        kept = sum(counts[i] >= settings.min_count for i in order)
        kept = kept if settings.size is None else min(kept, settings.size)
        return order, len(SPECIALS) + kept
    given = list(settings.words)
    if tuple(given[:3]) != SPECIALS:
        raise ValueError(
            f"the vocabulary begins with {', '.join(given[:3])}: its first words must be "
            f"{', '.join(SPECIALS)}, one per line"
        )
    [(twice, count)] = Counter(given).most_common(1)
    if count > 1:
        raise ValueError(f"the vocabulary has {twice!r} twice")
    at = {word: i for i, word in enumerate(words)}
    inside = set(given)
    others = [i for i in order if words[i] not in inside]
    return [*(at.get(word, -1) for word in given[3:]), *others], len(given)
