"""Read TensorFlow's checkpoints without TensorFlow.

`PREFIX.index` is a table (table_format.txt of LevelDB) from the names of tensors to protocol
buffers (tensor_bundle.proto of TensorFlow), which say where the values are in the files
`PREFIX.data-SSSSS-of-NNNNN`. All checksums are compared. Files may be damaged or malicious: no more
memory is taken than they have bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_TRAILER = 5  # Of a block: its compression, and a checksum.
# Bytes; the index of a biLM has some thousand.
_MAX_INDEX = 1 << 20
# Bytes of a name, of which only what differs from the name before is stored; and dimensions.
_MAX_NAME = 255
_MAX_DIMENSIONS = 254
# By the number of the type. Others are named by their number.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 19: "float16"}
# The table of CRC-32C (RFC 3720), byte by byte.
_CRC = numpy.arange(256, dtype="uint32")
for _ in range(8):
    _CRC = (_CRC >> 1) ^ (_CRC & 1) * numpy.uint32(0x82F63B78)
_CRC2 = _CRC[numpy.arange(1 << 16) & 255] ^ (numpy.arange(1 << 16, dtype="uint32") >> 8)
_CRC2 = _CRC[_CRC2 & 255] ^ (_CRC2 >> 8)  # Two bytes at once.
_ROW = 4096  # Bytes of a row; the checksums of rows are computed side by side.


class StoredTensor(NamedTuple):
    """Where the bytes of a tensor are, and their checksum. The type is NumPy's name, or
    "TensorFlow's type N", which cannot be read."""

    path: Path
    offset: int
    size: int
    crc: int
    dtype: str
    shape: tuple[int, ...]


def read_index(path: Path) -> dict[str, StoredTensor]:
    """Read which tensors a checkpoint has, and compare their sizes with the files of data.

    RETURNS (dict): The tensors by name.
    RAISES (ValueError): If a file is missing, damaged or of a kind that is not read.
    """
    try:
        if path.stat().st_size > _MAX_INDEX:
            raise ValueError(f"it has more than {_MAX_INDEX:,} bytes, as no index of a biLM does")
        entries = _read_table(path.read_bytes())
        header = _read_message(entries.pop(b"", b""))
        if _last(header, 2) != 0:
            raise ValueError("its numbers are big-endian, which is not read")
        named = {x.decode("utf8", "backslashreplace"): value for x, value in entries.items()}
        tensors = {x: _read_entry(x, value, path, _last(header, 1)) for x, value in named.items()}
        sizes = {x: x.stat().st_size for x in {tensor.path for tensor in tensors.values()}}
    except (OSError, ValueError, TypeError) as error:  # TypeError: a field of another type.
        raise ValueError(f"{path} cannot be read as a TensorFlow checkpoint: {error}") from error
    for data, n_bytes in sizes.items():
        inside = [tensor for tensor in tensors.values() if tensor.path == data]
        needed = max(sum(x.size for x in inside), *(x.offset + x.size for x in inside))
        if needed > n_bytes:
            raise ValueError(f"{data} has {n_bytes:,} bytes of {needed:,}: is it complete?")
    return tensors


def read_tensor(name: str, tensor: StoredTensor) -> numpy.ndarray:
    """RETURNS (ndarray): The values.
    RAISES (ValueError): If they have changed since they were written, or memory is short."""
    dtype, count = numpy.dtype(tensor.dtype).newbyteorder("<"), math.prod(tensor.shape)
    values = numpy.fromfile(tensor.path, dtype, count, offset=tensor.offset)
    if values.nbytes != tensor.size or crc32c(values) != tensor.crc:
        raise ValueError(
            f"{tensor.path} is damaged: the values of {name} do not have their checksum. Copy or "
            "download the checkpoint again"
        )
    return values.reshape(tensor.shape)


def crc32c(data: Any) -> int:
    """RETURNS (int): The CRC-32C of bytes, or of an array's, which must be contiguous."""
    values = numpy.frombuffer(data, "uint8")
    n_first = len(values) % _ROW
    crc = 0xFFFFFFFF
    for byte in values[:n_first].tolist():
        crc = int(_CRC[(crc ^ byte) & 255]) ^ crc >> 8
    # Each row from zero; and what a row of zeros makes of each bit of the checksum before it.
    rows = values[n_first:].view("<u2").reshape(-1, _ROW // 2)
    bits = numpy.uint32(1) << numpy.arange(32, dtype="uint32")
    sums = numpy.concatenate((numpy.zeros(len(rows), "uint32"), bits))
    for column in rows.T if len(rows) else ():
        sums[:-32] ^= column
        sums = _CRC2[sums & 0xFFFF] ^ sums >> 16
    for row in sums[:-32]:
        crc = int(row ^ numpy.bitwise_xor.reduce(sums[-32:][numpy.uint32(crc) & bits != 0]))
    return crc ^ 0xFFFFFFFF


def _read_table(data: bytes) -> dict[bytes, bytes]:
    """RETURNS (dict): The entries of a table, in order."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise ValueError("it does not end as an index does")
    # Offset and size of two blocks, of which only the second is needed.
    handle, position = [0] * 4, 0
    for i in range(4):
        handle[i], position = _varint(footer, position)
    entries: dict[bytes, bytes] = {}
    end = 0
    for _, value in _read_block(data, *handle[2:]):
        offset, position = _varint(value, 0)
        size, _ = _varint(value, position)
        if offset < end:  # Else a block could be read many times.
            raise ValueError("its blocks overlap")
        end = offset + size
        entries.update(_read_block(data, offset, size))
    return entries


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """YIELDS (tuple): Key and value of each entry of a block."""
    end = offset + size
    block, trailer = data[offset:end], data[end : end + _TRAILER]
    if len(trailer) < _TRAILER or crc32c(block + trailer[:1]) != _unmask(trailer[1:]):
        raise ValueError("a block does not have its checksum")
    if trailer[0] != 0:
        raise ValueError(
            "it is compressed, which is not read: load it with TensorFlow and save it again, or "
            "convert it to HDF5 with bilm-tf's bin/dump_weights.py"
        )
    # At the end are the positions of keys that share nothing, and their number.
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    key, position = b"", 0
    while position < end:
        n_shared, position = _varint(block, position)
        n_more, position = _varint(block, position)
        n_value, position = _varint(block, position)
        start, position = position + n_more, position + n_more + n_value
        if position > end or n_shared > len(key) or n_shared + n_more > _MAX_NAME:
            raise ValueError("an entry has an impossible length")
        key = key[:n_shared] + block[start - n_more : start]
        yield key, block[start:position]


def _read_entry(name: str, value: bytes, path: Path, n_shards: int) -> StoredTensor:
    entry = _read_message(value)
    kind, shard, offset, size = (_last(entry, number) for number in (1, 3, 4, 5))
    sides = _read_message(entry.get(2, [b""])[-1]).get(2, [])
    shape = tuple(_last(_read_message(side), 1) for side in sides[:_MAX_DIMENSIONS])
    dtype = _DTYPES.get(kind, f"TensorFlow's type {kind}")
    n_bytes = math.prod(shape) * numpy.dtype(dtype).itemsize if kind in _DTYPES else size
    if 7 in entry or size != n_bytes or len(sides) > _MAX_DIMENSIONS or shard >= n_shards:
        raise ValueError(
            f"{name}, {dtype} of the shape {shape} and {size:,} bytes, is damaged or partitioned, "
            "which is not read: load it with TensorFlow and save it in one piece"
        )
    prefix = path.name.removesuffix(".index")
    data = path.with_name(f"{prefix}.data-{shard:05}-of-{n_shards:05}")
    return StoredTensor(data, offset, size, _unmask(entry.get(6, [b""])[-1]), dtype, shape)


def _read_message(data: bytes) -> dict[int, list[Any]]:
    """RETURNS (dict): The values of a protocol buffer by the number of the field: bytes, or ints of
    variable length."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: Any
        value, position = _varint(data, position) if tag & 7 in (0, 2) else (4, position)
        if tag & 7 in (2, 5):  # Bytes, after their number, or four of them.
            position += (size := value)
            value = data[position - size : position]
        if tag & 7 not in (0, 2, 5) or position > len(data):
            raise ValueError("a field has an impossible type or length")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _last(fields: dict[int, list[Any]], number: int) -> int:
    """RETURNS (int): The last value of a field, as protocol buffers have it; by default 0."""
    return operator.index(fields.get(number, [0])[-1])


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """RETURNS (tuple): A number in groups of seven bits, the lowest first, and the position after
    it."""
    number = 0
    for i, byte in enumerate(data[position : position + 10]):
        number |= (byte & 127) << 7 * i
        if byte < 128:
            return number, position + i + 1
    raise ValueError("a number does not end")


def _unmask(data: bytes) -> int:
    """RETURNS (int): A checksum as it was before TensorFlow masked it."""
    rotated = (int.from_bytes(data, "little") - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
