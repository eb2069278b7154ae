"""An archive of NumPy: an array for each row, named by its number, from 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from .arrays import DEFAULTS, PART, read_arrays, read_part, write_arrays, write_part

__all__ = ["DEFAULTS", "PART", "REFUSED", "join", "read_part", "write_part"]

REFUSED = ("ids", "shard")


def join(parts: Sequence[Path], out: Path) -> None:
    """Write the output from all parts."""
    arrays = chain.from_iterable(map(read_arrays, parts))
    write_arrays(out, ((str(number), array) for number, array in enumerate(arrays)))
