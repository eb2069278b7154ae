"""Packing of sequences into batches."""

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm.batches import pack_batches

many_lengths = st.lists(st.integers(0, 12), max_size=20)
budgets = st.integers(0, 40)
moderate = settings(deadline=None, max_examples=150)


@moderate
@given(many_lengths, budgets)
def test_every_token_is_in_exactly_one_batch(lengths, max_tokens):
    tokens = [batch.tokens for batch in pack_batches(lengths, max_tokens)]
    assert sorted(numpy.concatenate([*tokens, []])) == list(range(sum(lengths)))


@moderate
@given(many_lengths, budgets)
def test_every_sequence_that_has_tokens_is_in_exactly_one_batch(lengths, max_tokens):
    numbers = [number for batch in pack_batches(lengths, max_tokens) for number in batch.order]
    assert sorted(numbers) == [number for number, length in enumerate(lengths) if length]


@moderate
@given(many_lengths, budgets)
def test_a_batch_keeps_to_its_budget_unless_it_is_one_sequence(lengths, max_tokens):
    for batch in pack_batches(lengths, max_tokens):
        if max_tokens and len(batch.order) > 1:
            assert sum(batch.sizes) <= max_tokens
        assert sum(batch.sizes) == sum(lengths[number] + 2 for number in batch.order)


@moderate
@given(many_lengths)
def test_without_a_budget_there_is_one_batch(lengths):
    assert len(list(pack_batches(lengths, 0))) == (1 if any(lengths) else 0)


@moderate
@given(many_lengths, budgets)
def test_longest_sequences_come_first(lengths, max_tokens):
    batches = pack_batches(lengths, max_tokens)
    packed = [lengths[number] for batch in batches for number in batch.order]
    assert packed == sorted(packed, reverse=True)


@moderate
@given(many_lengths, budgets)
def test_unpacking_gives_back_the_framed_sequences(lengths, max_tokens):
    starts = numpy.cumsum([0, *lengths])
    for batch in pack_batches(lengths, max_tokens):
        packed_steps = numpy.cumsum([0, *batch.sizes[:-1]])
        for position, number in enumerate(batch.order):
            steps = [at for at, size in zip(packed_steps, batch.sizes) if position < size]
            tokens = list(range(starts[number], starts[number + 1]))
            forward, backward = (inputs[[at + position for at in steps]] for inputs in batch.inputs)
            assert forward.tolist() == [-1, *tokens, -2]
            assert backward.tolist() == [-2, *reversed(tokens), -1]


@moderate
@given(many_lengths, budgets)
def test_rows_say_where_each_token_was_read(lengths, max_tokens):
    for batch in pack_batches(lengths, max_tokens):
        for inputs, rows in zip(batch.inputs, batch.rows):
            assert inputs[rows].tolist() == batch.tokens.tolist()


def test_an_example():
    [batch] = pack_batches([1, 0, 2], 0)
    assert batch.order.tolist() == [2, 0]
    assert batch.sizes == [2, 2, 2, 1]
    assert batch.tokens.tolist() == [1, 2, 0]
    assert batch.inputs.tolist() == [[-1, -1, 1, 0, 2, -2, -2], [-2, -2, 2, 0, 1, -1, -1]]
    assert batch.rows.tolist() == [[2, 4, 3], [4, 2, 3]]
