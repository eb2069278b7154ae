"""Tokens as character ids, the way bilm-tf numbers them.

A token is the UTF-8 bytes of its text between a begin-word and an end-word mark, padded on the
right. Every id is shifted by one: 0 is kept for masking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

BOS = "<S>"
EOS = "</S>"

# Ids before the shift by one; 0..255 are the bytes.
BEGIN_SENTENCE = 256
END_SENTENCE = 257
BEGIN_WORD = 258
END_WORD = 259
PADDING = 260
SHIFT = 1


def character_ids(
    tokens: Sequence[str], max_characters: int
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Encode tokens, padded to the longest of them.

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
    lengths = numpy.array([len(characters) + 2 for characters in spelled], dtype=numpy.int64)
    ids = numpy.full((len(tokens), int(lengths.max(initial=2))), PADDING, dtype=numpy.int64)
    for row, characters, length in zip(ids, spelled, lengths.tolist()):
        row[:length] = BEGIN_WORD, *characters, END_WORD
    return ids + SHIFT, lengths
