"""CRC-32C, the checksum of TensorFlow's files (Castagnoli's polynomial; RFC 3720, section 12.1).

Python has no function for it. A loop over bytes would take minutes for the weights of a biLM, so
that NumPy reduces the data to a few thousand bytes with the same checksum first.
"""

from __future__ import annotations

from typing import Any

import numpy

_POLYNOMIAL = 0x82F63B78  # Its bits reversed, as the checksum's are.
# Data are a polynomial over the field of two elements. The polynomial of the checksum divides
# y^_A + y^_B + y^_C + 1 with y = x^32, so that a word of 32 bits can be moved to three places
# behind it, and the remainder stays the same. Found by a search for a small _A with _B < _A / 2.
_A, _B, _C = 5685, 1362, 426
# Words that can be moved at a time, since none of them is moved onto another.
_BLOCK = _A - _B
_CHUNK = 1 << 23  # Words that are copied at a time.


def _make_table() -> list[int]:
    table = numpy.arange(256, dtype="uint32")
    for _ in range(8):
        table = (table >> 1) ^ (table & 1) * numpy.uint32(_POLYNOMIAL)
    return table.tolist()


_TABLE = _make_table()


def crc32c(data: Any) -> int:
    """RETURNS (int): The checksum of bytes, or of an array's, which must be contiguous."""
    values = numpy.frombuffer(data, "uint8")
    n_first = len(values) % 4
    crc = _update(0xFFFFFFFF, values[:n_first])
    words = values[n_first:].view("<u4")
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK].copy()
        chunk[0] ^= crc
        n_moved = max(0, len(chunk) - _A)
        for first in range(0, n_moved, _BLOCK):
            block = chunk[first : min(first + _BLOCK, n_moved)]
            for distance in (_A - _B, _A - _C, _A):
                chunk[first + distance :][: len(block)] ^= block
        crc = _update(0, chunk[n_moved:].view("uint8"))
    return crc ^ 0xFFFFFFFF


def _update(crc: int, values: numpy.ndarray) -> int:
    for value in values.tolist():
        crc = _TABLE[(crc ^ value) & 255] ^ crc >> 8
    return crc
