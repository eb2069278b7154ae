"""Tokens as character ids."""

import pytest

from spacy_elmo.bilm.token_encoder import character_ids

from ..reference import character_rows

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261


def ids_of(token, max_characters=50):
    ids, lengths = character_ids([token], max_characters)
    assert lengths.tolist() == [ids.shape[1]]
    return ids[0].tolist()


def test_characters_are_utf8_bytes():
    assert ids_of("é€") == [BEGIN_WORD, 0xC4, 0xAA, 0xE3, 0x83, 0xAD, END_WORD]


@pytest.mark.parametrize("token", ["<s>", "<S> ", "<S", "<UNK>", "<S>\ud800"])
def test_only_the_exact_spelling_is_a_boundary(token):
    assert not {BEGIN_SENTENCE, END_SENTENCE} & set(ids_of(token))


def test_shorter_tokens_are_padded_to_the_longest():
    ids, lengths = character_ids(["abc", "a", ""], 50)
    assert ids.shape == (3, 5)
    assert lengths.tolist() == [5, 3, 2]
    assert ids[1].tolist() == [BEGIN_WORD, 98, END_WORD, PADDING, PADDING]
    assert ids[2].tolist() == [BEGIN_WORD, END_WORD, PADDING, PADDING, PADDING]


TEXTS = ["", "\0", "<S>", "</S>", "naïve", "漢字" * 9, "e\u0301", "\udc80z", "x" * 48, "x" * 500]


@pytest.mark.parametrize("max_characters", [3, 4, 10, 50])
@pytest.mark.parametrize("token", TEXTS)
def test_equals_the_reference(token, max_characters):
    ids = ids_of(token, max_characters)
    padded = ids + [PADDING] * (max_characters - len(ids))
    assert padded == character_rows(token, max_characters)
