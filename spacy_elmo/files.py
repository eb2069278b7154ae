"""Writing files and folders so that a reader sees the old one or the new one, never a half; telling
whether they have changed; locking them; tensors in files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Optional

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the place of `path` if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _give_default_mode(temporary)
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes the place of `path` if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        new = temporary / "new"
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                _give_default_mode(file)
                _sync(file)
        # Folders cannot change places in one step: the old one steps aside, and returns if the new
        # one cannot take its place.
        old = temporary / "old"
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256(path: Path) -> str:
    """RETURNS (str): The checksum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path, otherwise: str) -> Iterator[IO]:
    """Create a file and keep it locked, so that one process at a time uses what it stands for.

    Where the system has no such locks, two runs are the user's to avoid.

    otherwise (str): What to say if another process has locked it.
    RAISES (ValueError): If one has.
    """
    with path.open("w") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(otherwise) from None
        yield file


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Optional[dict[str, str]] = None
) -> None:
    """Write a safetensors file. RAISES (OSError): If it cannot be written."""
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:  # Theirs, for a full disk, too.
        raise OSError(f"cannot write {path}: {error}") from error


def _give_default_mode(path: Path) -> None:
    """Temporary files are private, and so are those of safetensors; give this one what an ordinary
    new file would get."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open folders.
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
