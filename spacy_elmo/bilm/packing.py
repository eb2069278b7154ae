"""Sequences of different lengths as rows of one matrix, without padding.

The order is that of PyTorch's `PackedSequence`: the longest sequence first, and time-major. Step t
has one row for each of the first `batch_sizes[t]` sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor


def pack_sequences(lengths: numpy.ndarray) -> tuple[list[int], numpy.ndarray, numpy.ndarray]:
    """Arrange sequences by their lengths, which are at least 1.

    RETURNS (tuple): The sequences that are active at each step, falling; and for each row its
        sequence and its step.
    """
    order = numpy.argsort(-lengths, kind="stable")
    falling = lengths[order]
    steps = numpy.arange(falling[0] if len(falling) else 0)
    batch_sizes = numpy.searchsorted(-falling, -steps, side="left")
    positions = numpy.repeat(steps, batch_sizes)
    starts = numpy.cumsum(batch_sizes) - batch_sizes
    sequences = order[numpy.arange(len(positions)) - starts[positions]]
    return batch_sizes.tolist(), sequences, positions


class PackedBatch(NamedTuple):
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
    """Frame sentences and pack them: those that have their first token at `starts`, and `lengths`
    tokens. `index` has the word type of each token, `bos` and `eos` are those of boundaries."""
    batch_sizes, sequences, positions = pack_sequences(lengths + 2)
    start, length = starts[sequences], lengths[sequences]
    inputs, token_rows = [], []
    # Positions in the framed sentence, from 0 (begin) to length + 1 (end).
    for position in (positions, length + 1 - positions):
        inner = numpy.flatnonzero((position > 0) & (position <= length))
        tokens = (start + position - 1)[inner]
        types = numpy.where(position == 0, bos, eos)
        types[inner] = index[tokens]
        order = numpy.argsort(tokens)
        inputs.append(types)
        token_rows.append(inner[order])
    first = sequences[: len(lengths)]
    arrays = numpy.stack(inputs), tokens[order], numpy.stack(token_rows), first
    return PackedBatch(batch_sizes, *arrays)


def previous_rows(batch_sizes: Sequence[int]) -> numpy.ndarray:
    """RETURNS (ndarray): The row of the same sequence one step before, for each row but those of
    the first step."""
    sizes = numpy.array(batch_sizes, dtype=numpy.int64)
    return numpy.arange(sizes[0], sizes.sum()) - numpy.repeat(sizes[:-1], sizes[1:])


def split_sentences(lengths: numpy.ndarray, max_tokens: int) -> Iterator[numpy.ndarray]:
    """Group sentences of similar length, leaving out empty ones.

    max_tokens (int): The most tokens of a batch, boundaries included; a longer sentence is a batch
        by itself. 0: all in one batch.
    YIELDS (ndarray): The numbers of the sentences of a batch, longest sentences first.
    """
    order = numpy.argsort(-lengths, kind="stable")[: numpy.count_nonzero(lengths)]
    begin, total = 0, 0
    for position, length in enumerate((lengths[order] + 2).tolist()):
        if max_tokens and position > begin and total + length > max_tokens:
            yield order[begin:position]
            begin, total = position, 0
        total += length
    if begin < len(order):
        yield order[begin:]


def to_device(array: numpy.ndarray, device: torch.device) -> Tensor:
    """Copy an index array; to a GPU through pinned memory, without waiting for the GPU."""
    tensor = torch.from_numpy(array)
    is_gpu = device.type == "cuda"
    return (tensor.pin_memory() if is_gpu else tensor).to(device, non_blocking=is_gpu)
