"""Packing of sequences into batches."""

import numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from spacy_elmo.bilm.mixed_precision import round_up
from spacy_elmo.bilm.packing import pack_sentences, pack_sequences, split_sentences

many_lengths = st.lists(st.integers(0, 12), max_size=20)
budgets = st.integers(0, 40)
moderate = settings(deadline=None, max_examples=100)
BOS, EOS = 1000, 1001


def batches(lengths, max_tokens):
    """All batches of sentences whose tokens have word types of their own, with their numbers."""
    lengths = numpy.array(lengths, dtype=int)
    starts = numpy.cumsum(lengths) - lengths
    index = numpy.arange(lengths.sum()) + 100
    for numbers in split_sentences(lengths, max_tokens):
        yield numbers, pack_sentences(index, starts[numbers], lengths[numbers], BOS, EOS)


@moderate
@given(st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_the_order_is_that_of_pytorch(lengths):
    batch_sizes, of_row, positions = pack_sequences(numpy.array(lengths))
    sequences = [torch.tensor([(i, t) for t in range(n)]) for i, n in enumerate(lengths)]
    expected = pack_sequence(sequences, enforce_sorted=False)
    assert batch_sizes == expected.batch_sizes.tolist()
    rows = list(zip(of_row.tolist(), positions.tolist()))
    # PyTorch leaves open in which order sequences of one length come.
    assert [(lengths[i], t) for i, t in rows] == [
        (lengths[i], t) for i, t in expected.data.tolist()
    ]
    assert len(set(rows)) == sum(lengths)


@moderate
@given(many_lengths, budgets)
def test_a_batch_keeps_to_its_budget_unless_it_is_one_sentence(lengths, max_tokens):
    numbers = [list(group) for group, _ in batches(lengths, max_tokens)]
    assert sorted(i for group in numbers for i in group) == [i for i, n in enumerate(lengths) if n]
    packed = [lengths[i] for group in numbers for i in group]
    assert packed == sorted(packed, reverse=True)
    for group, batch in batches(lengths, max_tokens):
        assert sum(batch.batch_sizes) == sum(lengths[i] + 2 for i in group)
        if max_tokens and len(group) > 1:
            assert sum(batch.batch_sizes) <= max_tokens


@moderate
@given(many_lengths, budgets)
def test_unpacking_gives_back_the_framed_sentences(lengths, max_tokens):
    starts = numpy.cumsum([0, *lengths])
    for numbers, batch in batches(lengths, max_tokens):
        packed_steps = numpy.cumsum([0, *batch.batch_sizes[:-1]])
        for position, number in enumerate(numbers[batch.order]):
            steps = [row for row, size in zip(packed_steps, batch.batch_sizes) if position < size]
            tokens = list(range(100 + starts[number], 100 + starts[number + 1]))
            forward, backward = (
                inputs[[row + position for row in steps]] for inputs in batch.inputs
            )
            assert forward.tolist() == [BOS, *tokens, EOS]
            assert backward.tolist() == [EOS, *reversed(tokens), BOS]


@moderate
@given(many_lengths, budgets)
def test_rows_say_where_each_token_was_read(lengths, max_tokens):
    for _, batch in batches(lengths, max_tokens):
        assert (numpy.diff(batch.tokens) > 0).all()
        for inputs, rows in zip(batch.inputs, batch.token_rows):
            assert (inputs[rows] - 100).tolist() == batch.tokens.tolist()


def test_kernels_see_few_sizes():
    sizes = {round_up(n) for n in range(1, 2049)}
    assert len(sizes) <= 40
    assert all(n <= round_up(n) <= max(2 * n, n + 15) for n in range(1, 2049))
    assert all(round_up(n) <= 1.25 * n for n in range(64, 2049))
