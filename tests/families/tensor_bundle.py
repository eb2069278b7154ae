"""TensorFlow's checkpoint format, version 2, in pure Python: a table of entries and data shards.
Checksums are zeros: no reader of ours compares them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
from numpy import ndarray

MAGIC = 0xDB4775248B80FB57
UNCOMPRESSED, SNAPPY = 0, 1
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "string": 7, "int64": 9, "float16": 19}
VARINT, FIXED32, BYTES = 0, 5, 2


# Protocol buffers


def varint(number: int) -> bytes:
    """A number of up to 64 bits; negative ones take ten bytes."""
    number &= (1 << 64) - 1
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def field(number: int, value: int | bytes, *, fixed: bool = False) -> bytes:
    """One field of a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | BYTES) + varint(len(value)) + value
    if fixed:
        return varint(number << 3 | FIXED32) + struct.pack("<I", value)
    return varint(number << 3 | VARINT) + varint(value)


def optional(number: int, value: int) -> bytes:
    """A field that is left out where it holds its default, 0."""
    return field(number, value) if value else b""


def header(num_shards: int = 1, endianness: int = 0) -> bytes:
    """The value of the key ""."""
    version = field(3, optional(1, 1))
    return optional(1, num_shards) + optional(2, endianness) + version


def entry(
    shape: Sequence[int],
    offset: int,
    size: int,
    *,
    dtype: int = DTYPES["float32"],
    shard: int = 0,
    slices: int = 0,
) -> bytes:
    """The value of a tensor's key.

    slices (int): Number of slices that a partitioned variable is said to have.
    """
    dims = b"".join(field(2, optional(1, size)) for size in shape)
    numbers = optional(1, dtype) + field(2, dims) + optional(3, shard) + optional(4, offset)
    checksum = field(6, 0, fixed=True)
    return numbers + optional(5, size) + checksum + field(7, field(1, b"")) * slices


# The table


def block(items: Sequence[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    """A block of entries whose keys share their beginnings."""
    data, restarts, last = bytearray(), [0], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % restart_interval == 0:
            if number:
                restarts.append(len(data))
        else:
            pairs = enumerate(zip(last, key))
            shared = next((i for i, (x, y) in pairs if x != y), min(len(last), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value))
        data += key[shared:] + value
        last = key
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(
    items: Sequence[tuple[bytes, bytes]],
    *,
    block_size: int = 262144,
    kind: int = UNCOMPRESSED,
    repeats: int = 1,
) -> bytes:
    """A whole table.

    items (Sequence): Keys and values, sorted by their keys.
    block_size (int): A block ends when it is as large.
    kind (int): The type that the blocks name; their contents are never compressed.
    repeats (int): How often the index names the first block.
    """
    groups: list[list[tuple[bytes, bytes]]] = [[]]
    for item in items:
        if groups[-1] and len(block(groups[-1])) >= block_size:
            groups.append([])
        groups[-1].append(item)
    data, index, trailer = bytearray(), [], bytes([kind, 0, 0, 0, 0])
    for group in groups:
        content = block(group)
        index.append((group[-1][0], varint(len(data)) + varint(len(content))))
        data += content + trailer
    handles = b""
    for content in (block([]), block(index[:1] * repeats + index[1:], restart_interval=1)):
        handles += varint(len(data)) + varint(len(content))
        data += content + trailer
    return bytes(data) + handles.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def shard_path(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def index_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def write(
    prefix: Path,
    tensors: Mapping[str, ndarray],
    *,
    num_shards: int = 1,
    block_size: int = 262144,
    replaced: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint.

    num_shards (int): Tensors go to the shards in turn.
    replaced (Mapping[str, bytes] | None): Values that stand in the table in place of those that
        belong to the written tensors.
    """
    shards = [bytearray() for _ in range(num_shards)]
    values = {"": header(num_shards)}
    for number, name in enumerate(sorted(tensors)):
        array, shard = numpy.asarray(tensors[name]), number % num_shards
        place, dtype = len(shards[shard]), DTYPES[str(array.dtype)]
        values[name] = entry(array.shape, place, array.nbytes, dtype=dtype, shard=shard)
        shards[shard] += array.tobytes()
    values |= replaced or {}
    items = sorted((name.encode(), value) for name, value in values.items())
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index_path(prefix).write_bytes(table(items, block_size=block_size))
    for shard, content in enumerate(shards):
        shard_path(prefix, shard, num_shards).write_bytes(content)
