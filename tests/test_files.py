"""Atomic writes: a reader sees the old or the new contents."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spacy_elmo.files import (
    atomic_file,
    atomic_folder,
    clear_temporary,
    exclusive_lock,
    save_tensors,
)

posix = pytest.mark.skipif(os.name != "posix", reason="other systems have others")


def write(path, text, error=None):
    """Write a file, or a folder of a file "a", by its name, and perhaps fail."""
    with (atomic_file if path.name == "file" else atomic_folder)(path) as new:
        (new if path.name == "file" else new / "a").write_text(text)
        if error is not None:
            raise error


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    return tmp_path / "above" / request.param


def read(path):
    """The text of a file, or of the file in a folder, beside which there is nothing else."""
    assert list(path.parent.iterdir()) == [path]
    return (path if path.is_file() else path / "a").read_text()


def test_the_new_contents_appear_when_the_body_is_done(path, tmp_path):
    for text in ("old", "new"):
        write(path, text)
        assert read(path) == text
    with atomic_folder(tmp_path / "above" / "folder") as new:
        (new / "inner").mkdir()
        (new / "inner" / "b").write_text("new")
        assert path.exists()
    assert (tmp_path / "above" / "folder" / "inner" / "b").read_text() == "new"


def test_a_failing_body_leaves_the_old_contents_and_nothing_else(path, error=KeyboardInterrupt):
    with pytest.raises(error):
        write(path, "half", error)
    assert list(path.parent.iterdir()) == []
    write(path, "old")
    with pytest.raises(error):
        write(path, "half", error)
    assert read(path) == "old"


@posix
def test_permissions_are_those_of_new_files(tmp_path, monkeypatch):
    """The umask is left alone: it is the whole process's."""
    monkeypatch.setattr(os, "umask", None)
    (tmp_path / "plain").touch()
    (tmp_path / "plain folder").mkdir()
    write(tmp_path / "file", "x")
    with atomic_folder(tmp_path / "folder") as new:
        save_tensors({"a": torch.zeros(2)}, new / "tensors")
    modes = {x: stat.S_IMODE((tmp_path / x).stat().st_mode) for x in os.listdir(tmp_path)}
    assert modes["file"] == modes["plain"] and modes["folder"] == modes["plain folder"]
    assert stat.S_IMODE((tmp_path / "folder" / "tensors").stat().st_mode) == modes["plain"]


def test_the_target_of_a_link_is_replaced(path, tmp_path):
    disk = tmp_path / "disk" / path.name
    path.parent.mkdir()
    path.symlink_to(disk)
    for text in ("old", "new"):
        write(path, text)
        assert path.is_symlink() and read(disk) == text


def failing_sync(monkeypatch, number, on_files=True):
    """Let `os.fsync` fail with this error."""

    def fsync(handle):
        if on_files or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


def test_data_that_do_not_reach_the_disk_replace_nothing(path, monkeypatch):
    write(path, "old")
    failing_sync(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write(path, "new")
    assert read(path) == "old"


@pytest.mark.parametrize("number, on_files", [(errno.EINVAL, True), (errno.EIO, False)])
def test_file_systems_that_cannot_sync(path, monkeypatch, number, on_files):
    failing_sync(monkeypatch, number, on_files)
    write(path, "new")
    assert read(path) == "new"


def write_and_die(path, dies_after):
    """Die at a call of `os.replace`, or at the end."""
    replace, n_calls = os.replace, 0

    def replace_or_die(*arguments):
        nonlocal n_calls
        if n_calls == dies_after:
            os._exit(9)
        n_calls += 1
        replace(*arguments)

    os.replace = replace_or_die
    write(path, "new")
    os._exit(9)


@pytest.mark.forks
@pytest.mark.parametrize("dies_after", [0, 1, 2])
def test_what_a_killed_process_leaves_is_cleared(path, dies_after):
    write(path, "old")
    name, others = path.name, {"lock", "0123456789ab.txt", "x.0123456789ab.tmp", "tmp"}
    others = {f".{name}.{x}" for x in others}
    for other in others:
        (path.parent / other).write_text("the user's own")
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            write_and_die(path, dies_after)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    clear_temporary(path.parent, name)
    assert {x.name for x in path.parent.iterdir()} == {name, *others}
    for other in others:
        (path.parent / other).unlink()
    assert read(path) == ("new" if dies_after >= (1 if name == "file" else 2) else "old")


# Locks.


def test_a_lock_is_refused_while_another_process_has_it(tmp_path):
    path, program = tmp_path / ".lock", Path(__file__).parent / "programs" / "hold_lock.py"
    holder = subprocess.Popen([sys.executable, program, path], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(ValueError, match="it is in use"), exclusive_lock(path, "it is in use"):
        pass
    assert path.exists()
    holder.kill()
    holder.communicate()
    with exclusive_lock(path, "it is in use"):
        pass
    assert not path.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    """Some network file systems: a command warns, and goes on."""

    def acquire(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    with (
        pytest.warns(UserWarning, match=f"{tmp_path} has no locks"),
        exclusive_lock(tmp_path / ".lock", "") as held,
    ):
        assert held == []
