"""TensorFlow's checkpoint format, version 2, in pure Python: a table of entries and data shards.

The pieces are separate, so that tests of damaged files can put any of them together.
"""

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


def crc32c(data: bytes) -> int:
    """The Castagnoli CRC."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


CRC_TABLE = list(range(256))
for _ in range(8):
    CRC_TABLE = [(i >> 1) ^ (0x82F63B78 if i & 1 else 0) for i in CRC_TABLE]


def mask(crc: int) -> int:
    """The form in which a CRC is stored: rotated right by 15, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


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


def header(num_shards: int = 1, endianness: int = 0, producer: int = 1) -> bytes:
    """The value of the key ""."""
    version = field(3, optional(1, producer))
    return optional(1, num_shards) + optional(2, endianness) + version


def entry(
    shape: Sequence[int],
    offset: int,
    size: int,
    crc: int,
    *,
    dtype: int = DTYPES["float32"],
    shard: int = 0,
    slices: int = 0,
) -> bytes:
    """The value of a tensor's key.

    crc (int): Masked.
    slices (int): Number of slices that a partitioned variable is said to have.
    """
    dims = b"".join(field(2, optional(1, size)) for size in shape)
    return b"".join(
        (
            optional(1, dtype),
            field(2, dims),
            optional(3, shard),
            optional(4, offset),
            optional(5, size),
            field(6, crc, fixed=True),
            field(7, field(1, b"")) * slices,
        )
    )


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


def trailer(content: bytes, kind: int = UNCOMPRESSED) -> bytes:
    """What follows a block: its type and the CRC of both."""
    return bytes([kind]) + struct.pack("<I", mask(crc32c(content + bytes([kind]))))


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def footer(metaindex: bytes, index: bytes, magic: int = MAGIC) -> bytes:
    """The last 48 bytes, of the handles of the meta-index and the index."""
    return (metaindex + index).ljust(40, b"\0") + struct.pack("<Q", magic)


def table(
    items: Sequence[tuple[bytes, bytes]], *, block_size: int = 262144, kind: int = UNCOMPRESSED
) -> bytes:
    """A whole table.

    items (Sequence): Keys and values, sorted by their keys.
    block_size (int): A block ends when it is as large.
    kind (int): The type that the blocks name; their contents are never compressed.
    """
    groups: list[list[tuple[bytes, bytes]]] = [[]]
    for item in items:
        if groups[-1] and len(block(groups[-1])) >= block_size:
            groups.append([])
        groups[-1].append(item)
    data, index = bytearray(), []
    for group in groups:
        content = block(group)
        index.append((group[-1][0], handle(len(data), len(content))))
        data += content + trailer(content, kind)
    handles = []
    for content in (block([]), block(index, restart_interval=1)):
        handles.append(handle(len(data), len(content)))
        data += content + trailer(content, kind)
    metaindex, last = handles
    return bytes(data) + footer(metaindex, last)


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
        array = numpy.asarray(tensors[name])
        data, shard = array.tobytes(), number % num_shards
        values[name] = entry(
            array.shape,
            len(shards[shard]),
            len(data),
            mask(crc32c(data)),
            dtype=DTYPES[str(array.dtype)],
            shard=shard,
        )
        shards[shard] += data
    values |= replaced or {}
    items = sorted((name.encode(), value) for name, value in values.items())
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index_path(prefix).write_bytes(table(items, block_size=block_size))
    for shard, content in enumerate(shards):
        shard_path(prefix, shard, num_shards).write_bytes(content)
