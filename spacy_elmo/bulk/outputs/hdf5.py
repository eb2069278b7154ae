"""HDF5 as bilm-tf's `dump_bilm_embeddings` and AllenNLP's command `elmo` write it: a dataset for
each row, named by its number, from 0, and `sentence_to_index`, JSON of the number of each text."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import h5py

from .arrays import DEFAULTS, PART, read_arrays, read_part, read_texts, write_part

__all__ = ["DEFAULTS", "PART", "REFUSED", "join", "read_part", "write_part"]

REFUSED = ("ids", "shard")


def join(parts: Sequence[Path], out: Path) -> None:
    """Write the output from all parts."""
    texts = chain.from_iterable(map(read_texts, parts))
    numbers = {text: str(number) for number, text in enumerate(texts)}
    arrays = chain.from_iterable(map(read_arrays, parts))
    with _NonFailingFile(out, "w+") as raw:
        with h5py.File(raw, "w") as file:
            for number, array in enumerate(arrays):
                file[str(number)] = array
                if raw.error is not None:
                    break
            text = [json.dumps(numbers)]
            file.create_dataset("sentence_to_index", data=text, dtype=h5py.string_dtype())
        if raw.error is not None:
            raise raw.error


class _NonFailingFile(io.FileIO):
    """A file for the HDF5 library, which crashes if it cannot write, as on a full disk.

    error (Optional[OSError]): The first error, which the library does not see.
    """

    error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        n_written = 0
        try:
            while self.error is None and n_written < len(view):
                n_written += super().write(view[n_written:])
        except OSError as error:
            self.error = error
        return len(view)

    def truncate(self, size: Optional[int] = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
