"""Vectors as columns of Apache Arrow (the extra `arrow`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Optional

import numpy


def import_arrow() -> Any:
    """RETURNS (module): pyarrow. RAISES (ValueError): If it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f'Arrow and Parquet need pyarrow: pip install "spacy-elmo[arrow]" ({error})'
        ) from error
    return pyarrow


def vectors_to_arrow(vectors: Sequence[Optional[numpy.ndarray]]) -> Any:
    """Make a column of vectors.

    vectors (Sequence): For each row shape (width,), (tokens, width) or (L+1, tokens, width), or
        None for null; one at least is not None.
    RETURNS (Array): Lists of the fixed size `width`, inside lists for tokens and for layers.
    """
    arrow = import_arrow()
    rows = [row for row in vectors if row is not None]
    flat = numpy.concatenate([row.reshape(-1) for row in rows])
    column = arrow.FixedSizeListArray.from_arrays(flat, rows[0].shape[-1])
    # From the inside out: the lists of tokens, then those of layers.
    if rows[0].ndim == 3:
        column = _lists(column, [row.shape[1] for row in rows for _ in row])
    if rows[0].ndim >= 2:
        column = _lists(column, [len(row) for row in rows])
    if len(rows) == len(vectors):
        return column
    numbers = count()
    return column.take(
        arrow.array([None if row is None else next(numbers) for row in vectors], arrow.int64())
    )


def _lists(values: Any, lengths: Sequence[int]) -> Any:
    offsets = numpy.cumsum([0, *lengths], dtype=numpy.int32)
    return import_arrow().ListArray.from_arrays(offsets, values)
