"""An archive of NumPy: an array for each row, named by its number, from 0. A part is one, too, with
"texts" and "checksum". Other outputs that are joined have the same parts."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy
from numpy.lib.format import write_array

from ...tools.records import Progress

DEFAULTS = {"layers": "all", "pool": "none", "dtype": "float32"}
REFUSED: tuple[str, ...] = ("id", "shard")
PART = ".npz"


def write_arrays(path: Path, arrays: Iterable[tuple[object, Any]]) -> None:
    """Write an .npz archive from a stream. The same arrays have the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                write_array(file, numpy.asanyarray(array))


def write_part(path: Path, ids: Any, rows: Iterable[tuple], checksum: str) -> None:
    """Write the vectors of some rows. A null has those of an empty text."""
    texts: list[str] = []

    def arrays() -> Iterator[tuple[object, Any]]:
        for number, (doc, vectors, _) in enumerate(rows):
            texts.append(doc.text.strip())
            yield number, vectors
        yield "texts", json.dumps(texts)
        yield "checksum", checksum

    write_arrays(path, arrays())


@contextlib.contextmanager
def _open_part(path: Path) -> Iterator[Any]:
    try:
        with numpy.load(path) as part:
            yield part
    except Exception as error:  # zipfile, zlib and NumPy have many for damaged files.
        raise ValueError(f"{path} is damaged: remove it, and run the command again") from error


def read_part(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): The checksum of a part; None if it is missing or damaged."""
    with contextlib.suppress(ValueError), _open_part(path) as part:
        return str(part["checksum"])
    return None


def read_arrays(parts: Sequence[Path], progress: Progress = None) -> Iterator[numpy.ndarray]:
    """YIELDS (ndarray): The arrays of all rows; after each, `progress` is called with 1."""
    for path in parts:
        with _open_part(path) as part:
            for name in filter(str.isdigit, part.files):
                yield part[name]
                if progress is not None:
                    progress(1)


def read_texts(parts: Sequence[Path]) -> Iterator[str]:
    """YIELDS (str): The texts of all rows, without spaces around them."""
    for path in parts:
        with _open_part(path) as part:
            yield from json.loads(str(part["texts"]))


def join(parts: Sequence[Path], out: Path, progress: Progress) -> None:
    """Write the output from all parts."""
    write_arrays(out, enumerate(read_arrays(parts, progress)))
