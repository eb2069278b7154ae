"""Vectors as columns of Apache Arrow (the extra `arrow`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def vectors_to_arrow(vectors: Sequence[numpy.ndarray], is_null: Sequence[bool]) -> Any:
    """Make a column of vectors.

    vectors (Sequence[ndarray]): For each row shape (width,), (n, width) or (m, n, width); one row
        at least.
    is_null (Sequence[bool]): Which rows become null.
    RETURNS (Array): Lists of the fixed size `width`, inside lists for tokens and for layers.
    """
    arrow = import_arrow()
    flat = numpy.concatenate([row.reshape(-1) for row in vectors])
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors[0].shape[-1])
    # From the inside out.
    if vectors[0].ndim == 3:
        column = _lists(column, [row.shape[1] for row in vectors for _ in row])
    if vectors[0].ndim >= 2:
        column = _lists(column, list(map(len, vectors)))
    if not any(is_null):
        return column
    numbers = [None if null else number for number, null in enumerate(is_null)]
    return column.take(arrow.array(numbers, arrow.int64()))


def _lists(values: Any, lengths: Sequence[int]) -> Any:
    offsets = numpy.cumsum([0, *lengths], dtype=numpy.int32)
    return import_arrow().ListArray.from_arrays(offsets, values)
