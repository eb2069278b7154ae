"""Tokens as character ids."""

import pytest

from spacy_elmo.bilm.token_encoder import character_ids

from ..reference import character_rows

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261


def ids_of(token, max_characters=50):
    ids, lengths = character_ids([token], max_characters)
    assert lengths.tolist() == [ids.shape[1]]
    return ids[0].tolist()


def test_bytes_are_shifted_by_one_and_framed():
    assert ids_of("Ab") == [BEGIN_WORD, ord("A") + 1, ord("b") + 1, END_WORD]


def test_characters_are_utf8_bytes():
    assert ids_of("é€") == [BEGIN_WORD, 0xC4, 0xAA, 0xE3, 0x83, 0xAD, END_WORD]


def test_nul_is_a_character_like_others():
    assert ids_of("\0") == [BEGIN_WORD, 1, END_WORD]


@pytest.mark.parametrize("token, row", [("<S>", BEGIN_SENTENCE), ("</S>", END_SENTENCE)])
def test_boundaries_are_single_characters(token, row):
    assert ids_of(token) == [BEGIN_WORD, row, END_WORD]


@pytest.mark.parametrize("token", ["<s>", "<S> ", "<S", "<UNK>", "<S>\ud800"])
def test_only_the_exact_spelling_is_a_boundary(token):
    assert not {BEGIN_SENTENCE, END_SENTENCE} & set(ids_of(token))


def test_empty_token_is_its_two_boundaries():
    assert ids_of("") == [BEGIN_WORD, END_WORD]


def test_lone_surrogates_are_dropped():
    assert ids_of("a\ud800b\udfff") == ids_of("ab")
    assert ids_of("\ud800") == ids_of("")


def test_no_tokens():
    ids, lengths = character_ids([], 50)
    assert len(ids) == len(lengths) == 0


def test_shorter_tokens_are_padded_to_the_longest():
    ids, lengths = character_ids(["abc", "a", ""], 50)
    assert ids.shape == (3, 5)
    assert lengths.tolist() == [5, 3, 2]
    assert ids[1].tolist() == [BEGIN_WORD, 98, END_WORD, PADDING, PADDING]
    assert ids[2].tolist() == [BEGIN_WORD, END_WORD, PADDING, PADDING, PADDING]


@pytest.mark.parametrize("n_bytes", [47, 48, 49, 500])
def test_long_tokens_are_cut_to_48_bytes_between_their_boundaries(n_bytes):
    ids = ids_of("x" * n_bytes)
    assert len(ids) == min(n_bytes, 48) + 2
    assert ids[0] == BEGIN_WORD and ids[-1] == END_WORD


def test_the_cut_is_in_bytes_even_inside_a_character():
    assert ids_of("a😀", max_characters=5) == [BEGIN_WORD, 98, 0xF1, 0xA0, END_WORD]


@pytest.mark.parametrize("max_characters", [3, 4, 10, 50])
@pytest.mark.parametrize("token", ["", "<S>", "</S>", "naïve", "漢字" * 9, "e\u0301", "\udc80z"])
def test_equals_the_reference(token, max_characters):
    ids = ids_of(token, max_characters)
    padded = ids + [PADDING] * (max_characters - len(ids))
    assert padded == character_rows(token, max_characters)
