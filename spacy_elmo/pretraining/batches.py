"""What a training step reads: whole sentences, or rows that continue from batch to batch.

Only a seed decides the order, so that the number of a batch is a position in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy

from ..bilm.packing import pack_sequences
from .config import PretrainingConfig
from .corpus import Sentences
from .distributed import world_size
from .vocabulary import BOS_ID, EOS_ID, UNK_ID

# Batches' worth of sentences that are sorted by length together: with more, the lengths of a batch
# are more alike, and there are fewer ways to put batches together.
_BATCHES_PER_BUCKET = 50


@dataclass(frozen=True)
class Batch:
    """Sentences packed time-major without padding (see `bilm.packing`), for both directions.

    Forward reads `<S> w1 ... wn` and predicts `w1 ... wn </S>`; backward reads `</S> wn ... w1` and
    predicts `wn ... w1 <S>`. So every row predicts something.

    batch_sizes (list[int]): Sequences that are active at each step; falling.
    inputs (ndarray): The type of each row, as an index into `types`, shape (2, rows).
    targets (ndarray): The word that each row predicts, shape (2, rows).
    n_words (int): Words, boundaries not counted.
    """

    batch_sizes: list[int]
    types: list[str]
    inputs: numpy.ndarray
    targets: numpy.ndarray
    n_words: int

    @property
    def n_targets(self) -> int:
        """Predictions per direction."""
        return self.inputs.shape[1]


class SentenceBatches:
    """Whole sentences of similar length; `plan` has those of each batch, see `plan_epoch`."""

    def __init__(self, sentences: Sentences, plan: Sequence[numpy.ndarray]) -> None:
        self.sentences, self.plan, self._lengths = sentences, plan, sentences.lengths

    def __len__(self) -> int:
        return len(self.plan)

    def size(self, number: int) -> tuple[int, int]:
        """RETURNS (tuple): Words and predictions (per direction) of a batch."""
        n_words = int(self._lengths[self.plan[number]].sum())
        return n_words, n_words + len(self.plan[number])

    def read(self, number: int, rank: int = 0, world_size: int = 1) -> Optional[Batch]:
        """RETURNS (Optional[Batch]): One process's share of a batch; None if it is empty."""
        numbers = self.plan[number][rank::world_size]
        return pack(self.sentences, numbers) if len(numbers) else None


class ContiguousBatches:
    """Rows that continue from batch to batch (bilm-tf's batches). The sentences, one after the
    other, make a stream; each row reads its part of the stream, `unroll_steps` per batch.

    The backward direction reads the words of each sentence in reverse, but the sentences in the
    same order, as in bilm-tf. Less than one word per row is left out at the end.

    order (ndarray): The sentences of the stream, by number.
    """

    def __init__(
        self, sentences: Sentences, order: numpy.ndarray, n_rows: int, unroll_steps: int
    ) -> None:
        self.sentences = sentences
        self.n_rows, self.unroll_steps = n_rows, unroll_steps
        self._lengths = sentences.lengths[order]
        self._starts = sentences.ends[order] - self._lengths
        self._framed_ends = numpy.cumsum(self._lengths + 1)
        self.n_steps = int(self._framed_ends[-1]) // n_rows

    def __len__(self) -> int:
        return -(-self.n_steps // self.unroll_steps)

    def size(self, number: int) -> tuple[int, int]:
        """See `SentenceBatches.size`."""
        sentence, position = self._locate(number, 0, self.n_rows)
        return int((position < self._lengths[sentence]).sum()), len(position)

    def read(self, number: int, rank: int = 0, world_size: int = 1) -> Optional[Batch]:
        """See `SentenceBatches.read`."""
        first, last = self.rows(rank, world_size)
        if first == last:
            return None
        sentence, position = self._locate(number, first, last)
        batch_sizes = [last - first] * (len(position) // (last - first))
        starts, lengths = self._starts[sentence], self._lengths[sentence]
        return _read_rows(self.sentences, batch_sizes, starts, lengths, position)

    def rows(self, rank: int, world_size: int) -> tuple[int, int]:
        """RETURNS (tuple): The first row of a process's share, and the first one after it."""
        return self.n_rows * rank // world_size, self.n_rows * (rank + 1) // world_size

    def _locate(self, number: int, first: int, last: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        # For each prediction of some rows, time-major: the sentence of the stream, the position.
        start = number * self.unroll_steps
        steps = numpy.arange(start, min(start + self.unroll_steps, self.n_steps))
        places = (steps[:, None] + numpy.arange(first, last) * self.n_steps).ravel()
        sentence = numpy.searchsorted(self._framed_ends, places, side="right")
        return sentence, places - (self._framed_ends[sentence] - self._lengths[sentence] - 1)


EpochBatches = SentenceBatches | ContiguousBatches


def make_epoch(
    sentences: Sentences, settings: PretrainingConfig, seed: int, number: int
) -> EpochBatches:
    """Decide what an epoch reads. Nothing else decides it."""
    if not settings.carry_state:
        plan = plan_epoch(sentences.lengths, settings.batch_words, seed, number)
        return SentenceBatches(sentences, plan)
    n_rows, size = settings.batch_words // settings.unroll_steps, (sentences.lengths + 1).sum()
    if not 1 <= n_rows <= size or n_rows % world_size():
        raise ValueError(
            f"carry_state: pretraining.batch_words // unroll_steps is {n_rows}, the rows of a "
            f"batch. They must be from 1 to {size}, the words of the corpus, and a multiple of "
            f"the {world_size()} processes"
        )
    order = numpy.random.default_rng((seed, number)).permutation(len(sentences))
    return ContiguousBatches(sentences, order, n_rows, settings.unroll_steps)


def plan_epoch(
    lengths: numpy.ndarray, batch_words: int, seed: int, epoch: int
) -> list[numpy.ndarray]:
    """RETURNS (list): The sentences of each batch, of about `batch_words` tokens."""
    random = numpy.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    filled = numpy.cumsum(lengths[order]) // (batch_words * _BATCHES_PER_BUCKET)
    buckets = numpy.split(order, numpy.flatnonzero(numpy.diff(filled)) + 1)
    batches = [batch for x in buckets for batch in group_by_length(lengths, x, batch_words)]
    return [batches[i] for i in random.permutation(len(batches)) if len(batches[i])]


def group_by_length(
    lengths: numpy.ndarray, numbers: numpy.ndarray, batch_words: int
) -> list[numpy.ndarray]:
    """RETURNS (list): Batches of sentences of similar length; see `plan_epoch`."""
    numbers = numbers[numpy.argsort(lengths[numbers], kind="stable")]
    batch = (numpy.cumsum(lengths[numbers]) - 1) // batch_words
    return numpy.split(numbers, numpy.flatnonzero(numpy.diff(batch)) + 1)


def pack(sentences: Sentences, numbers: numpy.ndarray) -> Batch:
    """Read some sentences of a corpus, by number."""
    batch_sizes, sequences, positions, starts, lengths = _arrange(sentences, numbers)
    return _read_rows(sentences, batch_sizes, starts[sequences], lengths[sequences], positions)


def find_places(sentences: Sentences, numbers: numpy.ndarray) -> numpy.ndarray:
    """RETURNS (ndarray): Where the prediction of each row of `pack` stands among those of all
    sentences, each with its words in order and the boundary after them; shape (2, rows)."""
    _, sequences, positions, starts, lengths = _arrange(sentences, numbers)
    left = lengths[sequences] - positions
    backward = numpy.where(left > 0, left - 1, positions)
    return (starts + numbers)[sequences] + numpy.stack((positions, backward))


def _arrange(sentences: Sentences, numbers: numpy.ndarray) -> tuple[Any, ...]:
    # What `pack_sequences` returns, and the first token and the length of each sentence.
    ends = sentences.ends[numbers]
    starts = numpy.where(numbers > 0, sentences.ends[numbers - 1], 0)
    # A sentence of n words has n + 1 predictions.
    return *pack_sequences(ends - starts + 1), starts, ends - starts


def _read_rows(
    sentences: Sentences,
    batch_sizes: list[int],
    starts: numpy.ndarray,
    lengths: numpy.ndarray,
    position: numpy.ndarray,
) -> Batch:
    """Read rows, each a position of a sentence with this start and length. Position 0 reads the
    sentence's boundary; position `length` predicts the other boundary."""
    is_inside, is_last = position > 0, position == lengths
    ends = starts + lengths

    def read(rows: numpy.ndarray, is_word: numpy.ndarray, boundary: int) -> numpy.ndarray:
        words = numpy.full(len(position), boundary, dtype=numpy.int64)
        words[is_word] = sentences.ids[rows[is_word]]
        return words

    forward = read(starts + position - 1, is_inside, BOS_ID)
    backward = read(ends - position, is_inside, EOS_ID)
    next_words = read(starts + position, ~is_last, EOS_ID)
    previous_words = read(ends - position - 1, ~is_last, BOS_ID)
    inputs, targets = numpy.stack((forward, backward)), numpy.stack((next_words, previous_words))
    types, index = numpy.unique(inputs, return_inverse=True)
    return Batch(
        batch_sizes,
        [sentences.types[i] for i in types.tolist()],
        index.reshape(inputs.shape),
        numpy.where(targets >= sentences.n_vocabulary, UNK_ID, targets),
        int((~is_last).sum()),
    )
