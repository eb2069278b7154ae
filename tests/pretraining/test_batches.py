"""Batches against sentences written out."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.pretraining.batches import ContiguousBatches, make_epoch, pack, plan_epoch
from spacy_elmo.pretraining.config import PretrainingConfig
from spacy_elmo.pretraining.corpus import Sentences

lengths_of = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def make_sentences(lengths, seed=0):
    ends = numpy.cumsum(lengths)
    ids = numpy.random.default_rng(seed).integers(3, 40, size=ends[-1]).astype("uint32")
    return Sentences(ids, ends, [str(i) for i in range(40)], 30)


@settings(deadline=None)
@given(lengths_of, st.integers(0, 3))
def test_rows_and_targets(lengths, seed):
    """Every sentence of the batch, unpacked step by step, is read and predicted both ways."""
    sentences = make_sentences(lengths, seed)
    batch = pack(sentences, numpy.arange(len(lengths))[::-1])
    starts = numpy.cumsum(batch.batch_sizes) - batch.batch_sizes
    inputs = numpy.array(batch.types, dtype=int)[batch.inputs]
    rows = []
    for row in range(batch.batch_sizes[0]):
        steps = [start + row for start, size in zip(starts, batch.batch_sizes) if row < size]
        rows.append([values[:, steps].tolist() for values in (inputs, batch.targets)])
    expected = []
    for start, end in zip([0, *sentences.ends], sentences.ends):
        words = sentences.ids[start:end].tolist()
        targets = [2 if word >= 30 else word for word in words]
        expected.append(
            [
                [[0, *words], [1, *words[::-1]]],
                [[*targets, 1], [*targets[::-1], 0]],
            ]
        )
    assert sorted(rows) == sorted(expected)
    assert batch.n_words == sum(lengths) and batch.n_targets == sum(lengths) + len(lengths)
    assert batch.batch_sizes == sorted(batch.batch_sizes, reverse=True)
    assert len(set(batch.types)) == len(batch.types)


@settings(deadline=None)
@given(lengths_of, st.integers(1, 100), st.integers(0, 5))
def test_an_epoch_reads_every_sentence_once(lengths, batch_words, epoch):
    lengths = numpy.array(lengths)
    plan = plan_epoch(lengths, batch_words, seed=1, epoch=epoch)
    assert sorted(numpy.concatenate(plan).tolist()) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or lengths[batch].sum() <= batch_words + lengths[batch].max()


@settings(deadline=None)
@given(lengths_of, st.integers(1, 9), st.integers(1, 7), st.integers(1, 3))
def test_rows_that_continue(lengths, n_rows, unroll_steps, n_parts):
    """Row after row, batch after batch, both directions read one stream of framed sentences."""
    sentences = make_sentences(lengths)
    n_rows = min(n_rows, sum(lengths))
    order = numpy.random.default_rng((1, 2)).permutation(len(lengths))
    epoch = ContiguousBatches(sentences, order, n_rows, unroll_steps)
    streams = []
    for number in range(len(epoch)):
        shares = [epoch.read(number, share, n_parts) for share in range(n_parts)]
        shares = [share for share in shares if share is not None]
        assert sum(len(share.batch_sizes) and share.batch_sizes[0] for share in shares) == n_rows
        assert all(set(share.batch_sizes) == {share.batch_sizes[0]} for share in shares)
        arrays = [
            numpy.stack((numpy.array(share.types, dtype=int)[share.inputs], share.targets)).reshape(
                2, 2, len(share.batch_sizes), share.batch_sizes[0]
            )
            for share in shares
        ]
        streams.append(numpy.concatenate(arrays, axis=3))
        n_words, n_targets = epoch.size(number)
        assert n_words == sum(share.n_words for share in shares)
        assert n_targets == sum(share.n_targets for share in shares)
        assert len(shares[0].batch_sizes) == unroll_steps or number + 1 == len(epoch)
    # (inputs or targets, direction, position in the stream)
    stream = numpy.concatenate(streams, axis=2).swapaxes(2, 3).reshape(2, 2, -1)
    starts = sentences.ends - lengths
    expected = [[], []]
    for number in order:
        words = sentences.ids[starts[number] : sentences.ends[number]].tolist()
        targets = [2 if word >= 30 else word for word in words]
        expected[0].append([[0, *words], [1, *words[::-1]]])
        expected[1].append([[*targets, 1], [*targets[::-1], 0]])
    whole = numpy.stack([numpy.concatenate(direction, axis=1) for direction in expected])
    assert whole.shape[2] - stream.shape[2] < n_rows
    assert numpy.array_equal(stream, whole[..., : stream.shape[2]])


@pytest.mark.parametrize("batch_words", [19, 1000])
def test_too_few_or_too_many_rows(batch_words):
    settings = PretrainingConfig(carry_state=True, batch_words=batch_words)
    with pytest.raises(ValueError, match="must be from 1 to 9, the words of the corpus"):
        make_epoch(make_sentences([3, 4]), settings, 0, 0)
