"""Unpack zip and tar archives into a temporary folder, which is removed afterwards.

The standard library keeps what it unpacks inside the folder. It trusts the sizes in headers, so
that contents far larger than the archive are refused here.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Optional

# Trained weights are hardly compressible. Vocabularies are, and very small archives.
_MAX_COMPRESSION = 16
_FREE_BYTES = 1 << 20
_MAX_FILES = 10_000
_COMPRESSED: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
# The others can inflate a small piece to gigabytes at once.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack an archive for the time of the body.

    path (Path): A zip archive, or a tar archive, which may be compressed with gzip or bzip2.
        Anything else is left as it is.
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
        try:
            unpack = _unpack_zip if _read_start(path).startswith(b"PK") else _unpack_tar
            unpack(path, folder, _MAX_COMPRESSION * path.stat().st_size + _FREE_BYTES)
        except Exception as error:  # For a damaged archive, the libraries raise any.
            reason = str(error).replace(temporary, path.name) or type(error).__name__
            raise ValueError(f"{path} cannot be unpacked: {reason}") from error
        entries = list(folder.iterdir())
        while len(entries) == 1 and entries[0].is_dir():
            folder = entries[0]
            entries = list(folder.iterdir())
        try:
            yield folder
        except ValueError as error:
            raise ValueError(str(error).replace(str(folder), str(path))) from error


def is_archive(path: Path) -> bool:
    """RETURNS (bool): Whether `unpacked` unpacks this file. A zip archive of `torch.save` is a file
    of weights."""
    if not path.is_file():
        return False
    start = _read_start(path)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        # The first file of torch.save is NAME/data.pkl.
        return not start[30:].partition(b"/")[2].startswith(b"data.pkl")
    with contextlib.suppress(Exception), _open(path) as file:
        return file.read(512)[257:262] == b"ustar"
    return False


def read_member(path: Path, name: str) -> Optional[bytes]:
    """Read a small file of a zip archive, without unpacking the others.

    RETURNS (Optional[bytes]): None if this is no zip archive, or if it has no such file.
    """
    # An error of a damaged archive is raised when its weights are read.
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        if archive.getinfo(name).compress_type in _ZIP_METHODS:
            return archive.open(name).read(_FREE_BYTES)
    return None


def _unpack_zip(path: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), len(members), limit)
        for member in members:
            if member.compress_type not in _ZIP_METHODS:
                raise ValueError(f"its compression method {member.compress_type} is not read")
            if not _is_of_macos(member.filename):
                archive.extract(member, folder)


def _unpack_tar(path: Path, folder: Path, limit: int) -> None:
    plain = folder.with_suffix(".tar")
    # tarfile reads a header of any size into memory: first the size of all is bounded.
    with _open(path) as source, plain.open("wb") as target:
        while piece := source.read(1 << 16):
            target.write(piece)
            _check_size(target.tell(), 0, limit)
    with tarfile.open(plain, "r:") as archive:
        n_bytes = 0
        for number, member in enumerate(archive, 1):
            n_bytes += member.size
            _check_size(n_bytes, number, limit)
            if not _is_of_macos(member.name):
                archive.extract(member, folder, filter="data")


def _open(path: Path) -> IO[bytes]:
    start = _read_start(path)
    openers = [opener for magic, opener in _COMPRESSED.items() if start.startswith(magic)]
    return openers[0](path) if openers else path.open("rb")


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)


def _check_size(n_bytes: int, n_files: int, limit: int) -> None:
    if n_bytes > limit or n_files > _MAX_FILES:
        raise ValueError(
            f"it has {n_bytes:,} bytes or more in {n_files:,} files, as no model of its size does: "
            "refused"
        )


def _is_of_macos(name: str) -> bool:
    """RETURNS (bool): Whether macOS has added this file."""
    *folders, last = name.split("/")
    return "__MACOSX" in folders or last.startswith("._") or last == ".DS_Store"
