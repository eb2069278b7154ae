"""Atomic writes of files and folders, locks, checksums, safetensors."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path`, or the target of a link, if it succeeds."""
    path, temporary = _prepare(path)
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        _discard(temporary, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path`, or the target of a link, if it succeeds."""
    path, temporary = _prepare(path)
    try:
        new = temporary / "new"
        new.mkdir(parents=True)
        yield new
        for file in filter(Path.is_file, new.rglob("*")):
            sync(file)
        if path.exists():
            os.replace(path, temporary / "old")
        os.replace(new, path)
        sync(path.parent)
    finally:
        _discard(temporary, path)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it exists, as a whole: what a kill leaves of it has a temporary name."""
    path, temporary = _prepare(path)
    with contextlib.suppress(OSError):
        os.replace(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def clear_temporary(folder: Path, name: Optional[str] = None) -> None:
    """Remove the temporary files and folders of killed processes in a folder, all or those that
    were to replace `name`, and restore what they had moved away. Nobody may be writing there."""
    pattern = "*" if name is None else glob.escape(name)
    for path in folder.glob(f".{pattern}.{'[0-9a-f]' * 12}.tmp"):
        _discard(path, folder / path.name[1 : -len(".0123456789ab.tmp")])


def _prepare(path: Path) -> tuple[Path, Path]:
    """RETURNS (tuple): The target of a path, and a temporary path beside it. Makes their folder."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _discard(temporary: Path, path: Path) -> None:
    old = temporary / "old"
    if old.exists() and not path.exists():  # The new one did not take its place.
        os.replace(old, path)
    shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(OSError):
        temporary.unlink()


def sha256(path: Path) -> str:
    """RETURNS (str): The checksum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked_output(path: Path) -> Iterator[None]:
    """Lock a file or folder to write, and remove the temporary files of killed runs beside it.
    RAISES (ValueError): If another run is writing it."""
    path, _ = _prepare(path)
    message = f"another run is writing {path}: wait for it, or choose another path"
    with exclusive_lock(path.with_name(f".{path.name}.lock"), message):
        clear_temporary(path.parent, path.name)
        yield


@contextlib.contextmanager
def exclusive_lock(path: Path, message: str) -> Iterator[list[int]]:
    """Create a file and lock it. At the end the file is removed. A killed process leaves the file,
    but not the lock.

    YIELDS (list[int]): The descriptor. A child process that inherits it keeps the lock if this one
        is killed. Empty, with a warning, if the file system has no locks.
    RAISES (ValueError): This message, if another process has locked it.
    """
    held: list[int] = []
    lock = FileLock(path, thread_local=False, on_acquired=held.append)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(message) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
        message = f"the file system of {path.parent} has no locks: let no other run write there"
        warnings.warn(message, stacklevel=2)
    try:
        yield held
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Optional[dict[str, str]] = None
) -> None:
    """Write a safetensors file. RAISES (OSError): If it cannot be written."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:  # safetensors has its own error, even for a full disk.
        raise OSError(f"cannot write {path}: {error}") from error
    path.chmod(mode)  # safetensors makes its files private.


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on the disk.
    RAISES (OSError): If they cannot be written. Some systems report a full disk only here."""
    if os.name != "posix":  # Windows opens no folder, and syncs no file that is open for reading.
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not path.is_dir() and error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
