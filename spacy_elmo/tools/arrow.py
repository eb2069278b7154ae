"""Vectors as columns of Apache Arrow (the extra `arrow`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

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


def vectors_to_arrow(vectors: Union[numpy.ndarray, Sequence[numpy.ndarray]]) -> Any:
    """Make a column of vectors.

    vectors (Union[ndarray, Sequence]): Shape (rows, width); or for each row (tokens, width) or
        (L+1, tokens, width), at least one.
    RETURNS (Array): Lists of the fixed size `width`, inside lists for tokens and for layers.
    """
    arrow = import_arrow()
    if isinstance(vectors, numpy.ndarray):
        return arrow.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    flat = numpy.concatenate([row.reshape(-1) for row in vectors])
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors[0].shape[-1])
    # From the inside out: the lists of tokens, then those of layers.
    if vectors[0].ndim == 3:
        column = _lists(column, [row.shape[1] for row in vectors for _ in row])
    return _lists(column, [len(row) for row in vectors])


def _lists(values: Any, lengths: Sequence[int]) -> Any:
    offsets = numpy.cumsum([0, *lengths], dtype=numpy.int32)
    return import_arrow().ListArray.from_arrays(offsets, values)
