"""Unpack zip and tar archives into a temporary folder, which is removed afterwards.

The standard library keeps what it unpacks inside the folder, but for links of some versions of
Python (CVE-2025-4517): links are refused. It trusts the sizes in headers, so that contents far
larger than the archive are refused, too.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

# Trained weights are hardly compressible. Vocabularies are, and very small archives.
_MAX_COMPRESSION = 16
_FREE_BYTES = 1 << 20
_FILE_BYTES = 4096  # What each file takes beside its contents.
# The others can inflate a small piece to gigabytes at once.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Files that macOS adds.
_MACOS = re.compile(r"(.*/)?(__MACOSX/|\._|\.DS_Store)", re.DOTALL)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack an archive for the time of the body.

    path (Path): A zip archive, or a tar archive, which may be compressed with gzip.
    YIELDS (Path): The folder with its files; without the folders that hold only one other folder.
        The path itself if it is no archive.
    RAISES (ValueError): If the archive is damaged or refused. Messages of the body name the archive
        instead of the temporary folder.
    """
    if not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="spacy-elmo-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "files"
        folder.mkdir()
        try:
            _unpack(path, folder)
            while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
                folder = entries[0]
        except Exception as error:  # For a damaged archive, the libraries raise any.
            reason = str(error).replace(temporary, path.name) or type(error).__name__
            raise ValueError(f"{path} cannot be unpacked: {reason}") from error
        try:
            yield folder
        except ValueError as error:
            raise ValueError(str(error).replace(str(folder), str(path))) from error


def is_archive(path: Path) -> bool:
    """RETURNS (bool): Whether `unpacked` unpacks this file. A zip archive of `torch.save` is a file
    of weights."""
    if not path.is_file():  # To open a named pipe would wait.
        return False
    with contextlib.suppress(Exception), _open(path) as file:
        start = file.read(512)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            # The first file of torch.save is NAME/data.pkl.
            return not start[30:].partition(b"/")[2].startswith(b"data.pkl")
        return start[257:262] == b"ustar"
    return False


def _unpack(path: Path, folder: Path) -> None:
    limit = _MAX_COMPRESSION * path.stat().st_size + _FREE_BYTES
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"  # A tar archive with a zip archive in it may end like one.
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            files = archive.infolist()
            is_inflated = any(x.compress_type not in _ZIP_METHODS for x in files)
            _check_sizes([limit * is_inflated, *(x.file_size for x in files)], limit)
            archive.extractall(folder, [x for x in files if not _MACOS.match(x.filename)])
        return
    # tarfile reads a header of any size into memory: first the size of all is bounded.
    plain = folder.with_suffix(".tar")
    with _open(path) as source, plain.open("wb") as target:
        while piece := source.read(1 << 16):
            target.write(piece)
            _check_sizes([target.tell()], limit)
    with tarfile.open(plain, "r:") as tar:
        members = tar.getmembers()
        _check_sizes([x.size for x in members], limit)
        members = [x for x in members if not _MACOS.match(x.name)]
        if others := [x.name for x in members if not (x.isreg() or x.isdir())]:
            raise ValueError(f"{others[0]} is a link, or no file: unpack it yourself")
        tar.extractall(folder, members, filter="data")


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path)) if is_packed else path.open("rb")


def _check_sizes(sizes: list[int], limit: int) -> None:
    if sum(sizes) + _FILE_BYTES * len(sizes) > limit:
        raise ValueError(f"it holds more than {limit:,} bytes, as no model of its size does")
