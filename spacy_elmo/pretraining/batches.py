"""Batches of whole sentences of similar length, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy

from .corpus import Sentences
from .vocabulary import BOS_ID, EOS_ID, UNK_ID

# Batches' worth of sentences that are sorted by length together: the more, the more alike are the
# lengths of a batch, and the fewer the ways to put batches together.
_BATCHES_PER_BUCKET = 50


@dataclass(frozen=True)
class Batch:
    """Sentences packed time-major without padding (see `bilm.lstm`), for both directions.

    Forward reads `<S> w1 ... wn` and predicts `w1 ... wn </S>`; backward reads `</S> wn ... w1` and
    predicts `wn ... w1 <S>`. So every row predicts something.

    sizes (list[int]): Sequences that are active at each step; falling.
    types (ndarray): Distinct word types, rising.
    inputs (ndarray): The type of each row, as an index into `types`, shape (2, rows).
    targets (ndarray): The word that each row predicts, shape (2, rows).
    n_words (int): Words of the sentences, boundaries not counted.
    """

    sizes: list[int]
    types: numpy.ndarray
    inputs: numpy.ndarray
    targets: numpy.ndarray
    n_words: int

    @property
    def n_targets(self) -> int:
        """Predictions per direction."""
        return self.inputs.shape[1]


def plan_epoch(
    lengths: numpy.ndarray, batch_words: int, seed: int, epoch: int
) -> list[numpy.ndarray]:
    """Decide which sentences make up which batch. Depends on nothing but the arguments, so that a
    number of batches is a position in the data.

    lengths (ndarray): Tokens per sentence.
    batch_words (int): Tokens per batch, about; a longer sentence is a batch of its own.
    seed, epoch (int): Decide the order.
    RETURNS (list): The sentences of each batch.
    """
    random = numpy.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    filled = numpy.cumsum(lengths[order]) // (batch_words * _BATCHES_PER_BUCKET)
    batches: list[numpy.ndarray] = []
    for bucket in numpy.split(order, numpy.flatnonzero(numpy.diff(filled)) + 1):
        bucket = bucket[numpy.argsort(lengths[bucket], kind="stable")]
        number = (numpy.cumsum(lengths[bucket]) - 1) // batch_words
        batches += numpy.split(bucket, numpy.flatnonzero(numpy.diff(number)) + 1)
    return [batches[i] for i in random.permutation(len(batches))] if len(lengths) else []


def pack(sentences: Sentences, numbers: numpy.ndarray, n_vocabulary: int) -> Batch:
    """Read some sentences of a corpus.

    sentences (Sentences): A part of a corpus.
    numbers (ndarray): Which sentences.
    n_vocabulary (int): Types from here on are predicted as `<UNK>`.
    """
    ends = sentences.ends[numbers]
    starts = numpy.where(numbers > 0, sentences.ends[numbers - 1], 0)
    lengths = ends - starts
    order = numpy.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    framed = lengths + 1
    # Sorted by falling length, so the active sequences at a step are a prefix.
    sizes = numpy.searchsorted(-framed, -numpy.arange(framed[0]), side="left")
    offsets = numpy.cumsum(sizes) - sizes
    sequence = numpy.repeat(numpy.arange(len(framed)), framed)
    position = numpy.arange(framed.sum()) - numpy.repeat(numpy.cumsum(framed) - framed, framed)
    row = offsets[position] + sequence
    start, length = starts[sequence], lengths[sequence]
    inside, last = position > 0, position == length

    def read(at: numpy.ndarray, where: numpy.ndarray, boundary: int) -> numpy.ndarray:
        found = numpy.full(len(row), boundary, dtype=numpy.int64)
        found[row[where]] = sentences.ids[at[where]]
        return found

    end = start + length
    inputs = numpy.stack(
        (read(start + position - 1, inside, BOS_ID), read(end - position, inside, EOS_ID))
    )
    targets = numpy.stack(
        (read(start + position, ~last, EOS_ID), read(end - position - 1, ~last, BOS_ID))
    )
    types, index = numpy.unique(inputs, return_inverse=True)
    return Batch(
        sizes.tolist(),
        types,
        index.reshape(inputs.shape),
        numpy.where(targets >= n_vocabulary, UNK_ID, targets),
        int(lengths.sum()),
    )


def in_order(sentences: Sentences, batch_words: int, n_vocabulary: int) -> Iterator[Batch]:
    """All sentences once, those of similar length together; for evaluation."""
    lengths = sentences.lengths
    order = numpy.argsort(lengths, kind="stable")
    number = (numpy.cumsum(lengths[order]) - 1) // batch_words
    for chosen in numpy.split(order, numpy.flatnonzero(numpy.diff(number)) + 1):
        yield pack(sentences, chosen, n_vocabulary)
