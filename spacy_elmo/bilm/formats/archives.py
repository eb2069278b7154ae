"""Unpack zip and tar archives that may be damaged or malicious.

All files are unpacked into a temporary folder, which is removed afterwards. What can write outside
of it, or more than a model can need, is refused: paths that leave the folder, links, devices,
duplicates, encryption, and contents far larger than the archive.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import math
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, Any, Callable, NamedTuple, Optional

# Trained weights are hardly compressible. Vocabularies are, and very small archives.
_MAX_COMPRESSION = 16
_FREE_BYTES = 1 << 20
_MAX_FILES = 10_000
_MAX_DEPTH = 16
_MAX_PIECE = 1 << 20
_COMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
# The others can inflate a small piece to gigabytes at once.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Member(NamedTuple):
    """A file of an archive.

    name (str): Its path.
    size (int): Its declared size in bytes.
    refusal (str): Why it is not unpacked; empty if it is.
    open (Callable): Opens it for reading.
    """

    name: str
    size: int
    refusal: str
    open: Callable[[], IO[bytes]]


class BoundedFile:
    """A file that refuses to read more than 1 MiB at once, or beyond a limit. zipfile and tarfile
    trust the sizes in headers, so that a damaged header could fill the memory.

    file (IO[bytes]): The file.
    limit (int): The last position that may be read.
    """

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = limit
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self.seekable = file.seekable
        self.budget = math.inf  # Of bytes that may be read before it is set again.

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(_MAX_PIECE + 1 if size < 0 else min(size, _MAX_PIECE + 1))
        self.budget -= len(data)
        if len(data) > _MAX_PIECE or self.tell() > self._limit or self.budget < 0:
            raise ValueError("its headers are larger than those of a model can be")
        return data


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
    if (read_members := _find_reader(path)) is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="spacy-elmo-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        try:
            _unpack(path, read_members, folder)
        except Exception as error:  # Of a damaged archive, the libraries raise any.
            reason = str(error) or type(error).__name__
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
    """RETURNS (bool): Whether `unpacked` unpacks this file."""
    return _find_reader(path) is not None


def read_member(path: Path, name: str) -> Optional[bytes]:
    """Read a small file of a zip archive, without unpacking the others.

    RETURNS (Optional[bytes]): None if this is no zip archive, or if it has no such file.
    """
    if _find_reader(path) is not _read_zip:
        return None
    # An error of a damaged archive is raised when its weights are read.
    with contextlib.suppress(Exception), path.open("rb") as file:
        for member in _read_zip(file, path.stat().st_size):
            if member.name == name and not member.refusal and member.size <= _MAX_PIECE:
                return member.open().read(_MAX_PIECE)
    return None


Reader = Callable[[IO[bytes], int], Iterator[_Member]]


def _find_reader(path: Path) -> Optional[Reader]:
    """RETURNS (Optional[Callable]): What reads the members of an archive. None if it is none, or a
    zip archive of `torch.save`."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(512)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            # Its first file is NAME/data.pkl.
            return None if start[30:].partition(b"/")[2].startswith(b"data.pkl") else _read_zip
        file.seek(0)
        for magic, opener in _COMPRESSED.items():
            if start.startswith(magic):
                with contextlib.suppress(OSError, EOFError, zlib.error):
                    start = opener(file).read(512)
                return partial(_read_tar, opener) if start[257:262] == b"ustar" else None
    return partial(_read_tar, None) if start[257:262] == b"ustar" else None


def _read_zip(file: IO[bytes], limit: int) -> Iterator[_Member]:
    pieces: Any = BoundedFile(file, limit)
    with zipfile.ZipFile(pieces) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            refusal = ""
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                refusal = "is a link or a device"
            elif info.flag_bits & 1:
                refusal = "is encrypted"
            elif info.compress_type not in _ZIP_METHODS:
                refusal = f"has the compression method {info.compress_type}"
            if refusal or not info.is_dir():
                yield _Member(info.filename, info.file_size, refusal, partial(archive.open, info))


def _read_tar(
    opener: Optional[Callable[[IO[bytes]], Any]], file: IO[bytes], limit: int
) -> Iterator[_Member]:
    pieces: Any = BoundedFile(file if opener is None else opener(file), limit)
    pieces.budget = _MAX_PIECE  # For a header.
    with tarfile.open(fileobj=pieces, mode="r:") as archive:
        for info in archive:
            refusal = "" if info.isreg() else "is a link or a device"
            pieces.budget = math.inf
            if not info.isdir():
                opened: Any = partial(archive.extractfile, info)
                yield _Member(info.name, info.size, refusal, opened)
            pieces.budget = _MAX_PIECE


def _unpack(path: Path, read_members: Reader, folder: Path) -> None:
    """RAISES (ValueError): If a file is refused, without the name of the archive."""
    size = path.stat().st_size
    limit = _MAX_COMPRESSION * size + _FREE_BYTES
    names: set[str] = set()
    n_bytes = 0
    with path.open("rb") as file:
        for member in read_members(file, limit):
            shown = repr(member.name[:200])
            # The separators and drives of Windows as well.
            name = PureWindowsPath(member.name)
            if name.anchor or ".." in name.parts:
                raise ValueError(f"{shown} in it may be outside of the folder: refused")
            if len(name.parts) > _MAX_DEPTH:
                raise ValueError(f"{shown} in it is deeper than the files of a model are: refused")
            if member.refusal:
                raise ValueError(f"{shown} in it {member.refusal}: refused")
            if (key := name.as_posix().casefold()) in names:
                raise ValueError(f"{shown} is in it twice: refused")
            names.add(key)
            n_bytes += member.size
            if n_bytes > limit or len(names) > _MAX_FILES:
                raise ValueError(
                    f"with {size:,} bytes it declares {n_bytes:,} bytes or more in {len(names):,} "
                    "files, as no model does: refused"
                )
            if "__MACOSX" in name.parts or name.name.startswith("._") or name.name == ".DS_Store":
                continue  # What macOS adds.
            target = folder.joinpath(*name.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, target.open("xb") as new:
                shutil.copyfileobj(source, new, 1 << 16)
            if target.stat().st_size != member.size:
                raise ValueError(f"{shown} in it is not complete")
