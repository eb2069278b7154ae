"""A .spacy file: docs with their vectors, as layers or tokens. It is put together in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
from spacy.tokens import DocBin
from thinc.api import to_numpy

from ...extensions import move_mix_to_numpy
from ...tools.records import Progress
from .npz import DEFAULTS, PART, read_arrays, read_part, write_arrays

__all__ = ["DEFAULTS", "PART", "REFUSED", "join", "read_part", "write_part"]

REFUSED = ("id", "shard", "pool", "dtype")


def write_part(path: Path, ids: Any, rows: Iterable[tuple], checksum: str) -> None:
    """Write the docs of some rows, as bytes."""
    docs = DocBin(store_user_data=True)
    for doc, vectors, _ in rows:
        has_layers = vectors.ndim == 3
        doc._.elmo_layers = vectors if has_layers else None
        if has_layers or numpy.array_equal(vectors, to_numpy(doc._.elmo_tokens)):
            move_mix_to_numpy(doc)  # Beside it are the rows that are pooled.
        else:
            doc._.elmo_tokens = vectors
        docs.add(doc)
    write_arrays(path, {"0": numpy.frombuffer(docs.to_bytes(), "B"), "checksum": checksum}.items())


def join(parts: Sequence[Path], out: Path, progress: Progress) -> None:
    """Write the output from all parts."""
    docs = DocBin(store_user_data=True)
    for array in read_arrays(parts):  # One for each part.
        new = DocBin(store_user_data=True).from_bytes(array.tobytes())
        docs.merge(new)
        if progress is not None:
            progress(len(new))
    docs.to_disk(out)
