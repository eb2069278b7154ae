"""Atomic writes of files and folders, locks, checksums, safetensors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import os
import re
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

# Names of temporary files and folders, beside what they will replace.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
# The contents of a temporary folder.
_NEW, _OLD = "new", "old"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` if the body succeeds. If `path` is
    a link, its target is replaced."""
    path, temporary = _prepare(path)
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `path` if the body succeeds. If `path` is a link,
    its target is replaced."""
    path, temporary = _prepare(path)
    try:
        new, old = temporary / _NEW, temporary / _OLD
        new.mkdir(parents=True)
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                sync(file)
        if not path.exists():
            os.replace(new, path)
        elif not _exchange(new, path):
            # Move the old one away, and back if the new one cannot be moved. After a kill in
            # between, `clear_temporary` moves it back.
            os.replace(path, old)
            try:
                os.replace(new, path)
            except BaseException:
                os.replace(old, path)
                raise
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it exists, as a whole: what a kill leaves of it has a temporary name."""
    path, temporary = _prepare(path)
    with contextlib.suppress(OSError):
        os.replace(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def clear_temporary(folder: Path, name: Optional[str] = None) -> None:
    """Remove the temporary files and folders of killed processes. No other process may be writing
    there.

    folder (Path): The folder that holds them.
    name (Optional[str]): The name of the file or folder that they were to replace; None for all.
    """
    for path in folder.glob(f".{'*' if name is None else glob.escape(name)}.*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or name not in (None, match["name"]):
            continue
        old, target = path / _OLD, folder / match["name"]
        if old.exists() and not target.exists():
            os.replace(old, target)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _prepare(path: Path) -> tuple[Path, Path]:
    """RETURNS (tuple): The target of a path, and a temporary path beside it. Makes their folder."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two paths in one step. RETURNS (bool): Whether the system supports it."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):  # Not Linux; Windows; an old C library.
        return False
    at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # The kernel, or the file system.
        return False
    raise OSError(number, os.strerror(number), str(second))


def sha256(path: Path) -> str:
    """RETURNS (str): The checksum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked_output(path: Path) -> Iterator[None]:
    """Lock an output, and remove the temporary files of killed runs beside it.

    path (Path): The file or folder to write.
    RAISES (ValueError): If another run is writing it.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    message = f"another run is writing {path}: wait for it, or choose another path"
    with exclusive_lock(lock, message):
        clear_temporary(path.parent, path.name)
        yield


@contextlib.contextmanager
def exclusive_lock(path: Path, message: str) -> Iterator[list[int]]:
    """Create a file and lock it. At the end the file is removed. A killed process leaves the file,
    but not the lock.

    On a file system without locks nothing is locked, and a warning says so.

    path (Path): The file.
    message (str): The error if another process has locked it.
    YIELDS (list[int]): The descriptor, if there is a lock. A child process that inherits it keeps
        the lock if this one is killed.
    RAISES (ValueError): If another process has locked it.
    """
    held: list[int] = []
    lock = FileLock(path, thread_local=False, on_acquired=held.append)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(message) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"the file system of {path.parent} has no locks: let no two runs write there at once",
            stacklevel=3,
        )
    try:
        yield held
    finally:
        if os.name == "posix":  # Elsewhere filelock removes it.
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

    RAISES (OSError): If they cannot be written. Some systems report a full disk only here.
    """
    # Windows syncs only files that are open for writing, and cannot open folders.
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    try:
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Not every file system supports it.
        if not (path.is_dir() or error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
