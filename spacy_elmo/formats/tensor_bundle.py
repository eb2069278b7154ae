"""Read TensorFlow's checkpoints without TensorFlow.

`PREFIX.index` is a table (table_format.txt of LevelDB) from the names of tensors to protocol
buffers (tensor_bundle.proto of TensorFlow), which say where the values are in the files
`PREFIX.data-SSSSS-of-NNNNN`. Files may be damaged or malicious: no more memory is taken than they
have bytes. Checksums are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
# Bytes; the index of a biLM has some thousand.
_MAX_INDEX = 1 << 20
_MAX_NAME, _MAX_DIMENSIONS = 255, 32
# By the number of the type. Others are named by their number.
_DTYPES = {1: "float32", 2: "float64", 19: "float16"}


class StoredTensor(NamedTuple):
    """Where the bytes of a tensor are. The type is NumPy's name, or "TensorFlow's type N", which
    cannot be read."""

    path: Path
    offset: int
    size: int
    dtype: str
    shape: tuple[int, ...]


def read_index(path: Path) -> dict[str, StoredTensor]:
    """RETURNS (dict): The tensors by name, whose sizes were compared with the files of data."""
    data = path.read_bytes()
    if len(data) > _MAX_INDEX or not data.endswith(_MAGIC):
        raise ValueError(f"{path} is not the index of a checkpoint, or not complete")
    entries = _read_table(data)
    header = dict(_read_message(entries.pop(b"", b"")))
    tensors = {}
    for name, value in entries.items():
        text = name.decode("utf8", "backslashreplace")
        tensors[text] = _read_entry(text, value, path, int(header.get(1, 0)))
    for file in {tensor.path for tensor in tensors.values()}:
        inside = [tensor for tensor in tensors.values() if tensor.path == file]
        needed = max(sum(x.size for x in inside), *(x.offset + x.size for x in inside))
        if header.get(2, 0) != 0 or needed > file.stat().st_size:
            raise ValueError(f"{file} has fewer than {needed:,} bytes, or is big-endian")
    return tensors


def read_tensor(tensor: StoredTensor) -> numpy.ndarray:
    """RETURNS (ndarray): The values."""
    dtype, count = numpy.dtype(tensor.dtype).newbyteorder("<"), math.prod(tensor.shape)
    return numpy.fromfile(tensor.path, dtype, count, offset=tensor.offset).reshape(tensor.shape)


def _read_table(data: bytes) -> dict[bytes, bytes]:
    """RETURNS (dict): The entries of a table, in order."""
    # Offset and size of two blocks, of which only the second is needed.
    handle, position = [0] * 4, len(data) - _FOOTER
    for i in range(4):
        handle[i], position = _varint(data, position)
    entries: dict[bytes, bytes] = {}
    end = 0
    for _, value in _read_block(data, *handle[2:]):
        offset, position = _varint(value, 0)
        size, _ = _varint(value, position)
        if offset < end:  # Else a block could be read many times.
            raise ValueError("the blocks of the index overlap")
        end = offset + size
        entries.update(_read_block(data, offset, size))
    return entries


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """YIELDS (tuple): Key and value of each entry of a block."""
    block = data[offset : offset + size]
    is_compressed = data[offset + size] != 0
    # At the end are the positions of keys that share nothing, and their number.
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    key, position = b"", 0
    while position < end:
        n_shared, position = _varint(block, position)
        n_more, position = _varint(block, position)
        n_value, position = _varint(block, position)
        start, position = position + n_more, position + n_more + n_value
        if is_compressed or n_shared + n_more > _MAX_NAME:
            raise ValueError(
                "the index is damaged, or compressed: save it again with TensorFlow, or convert it "
                "to HDF5 with bilm-tf's bin/dump_weights.py"
            )
        key = key[:n_shared] + block[start - n_more : start]
        yield key, block[start:position]


def _read_entry(name: str, value: bytes, path: Path, n_shards: int) -> StoredTensor:
    entry = dict(_read_message(value))
    kind, shard, offset, size = (int(entry.get(number, 0)) for number in (1, 3, 4, 5))
    sides = [side for number, side in _read_message(entry.get(2, b"")) if number == 2]
    shape = tuple(int(dict(_read_message(x)).get(1, 0)) for x in sides[:_MAX_DIMENSIONS])
    dtype = _DTYPES.get(kind, f"TensorFlow's type {kind}")
    n_bytes = math.prod(shape) * numpy.dtype(dtype).itemsize if kind in _DTYPES else size
    if 7 in entry or size != n_bytes:
        raise ValueError(f"{name} is damaged or partitioned: save it in one piece with TensorFlow")
    prefix = path.name.removesuffix(".index")
    data = path.with_name(f"{prefix}.data-{shard:05}-of-{n_shards:05}")
    return StoredTensor(data, offset, size, dtype, shape)


def _read_message(data: bytes) -> Iterator[tuple[int, Any]]:
    """YIELDS (tuple): Number and value of each field of a protocol buffer: bytes, or an int."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: Any
        value, position = _varint(data, position) if tag & 7 in (0, 2) else (4, position)
        if tag & 7 in (2, 5):  # Bytes, after their number, or four of them.
            position += (size := value)
            value = data[position - size : position]
        if tag & 7 not in (0, 2, 5) or position > len(data):
            raise ValueError("a field of the index has an impossible type or length")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """RETURNS (tuple): A number in groups of seven bits, the lowest first, and where it ends."""
    number = 0
    for i, byte in enumerate(data[position : position + 10]):
        number |= (byte & 127) << 7 * i
        if byte < 128:
            return number, position + i + 1
    raise ValueError("a number of the index does not end")
