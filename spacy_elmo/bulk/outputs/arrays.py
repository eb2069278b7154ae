"""Parts of arrays, each an .npz archive: one for each row by its number, "texts" and "checksum"."""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import numpy
from numpy.lib.format import write_array
from spacy.tokens import Doc

DEFAULTS = {"layers": "all", "pool": "none", "dtype": "float32"}
PART = ".npz"
# All that zipfile and NumPy raise for damaged files.
_DAMAGED = (
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    OSError,
    zlib.error,
)


def write_arrays(path: Path, arrays: Iterable[tuple[str, Any]]) -> None:
    """Write an .npz archive from a stream. The same arrays have the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays:
            # ZipInfo has a fixed time.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                write_array(file, numpy.asanyarray(array))


def write_part(path: Path, block: Any, rows: Iterable[tuple], checksum: str) -> None:
    """Write the vectors of a block. A null has those of an empty text."""

    def arrays() -> Iterator[tuple[str, Any]]:
        yield from ((str(number), vectors) for number, (_, vectors, _) in enumerate(rows))
        yield "texts", json.dumps(list(map(_text, block.texts)))
        yield "checksum", checksum

    write_arrays(path, arrays())


@contextlib.contextmanager
def _open_part(path: Path) -> Iterator[Any]:
    """YIELDS (NpzFile): A part. RAISES (ValueError): If it is missing or damaged."""
    try:
        with numpy.load(path) as part:
            yield part
    except _DAMAGED as error:
        raise ValueError(
            f"{path} is damaged: remove it, and the same command computes it again"
        ) from error


def read_part(path: Path) -> Optional[str]:
    """RETURNS (Optional[str]): The checksum of a part; None if it is missing or damaged."""
    with contextlib.suppress(ValueError), _open_part(path) as part:
        return str(part["checksum"])
    return None


def read_arrays(path: Path) -> Iterator[numpy.ndarray]:
    """YIELDS (ndarray): The arrays of a part, in the order of its rows."""
    with _open_part(path) as part:
        yield from (part[name] for name in part.files if name.isdigit())


def read_texts(path: Path) -> list[str]:
    """RETURNS (list): The texts of a part; tokens are joined by spaces."""
    with _open_part(path) as part:
        return json.loads(str(part["texts"]))


def _text(row: Any) -> str:
    if isinstance(row, Doc):
        row = row.text
    return row.strip() if isinstance(row, str) else " ".join(row or ())
