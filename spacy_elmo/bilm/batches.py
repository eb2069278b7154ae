"""Sequences of tokens as packed batches, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy


@dataclass(frozen=True)
class PackedBatch:
    """Some sequences, time-major and sorted by falling length, each framed by its boundaries.

    The backward direction reads the sequences reversed, packed in the same way.

    sizes (list): Sequences that are active at each step.
    tokens (ndarray): Rows, in the concatenated input, of the batch's tokens, sequence by sequence.
    inputs (ndarray): What each packed row reads: an entry of the concatenated input, -1 for begin
        and -2 for end of sentence. Shape (2, rows): forward, backward.
    rows (ndarray): The packed row that holds each token. Shape (2, tokens): forward, backward.
    order (ndarray): The number of each sequence, in the order of the packing.
    """

    sizes: list[int]
    tokens: numpy.ndarray
    inputs: numpy.ndarray
    rows: numpy.ndarray
    order: numpy.ndarray


def pack_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[PackedBatch]:
    """Group sequences of similar length, at most `max_tokens` tokens at a time (boundaries
    included; a longer sequence is a batch of its own). Empty sequences are left out.

    lengths (Sequence[int]): The sequences' numbers of tokens.
    max_tokens (int): The budget. 0: everything in one batch.
    YIELDS (PackedBatch): The batches, longest sequences first.
    """
    sizes = numpy.asarray(lengths, dtype=numpy.int64)
    starts = numpy.cumsum(sizes) - sizes
    order = numpy.argsort(-sizes, kind="stable")
    order = order[: int(numpy.count_nonzero(sizes))]
    begin, total = 0, 0
    for position, length in enumerate((sizes[order] + 2).tolist()):
        if max_tokens and position > begin and total + length > max_tokens:
            yield _pack(order[begin:position], sizes, starts)
            begin, total = position, 0
        total += length
    if begin < len(order):
        yield _pack(order[begin:], sizes, starts)


def _pack(order: numpy.ndarray, sizes: numpy.ndarray, starts: numpy.ndarray) -> PackedBatch:
    lengths = sizes[order]
    framed = lengths + 2
    # Sorted by falling length, so the active sequences at a step are a prefix.
    active = numpy.searchsorted(-framed, -numpy.arange(framed[0]), side="left")
    offsets = numpy.cumsum(active) - active

    tokens = numpy.repeat(starts[order], lengths) + _positions(lengths)
    sequence = numpy.repeat(numpy.arange(len(order)), framed)
    position = _positions(framed)
    mirrored = numpy.repeat(framed, framed) - 1 - position
    packed_rows = numpy.stack((offsets[position] + sequence, offsets[mirrored] + sequence))

    inner = (position > 0) & (mirrored > 0)
    source = numpy.where(position == 0, -1, -2)
    source[inner] = tokens
    inputs = numpy.empty_like(packed_rows)
    numpy.put_along_axis(inputs, packed_rows, numpy.stack((source, source)), axis=1)
    return PackedBatch(active.tolist(), tokens, inputs, packed_rows[:, inner], order)


def _positions(lengths: numpy.ndarray) -> numpy.ndarray:
    """0..n-1 for each length n, concatenated."""
    total = int(lengths.sum())
    return numpy.arange(total) - numpy.repeat(numpy.cumsum(lengths) - lengths, lengths)
