"""Sequences of different lengths as rows of one matrix, without padding.

The order is that of PyTorch's `PackedSequence`: the longest sequence first, and time-major. Step t
has one row for each of the first `batch_sizes[t]` sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from torch import Tensor


class PackedRows(NamedTuple):
    """What each row of a packed batch is, in either direction.

    batch_sizes (list[int]): Sequences that are active at each step; falling.
    sequences (ndarray): The number of the sequence that a row belongs to, shape (rows,).
    positions (ndarray): The step at which it is read, shape (rows,).
    """

    batch_sizes: list[int]
    sequences: numpy.ndarray
    positions: numpy.ndarray


def pack_sequences(lengths: numpy.ndarray) -> PackedRows:
    """Arrange sequences by their lengths, which are at least 1."""
    order = numpy.argsort(-lengths, kind="stable")
    falling = lengths[order]
    steps = numpy.arange(falling[0] if len(falling) else 0)
    batch_sizes = numpy.searchsorted(-falling, -steps, side="left")
    positions = numpy.repeat(steps, batch_sizes)
    starts = numpy.cumsum(batch_sizes) - batch_sizes
    sequences = order[numpy.arange(len(positions)) - starts[positions]]
    return PackedRows(batch_sizes.tolist(), sequences, positions)


@dataclass(frozen=True)
class PackedBatch:
    """Sentences framed by their boundaries, for both directions.

    batch_sizes (list[int]): Sentences that are active at each step; falling.
    inputs (ndarray): The word type that each row reads. Shape (2, rows): forward, backward.
    tokens (ndarray): The numbers of the batch's tokens, rising; shape (tokens,).
    token_rows (ndarray): The row that reads each of them, shape (2, tokens).
    order (ndarray): Which sentence is in which row of the first step.
    """

    batch_sizes: list[int]
    inputs: numpy.ndarray
    tokens: numpy.ndarray
    token_rows: numpy.ndarray
    order: numpy.ndarray


def pack_sentences(
    index: numpy.ndarray, starts: numpy.ndarray, lengths: numpy.ndarray, bos: int, eos: int
) -> PackedBatch:
    """Frame sentences and pack them.

    index (ndarray): The word type of each token of a text.
    starts, lengths (ndarray): First token and number of tokens of each sentence of the batch.
    bos, eos (int): The word types of the boundaries.
    """
    packed = pack_sequences(lengths + 2)
    start, length = starts[packed.sequences], lengths[packed.sequences]
    inputs, token_rows = [], []
    # Positions in the framed sentence, from 0 (begin) to length + 1 (end).
    for position in (packed.positions, length + 1 - packed.positions):
        inner = numpy.flatnonzero((position > 0) & (position <= length))
        tokens = (start + position - 1)[inner]
        types = numpy.where(position == 0, bos, eos)
        types[inner] = index[tokens]
        order = numpy.argsort(tokens)
        inputs.append(types)
        token_rows.append(inner[order])
    n_sentences = packed.batch_sizes[0] if packed.batch_sizes else 0
    return PackedBatch(
        packed.batch_sizes,
        numpy.stack(inputs),
        tokens[order],
        numpy.stack(token_rows),
        packed.sequences[:n_sentences],
    )


def previous_rows(batch_sizes: Sequence[int]) -> numpy.ndarray:
    """RETURNS (ndarray): For each row but those of the first step, the row of the same sequence one
    step before."""
    sizes = numpy.array(batch_sizes, dtype=numpy.int64)
    return numpy.arange(sizes[0], sizes.sum()) - numpy.repeat(sizes[:-1], sizes[1:])


def split_sentences(lengths: numpy.ndarray, max_tokens: int) -> Iterator[numpy.ndarray]:
    """Group sentences of similar length. A sentence of more than `max_tokens` is a batch by itself.
    Empty sentences are left out.

    lengths (ndarray): Tokens per sentence, shape (sentences,).
    max_tokens (int): The most tokens of a batch, boundaries included. 0: all in one batch.
    YIELDS (ndarray): The numbers of the sentences of a batch, longest sentences first.
    """
    order = numpy.argsort(-lengths, kind="stable")
    order = order[: int(numpy.count_nonzero(lengths))]
    begin, total = 0, 0
    for position, length in enumerate((lengths[order] + 2).tolist()):
        if max_tokens and position > begin and total + length > max_tokens:
            yield order[begin:position]
            begin, total = position, 0
        total += length
    if begin < len(order):
        yield order[begin:]


def to_device(array: numpy.ndarray, device: torch.device) -> Tensor:
    """Copy an index array. To a GPU it goes through pinned memory, so that the caller need not wait
    for what the GPU is doing."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
