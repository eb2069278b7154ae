"""Tokens as character ids: numbered as bilm-tf does, or by a dictionary.

A token is its characters between a begin-word and an end-word mark, padded on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy

BOS = "<S>"
EOS = "</S>"

# bilm-tf's ids. Characters are bytes of UTF-8, with ids 0..255. The network adds one to all ids: 0
# is kept for masking.
BEGIN_SENTENCE = 256
END_SENTENCE = 257
BEGIN_WORD = 258
END_WORD = 259
PADDING = 260
SHIFT = 1

# Entries of a dictionary that are no characters: the two boundaries, which are tokens as well,
# unknown characters, padding, and the marks around a token.
DICTIONARY_SPECIALS: Final = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")
DICTIONARY_BOS, DICTIONARY_EOS, UNKNOWN, _PAD, _BEGIN, _END = DICTIONARY_SPECIALS


def character_ids(
    tokens: Sequence[str], max_characters: int
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Encode tokens as bilm-tf does, padded to the longest of them.

    Lone surrogates have no UTF-8 form and are dropped, as bilm-tf does. A token spelled exactly
    `<S>` or `</S>` is the sentence boundary.

    tokens (Sequence[str]): The tokens.
    max_characters (int): Ids per token at most, the two word boundaries included.
    RETURNS (tuple): Shifted ids, shape (tokens, longest), and the number of ids that are not
        padding, shape (tokens,).
    """
    special = {BOS: [BEGIN_SENTENCE], EOS: [END_SENTENCE]}
    spelled = [
        special.get(token) or list(token.encode("utf8", "ignore")[: max_characters - 2])
        for token in tokens
    ]
    ids, lengths = _frame(spelled, BEGIN_WORD, END_WORD, PADDING)
    return ids + SHIFT, lengths


class CharacterDictionary:
    """Unicode characters by the rows of a table, as in ELMoForManyLangs.

    entries (Sequence[str]): What each row stands for: characters, and `DICTIONARY_SPECIALS`.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._rows = {entry: row for row, entry in enumerate(entries)}
        self.padding = self._rows[_PAD]

    def character_ids(
        self, tokens: Sequence[str], max_characters: int
    ) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Encode tokens, padded to the longest of them. See the function of this name."""
        rows, unknown = self._rows, self._rows[UNKNOWN]
        spelled = []
        for token in tokens:
            text = cut_token(token, max_characters)
            if text in (DICTIONARY_BOS, DICTIONARY_EOS):
                spelled.append([rows[text]])
            else:
                spelled.append([rows.get(character, unknown) for character in text])
        return _frame(spelled, rows[_BEGIN], rows[_END], self.padding)


def cut_token(token: str, max_characters: int) -> str:
    """RETURNS (str): As much of a token as a network with a `CharacterDictionary` reads: its first
    `max_characters - 2` code points, or a whole boundary."""
    return token if token in (DICTIONARY_BOS, DICTIONARY_EOS) else token[: max_characters - 2]


def _frame(
    spelled: Sequence[Sequence[int]], begin: int, end: int, padding: int
) -> tuple[numpy.ndarray, numpy.ndarray]:
    lengths = numpy.array([len(characters) + 2 for characters in spelled], dtype=numpy.int64)
    ids = numpy.full((len(spelled), int(lengths.max(initial=2))), padding, dtype=numpy.int64)
    for row, characters, length in zip(ids, spelled, lengths.tolist()):
        row[:length] = begin, *characters, end
    return ids, lengths
