"""Read TensorFlow's checkpoints without TensorFlow.

`PREFIX.index` is a table (table_format.txt of LevelDB) from the names of tensors to protocol
buffers (tensor_bundle.proto of TensorFlow), which say where the values are in the files
`PREFIX.data-SSSSS-of-NNNNN`. All checksums are compared. Files may be damaged or malicious: no more
memory is taken than they have bytes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional, TypeVar, Union

import numpy

from .crc32c import crc32c

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_TRAILER = 5  # Of a block: its compression, and a checksum.
# Bytes; the index of a biLM has some thousand.
_MAX_INDEX = 1 << 20
# Bytes of a name, of which only what differs from the name before is stored; and dimensions.
_MAX_NAME = 255
_MAX_DIMENSIONS = 254
# Of the fields of protocol buffers, in bytes: of 64 bits, of variable length, of 32 bits.
_FIELD_SIZES: dict[int, Optional[int]] = {1: 8, 2: None, 5: 4}
# By the number of the type. Others are named by their number.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64",
    10: "bool", 19: "float16",
}  # fmt: skip

T = TypeVar("T", int, bytes)
Message = dict[int, list[Union[int, bytes]]]


class StoredTensor(NamedTuple):
    """Where a tensor is.

    path (Path): The file of data.
    offset, size (int): Its bytes there.
    crc (int): Their checksum.
    dtype (str): As NumPy names it, or "TensorFlow's type N", which cannot be read.
    shape (tuple[int, ...]): Its shape.
    """

    path: Path
    offset: int
    size: int
    crc: int
    dtype: str
    shape: tuple[int, ...]


@contextlib.contextmanager
def _name_file(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError) as error:
        reason = "it ends too early" if isinstance(error, IndexError) else error
        raise ValueError(f"{path} cannot be read as a TensorFlow checkpoint: {reason}") from error


def read_index(path: Path) -> dict[str, StoredTensor]:
    """Read which tensors a checkpoint has, and compare their sizes with the files of data.

    path (Path): `PREFIX.index`.
    RETURNS (dict): The tensors by name.
    RAISES (ValueError): If a file is missing, damaged or of a kind that is not read.
    """
    if not path.is_file():
        raise ValueError(f"no such file: {path}, the index of a TensorFlow checkpoint")
    if path.stat().st_size > _MAX_INDEX:
        raise ValueError(f"{path} is larger than the index of a biLM, {_MAX_INDEX:,} bytes at most")
    with _name_file(path):
        entries = _read_table(path.read_bytes())
        header = _read_message(entries.pop(b"", b""))
        n_shards = _get(header, 1, 0)
        if _get(header, 2, 0) != 0:
            raise ValueError("its numbers are big-endian, which is not read")
        tensors = {}
        for key, value in entries.items():
            name = key.decode("utf8", "backslashreplace")
            tensors[name] = _read_entry(name, value, path, n_shards)
    _check_sizes(path, tensors)
    return tensors


def read_tensor(name: str, tensor: StoredTensor) -> numpy.ndarray:
    """RETURNS (ndarray): The values.
    RAISES (ValueError): If they have changed since they were written, or memory is short."""
    dtype, count = numpy.dtype(tensor.dtype).newbyteorder("<"), math.prod(tensor.shape)
    try:
        values = numpy.fromfile(tensor.path, dtype, count, offset=tensor.offset)
    except MemoryError as error:
        raise ValueError(f"not enough memory for {name} in {tensor.path}: {error}") from error
    if values.nbytes != tensor.size or crc32c(values) != tensor.crc:
        raise ValueError(
            f"{tensor.path} is damaged: the values of {name} do not have their checksum. Copy or "
            "download the checkpoint again"
        )
    return values.reshape(tensor.shape)


def _read_table(data: bytes) -> dict[bytes, bytes]:
    """RETURNS (dict): The entries of a table, in order."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise ValueError("it does not end as an index does")
    position = 0
    handle = []  # Offset and size of two blocks, of which only the second is needed.
    for _ in range(4):
        number, position = _varint(footer, position)
        handle.append(number)
    entries: dict[bytes, bytes] = {}
    last, end = None, 0
    for _, value in _read_block(data, *handle[2:]):
        offset, position = _varint(value, 0)
        size, _ = _varint(value, position)
        # Blocks and names follow each other, so that no block is read many times.
        if offset < end:
            raise ValueError("its blocks overlap")
        end = offset + size + _TRAILER
        for key, entry in _read_block(data, offset, size):
            if last is not None and key <= last:
                raise ValueError("its names are not in order")
            last = key
            entries[key] = entry
    return entries


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """YIELDS (tuple): Key and value of each entry of a block."""
    end = offset + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise ValueError(f"a block of {size:,} bytes is not in it")
    if data[end] != 0:
        raise ValueError(
            f"it is compressed ({'with Snappy' if data[end] == 1 else 'in an unknown way'}), which "
            "is not read: load it with TensorFlow and save it again, or convert it to HDF5 with "
            "bilm-tf's bin/dump_weights.py"
        )
    if crc32c(data[offset : end + 1]) != _unmask(data[end + 1 : end + _TRAILER]):
        raise ValueError("a block does not have its checksum")
    block = data[offset:end]
    # At the end are the positions of keys that share nothing, and their number.
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise ValueError("a block is too short")
    block = block[:end]
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
    if 7 in entry:
        raise ValueError(
            f"{name} is partitioned, which is not read: load it with TensorFlow and save it in one "
            "piece"
        )
    sides = _read_message(_get(entry, 2, b"")).get(2, [])
    if len(sides) > _MAX_DIMENSIONS:
        raise ValueError(f"{name} has {len(sides):,} dimensions")
    shape = tuple(_get(_read_message(x), 1, 0) for x in sides if isinstance(x, bytes))
    kind, shard, offset, size = (_get(entry, number, 0) for number in (1, 3, 4, 5))
    dtype = _DTYPES.get(kind, f"TensorFlow's type {kind}")
    if shard >= n_shards or n_shards > 99_999:
        raise ValueError(f"{name} is in file {shard:,} of {n_shards:,}")
    if kind in _DTYPES and size != math.prod(shape) * numpy.dtype(dtype).itemsize:
        raise ValueError(f"{name} has {size:,} bytes, but is {dtype} of the shape {shape}")
    data = path.with_name(f"{path.name.removesuffix('.index')}.data-{shard:05}-of-{n_shards:05}")
    return StoredTensor(data, offset, size, _unmask(_get(entry, 6, b"")), dtype, shape)


def _check_sizes(path: Path, tensors: dict[str, StoredTensor]) -> None:
    """RAISES (ValueError): If a file of data is missing, or has not the bytes of each tensor."""
    data, n_bytes, end = None, 0, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1]):
        if tensor.path != data:
            data, end = tensor.path, 0
            if not data.is_file():
                raise ValueError(f"no such file: {data}, where {path} says that {name} is")
            n_bytes = data.stat().st_size
        if tensor.offset < end:
            raise ValueError(f"{path} says that {name} and another tensor have the same bytes")
        end = tensor.offset + tensor.size
        if end > n_bytes:
            raise ValueError(
                f"{data} has {n_bytes:,} bytes, too few for {name} of the shape {tensor.shape}: is "
                "it complete?"
            )


def _read_message(data: bytes) -> Message:
    """RETURNS (dict): The values of a protocol buffer by the number of the field: bytes, or ints of
    variable length."""
    fields: Message = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        values, kind = fields.setdefault(tag >> 3, []), tag & 7
        if kind == 0:
            number, position = _varint(data, position)
            values.append(number)
            continue
        if kind not in _FIELD_SIZES:
            raise ValueError(f"a field has the unknown type {kind}")
        size = _FIELD_SIZES[kind]
        if size is None:
            size, position = _varint(data, position)
        if position + size > len(data):
            raise ValueError("a field has an impossible length")
        values.append(data[position : position + size])
        position += size
    return fields


def _get(fields: Message, number: int, default: T) -> T:
    """RETURNS (T): The last value of a field, as protocol buffers have it."""
    value = fields.get(number, [default])[-1]
    if not isinstance(value, type(default)):
        raise ValueError(f"the field {number} has another type")
    return value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """RETURNS (tuple): A number in groups of seven bits, the lowest first, and the position after
    it."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            break
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return number, position


def _unmask(data: bytes) -> int:
    """RETURNS (int): A checksum as it was before TensorFlow masked it."""
    rotated = (int.from_bytes(data, "little") - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
