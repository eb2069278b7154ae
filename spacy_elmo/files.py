"""Writing files and folders so that a reader sees the old one or the new one, never a half; telling
whether they have changed; locking them; tensors in files."""

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Optional

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

# What temporary files and folders are called, beside what they will replace.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
# What file systems say that have no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
# The parts of a temporary folder.
_NEW, _OLD = "new", "old"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the place of `path` if the body succeeds. If
    `path` is a link, its target is replaced."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes the place of `path` if the body succeeds. If
    `path` is a link, its target is replaced."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        new, old = temporary / _NEW, temporary / _OLD
        new.mkdir(parents=True)
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                _sync(file)
        if not path.exists():
            os.replace(new, path)
        elif not _exchange(new, path):
            # The old one steps aside, and returns if the new one cannot take its place. After a
            # kill in between, `clear_temporary` puts it back.
            os.replace(path, old)
            try:
                os.replace(new, path)
            except BaseException:
                os.replace(old, path)
                raise
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def clear_temporary(folder: Path, name: Optional[str] = None) -> None:
    """Remove the temporary files and folders that killed processes have left. Call it only while
    no other process writes there.

    folder (Path): Where they are.
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


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _exchange(first: Path, second: Path) -> bool:
    """Let two paths change places in one step. RETURNS (bool): Whether the system can do that."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):  # Not Linux; Windows; an old C library.
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
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
    """Keep a second run away from an output, and remove what killed ones have left beside it.

    path (Path): The file or folder to write.
    RAISES (ValueError): If another run is writing it.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock, f"another run is writing {path}: wait for it, or choose another path"):
        clear_temporary(path.parent, path.name)
        yield


@contextlib.contextmanager
def locked(path: Path, otherwise: str) -> Iterator[IO]:
    """Create a file and keep it locked, so that one process at a time uses what it stands for. In
    the end, the file is removed, unless a child that has inherited it still runs. A killed process
    leaves the file, but not the lock.

    Where the system has no such locks, two runs are the user's to avoid.

    otherwise (str): What to say if another process has locked it.
    RAISES (ValueError): If one has.
    """
    file = _lock(path)
    if file is None:
        raise ValueError(otherwise)
    try:
        with file:
            yield file
    finally:
        # Only the one who has the lock may remove the file: it may be a child's or the next one's.
        with contextlib.suppress(OSError):
            if file := _lock(path):
                with file:
                    if os.name == "posix":  # Windows removes no file that is open.
                        path.unlink()


def _lock(path: Path) -> Optional[IO]:
    """RETURNS (Optional[IO]): The file, locked if the system can do that; None if it is locked
    already."""
    while True:
        file = path.open("w")
        if os.name != "posix":
            return file
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return file
            file.close()
            raise
        # Whoever had the lock has removed the file since it was opened here.
        file.close()


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Optional[dict[str, str]] = None
) -> None:
    """Write a safetensors file. RAISES (OSError): If it cannot be written."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:  # Theirs, for a full disk, too.
        raise OSError(f"cannot write {path}: {error}") from error
    path.chmod(mode)  # Their files are private; ours are like any new file.


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    RAISES (OSError): If the data of a file cannot be written: some systems notice only here that
        the disk is full.
    """
    # Windows can do it only for what is open for writing, and cannot open folders.
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    try:
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Not every file system can do it.
        if not (path.is_dir() or error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
