"""What a training step reads: whole sentences, or rows that go on from batch to batch.

A seed decides the order, and nothing else, so that the number of a batch is a position in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Protocol

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


class Epoch(Protocol):
    """All batches of one pass over a part of a corpus."""

    def __len__(self) -> int: ...

    def size(self, number: int) -> tuple[int, int]:
        """RETURNS (tuple): Words and predictions (per direction) of a batch."""

    def read(self, number: int, part: int = 0, n_parts: int = 1) -> Optional[Batch]:
        """Read a batch, or the part of it that is one process's.

        number (int): Which batch.
        part, n_parts (int): Which part of how many; together they are the batch.
        RETURNS (Optional[Batch]): None if nothing is left for this part.
        """


class SentenceBatches:
    """Whole sentences of similar length.

    sentences (Sentences): A part of a corpus.
    plan (Sequence[ndarray]): The sentences of each batch, see `plan_epoch`.
    n_vocabulary (int): Types from here on are predicted as `<UNK>`.
    """

    def __init__(
        self, sentences: Sentences, plan: Sequence[numpy.ndarray], n_vocabulary: int
    ) -> None:
        self.sentences = sentences
        self.plan = plan
        self.n_vocabulary = n_vocabulary
        self._lengths = sentences.lengths

    def __len__(self) -> int:
        return len(self.plan)

    def size(self, number: int) -> tuple[int, int]:
        numbers = self.plan[number]
        n_words = int(self._lengths[numbers].sum())
        return n_words, n_words + len(numbers)

    def read(self, number: int, part: int = 0, n_parts: int = 1) -> Optional[Batch]:
        mine = self.plan[number][part::n_parts]
        return pack(self.sentences, mine, self.n_vocabulary) if len(mine) else None


class CarriedRows:
    """Rows that read on where they stopped, cut every `unroll_steps` (bilm-tf's batches): one after
    the other, the sentences make a stream, and each row reads its part of it.

    The backward direction reads the words of each sentence in reverse, but the sentences in the
    same order, as in bilm-tf. Less than one word per row is left out at the end.

    sentences (Sentences): A part of a corpus.
    order (ndarray): The sentences of the stream, by number.
    n_rows (int): Rows.
    unroll_steps (int): Steps per batch.
    n_vocabulary (int): Types from here on are predicted as `<UNK>`.
    RAISES (ValueError): If there is less than a word per row.
    """

    def __init__(
        self,
        sentences: Sentences,
        order: numpy.ndarray,
        n_rows: int,
        unroll_steps: int,
        n_vocabulary: int,
    ) -> None:
        self.sentences = sentences
        self.unroll_steps = unroll_steps
        self.n_vocabulary = n_vocabulary
        self._lengths = sentences.lengths[order]
        self._starts = sentences.ends[order] - self._lengths
        self._framed_ends = numpy.cumsum(self._lengths + 1)
        self.n_rows = n_rows
        self.n_steps = int(self._framed_ends[-1]) // n_rows
        if not self.n_steps:
            raise ValueError(
                f"the corpus has fewer words than a batch has rows ({n_rows}, batch_words // "
                "unroll_steps): lower pretraining.batch_words"
            )

    def __len__(self) -> int:
        return -(-self.n_steps // self.unroll_steps)

    def size(self, number: int) -> tuple[int, int]:
        sentence, position = self._locate(number, 0, self.n_rows)
        return int((position < self._lengths[sentence]).sum()), len(position)

    def read(self, number: int, part: int = 0, n_parts: int = 1) -> Optional[Batch]:
        first, last = self.rows(part, n_parts)
        if first == last:
            return None
        sentence, position = self._locate(number, first, last)
        sizes = [last - first] * (len(position) // (last - first))
        starts, lengths = self._starts[sentence], self._lengths[sentence]
        return _batch(self.sentences, sizes, starts, lengths, position, self.n_vocabulary)

    def rows(self, part: int, n_parts: int) -> tuple[int, int]:
        """RETURNS (tuple): The first row of a process, and the first one after its rows."""
        return self.n_rows * part // n_parts, self.n_rows * (part + 1) // n_parts

    def _locate(self, number: int, first: int, last: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """RETURNS (tuple): For each prediction of some rows, time-major, which sentence of the
        stream it is in, and its position there."""
        start = number * self.unroll_steps
        steps = numpy.arange(start, min(start + self.unroll_steps, self.n_steps))
        at = (steps[:, None] + numpy.arange(first, last) * self.n_steps).ravel()
        sentence = numpy.searchsorted(self._framed_ends, at, side="right")
        return sentence, at - (self._framed_ends[sentence] - self._lengths[sentence] - 1)


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
    position = numpy.repeat(numpy.arange(len(sizes)), sizes)
    sequence = numpy.arange(len(position)) - numpy.repeat(numpy.cumsum(sizes) - sizes, sizes)
    return _batch(
        sentences, sizes.tolist(), starts[sequence], lengths[sequence], position, n_vocabulary
    )


def _batch(
    sentences: Sentences,
    sizes: list[int],
    starts: numpy.ndarray,
    lengths: numpy.ndarray,
    position: numpy.ndarray,
    n_vocabulary: int,
) -> Batch:
    """Each row is one position of a sentence, which is known by its start and length: 0 is where
    its boundary is read, `length` where the other boundary is predicted."""
    inside, ends_here = position > 0, position == lengths
    ends = starts + lengths

    def read(at: numpy.ndarray, where: numpy.ndarray, boundary: int) -> numpy.ndarray:
        found = numpy.full(len(position), boundary, dtype=numpy.int64)
        found[where] = sentences.ids[at[where]]
        return found

    inputs = numpy.stack(
        (read(starts + position - 1, inside, BOS_ID), read(ends - position, inside, EOS_ID))
    )
    targets = numpy.stack(
        (
            read(starts + position, ~ends_here, EOS_ID),
            read(ends - position - 1, ~ends_here, BOS_ID),
        )
    )
    types, index = numpy.unique(inputs, return_inverse=True)
    return Batch(
        sizes,
        types,
        index.reshape(inputs.shape),
        numpy.where(targets >= n_vocabulary, UNK_ID, targets),
        int((~ends_here).sum()),
    )


def plan_evaluation(
    lengths: numpy.ndarray, numbers: numpy.ndarray, batch_words: int
) -> list[numpy.ndarray]:
    """Put sentences of similar length together.

    lengths (ndarray): Tokens per sentence, of all sentences.
    numbers (ndarray): The sentences to read.
    batch_words (int): Tokens per batch, about; a longer sentence is a batch of its own.
    RETURNS (list): The sentences of each batch.
    """
    numbers = numbers[numpy.argsort(lengths[numbers], kind="stable")]
    batch = (numpy.cumsum(lengths[numbers]) - 1) // batch_words
    return numpy.split(numbers, numpy.flatnonzero(numpy.diff(batch)) + 1)
