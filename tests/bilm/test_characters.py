"""Tokens as character ids."""

import pytest

from spacy_elmo.bilm.token_encoder import character_ids

from ..reference import character_rows

BEGIN_WORD, END_WORD, PADDING = 259, 260, 261


def test_shorter_tokens_are_padded_to_the_longest():
    ids, lengths = character_ids(["abc", "a", ""], 50)
    assert ids.shape == (3, 5)
    assert lengths.tolist() == [5, 3, 2]
    assert ids[1].tolist() == [BEGIN_WORD, 98, END_WORD, PADDING, PADDING]
    assert ids[2].tolist() == [BEGIN_WORD, END_WORD, PADDING, PADDING, PADDING]


TEXTS = ["", "\0", "é€", "漢字" * 9, "e\u0301", "\udc80z", "x" * 47, "x" * 48, "x" * 49, "x" * 500]
# Only the exact spelling is a boundary.
TEXTS += ["<S>", "</S>", "<s>", "<S> ", "<S", "<UNK>", "<S>\ud800"]


@pytest.mark.parametrize("max_characters", [3, 4, 10, 50])
@pytest.mark.parametrize("token", TEXTS)
def test_equals_the_reference(token, max_characters):
    [ids], [length] = character_ids([token], max_characters)
    padded = [*ids.tolist(), *[PADDING] * (max_characters - len(ids))]
    assert length == len(ids) and padded == character_rows(token, max_characters)
