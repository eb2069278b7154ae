"""Atomic writes: a reader sees the old or the new contents."""

import contextlib
import ctypes
import errno
import gc
import os
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from spacy_elmo.files import (
    atomic_file,
    atomic_folder,
    clear_temporary,
    exclusive_lock,
    save_tensors,
)


class Interrupted(Exception):
    pass


def contents(folder):
    """Every file below a folder, hidden ones too, with its text."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def write_folder(path, **files):
    with atomic_folder(path) as new:
        for name, text in files.items():
            (new / name).write_text(text)


# Files.


def test_a_file_appears_when_the_body_is_done(tmp_path):
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "file").exists()
    assert contents(tmp_path) == {"file": "new"}


def test_a_file_is_replaced_when_the_body_is_done(tmp_path):
    (tmp_path / "file").write_text("old")
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
        assert (tmp_path / "file").read_text() == "old"
    assert contents(tmp_path) == {"file": "new"}


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_a_failing_body_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "file").write_text("old")
    with pytest.raises(error), atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise error
    assert contents(tmp_path) == {"file": "old"}


def test_a_failing_body_leaves_no_new_file(tmp_path):
    with pytest.raises(Interrupted), atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise Interrupted
    assert list(tmp_path.iterdir()) == []


def test_folders_above_a_file_are_made(tmp_path):
    with atomic_file(tmp_path / "a" / "b" / "file") as temporary:
        temporary.write_text("new")
    assert contents(tmp_path) == {"a/b/file": "new"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_gets_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("x")
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("x")
    plain, atomic = (stat.S_IMODE((tmp_path / x).stat().st_mode) for x in ("plain", "file"))
    assert atomic == plain


def test_the_temporary_file_is_in_the_same_folder(tmp_path):
    """Only then can it take the place of the old one in one step."""
    with atomic_file(tmp_path / "file") as temporary:
        assert temporary.parent == tmp_path


# Folders.


def test_a_folder_appears_when_the_body_is_done(tmp_path):
    with atomic_folder(tmp_path / "folder") as new:
        (new / "inner").mkdir()
        (new / "inner" / "file").write_text("new")
        assert not (tmp_path / "folder").exists()
    assert contents(tmp_path) == {"folder/inner/file": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    write_folder(tmp_path / "folder", a="old", b="old")
    write_folder(tmp_path / "folder", a="new")
    assert contents(tmp_path) == {"folder/a": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_old_folder_stays_until_the_body_is_done(tmp_path):
    write_folder(tmp_path / "folder", a="old")
    with atomic_folder(tmp_path / "folder") as new:
        (new / "a").write_text("new")
        assert contents(tmp_path / "folder") == {"a": "old"}


def system_without_exchange(monkeypatch, number=None):
    """A C library without `renameat2`; or one whose `renameat2` fails with an error."""
    library = SimpleNamespace()
    if number is not None:
        library.renameat2 = lambda *args: -1
        monkeypatch.setattr(ctypes, "get_errno", lambda: number)
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **others: library)


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EINVAL])
def test_a_folder_is_replaced_on_systems_that_cannot_exchange(tmp_path, monkeypatch, number):
    """macOS, Windows, old kernels, and file systems such as NFS."""
    system_without_exchange(monkeypatch, number)
    write_folder(tmp_path / "folder", a="old", b="old")
    write_folder(tmp_path / "folder", a="new")
    assert contents(tmp_path) == {"folder/a": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    system_without_exchange(monkeypatch)
    write_folder(tmp_path / "folder", a="old")
    moves, replace = [], os.replace

    def failing(source, target):
        moves.append(source)
        if len(moves) == 2:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(PermissionError):
        write_folder(tmp_path / "folder", a="new")
    assert len(moves) == 3 and contents(tmp_path) == {"folder/a": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_exchange_that_fails_changes_nothing(tmp_path, monkeypatch):
    system_without_exchange(monkeypatch, errno.EIO)
    write_folder(tmp_path / "folder", a="old")
    with pytest.raises(OSError, match="folder") as error:
        write_folder(tmp_path / "folder", a="new")
    assert error.value.errno == errno.EIO and contents(tmp_path) == {"folder/a": "old"}


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_a_failing_body_leaves_the_old_folder_and_nothing_else(tmp_path, error):
    write_folder(tmp_path / "folder", a="old")
    with pytest.raises(error), atomic_folder(tmp_path / "folder") as new:
        (new / "a").write_text("half")
        raise error
    assert contents(tmp_path) == {"folder/a": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failing_body_leaves_no_new_folder(tmp_path):
    with pytest.raises(Interrupted), atomic_folder(tmp_path / "folder") as new:
        (new / "a").write_text("half")
        raise Interrupted
    assert list(tmp_path.iterdir()) == []


def test_folders_above_a_folder_are_made(tmp_path):
    write_folder(tmp_path / "a" / "b", file="new")
    assert contents(tmp_path) == {"a/b/file": "new"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_folder_gets_the_permissions_of_any_new_folder(tmp_path):
    (tmp_path / "plain").mkdir()
    write_folder(tmp_path / "folder")
    plain, atomic = (stat.S_IMODE((tmp_path / x).stat().st_mode) for x in ("plain", "folder"))
    assert atomic == plain


def test_the_umask_is_left_alone(tmp_path, monkeypatch):
    """It is the whole process's: while it is changed, other threads create files that anybody may
    write to."""

    def umask(mask):
        raise AssertionError("the umask is not to be touched")

    monkeypatch.setattr(os, "umask", umask)
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("x")
    with atomic_folder(tmp_path / "folder") as new:
        save_tensors({"a": torch.zeros(2)}, new / "tensors")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_tensors_get_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_folder(tmp_path / "folder") as new:
        save_tensors({"a": torch.zeros(2)}, new / "tensors")
    plain, tensors = ((tmp_path / x).stat().st_mode for x in ("plain", "folder/tensors"))
    assert tensors == plain


@pytest.mark.skipif(sys.platform != "linux", reason="folders cannot be exchanged in one step")
def test_a_folder_is_never_without_its_name(tmp_path):
    write_folder(tmp_path / "folder", a="0")
    missing, stop = 0, threading.Event()

    def replace():
        for number in range(300):
            write_folder(tmp_path / "folder", a=str(number))
        stop.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not stop.is_set():
        missing += not os.path.lexists(tmp_path / "folder")
    thread.join()
    assert not missing


@pytest.mark.parametrize("exists", [False, True])
def test_the_target_of_a_link_is_replaced(tmp_path, exists):
    (tmp_path / "disk").mkdir()
    for kind in ("file", "folder"):
        (tmp_path / kind).symlink_to(tmp_path / "disk" / kind)
    if exists:
        (tmp_path / "disk" / "file").write_text("old")
        write_folder(tmp_path / "disk" / "folder", b="old")
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
    write_folder(tmp_path / "folder", a="new")
    assert (tmp_path / "file").is_symlink() and (tmp_path / "folder").is_symlink()
    assert contents(tmp_path / "disk") == {"file": "new", "folder/a": "new"}
    assert len(list((tmp_path / "disk").iterdir())) == 2


def failing_sync(monkeypatch, number, on_files=True, on_folders=True):
    """Let `os.fsync` fail with this error."""
    real = os.fsync

    def fsync(handle):
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        if on_folders if is_folder else on_files:
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_data_that_do_not_reach_the_disk_replace_nothing(tmp_path, monkeypatch, number):
    (tmp_path / "file").write_text("old")
    write_folder(tmp_path / "folder", a="old")
    failing_sync(monkeypatch, number)
    with pytest.raises(OSError) as error, atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert error.value.errno == number
    with pytest.raises(OSError):
        write_folder(tmp_path / "folder", a="new")
    assert contents(tmp_path) == {"file": "old", "folder/a": "old"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "number, on_files", [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)]
)
def test_file_systems_that_cannot_sync(tmp_path, monkeypatch, number, on_files):
    failing_sync(monkeypatch, number, on_files=on_files)
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
    write_folder(tmp_path / "folder", a="new")
    assert contents(tmp_path) == {"file": "new", "folder/a": "new"}


def in_fork(function):
    """Run a function in a forked process that must end by itself, without any clean-up."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            function()
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def write_and_die(path, kind, dies_after):
    """Die at a call of `os.replace`, or at the end, on a system that cannot exchange folders."""
    replace, n_calls = os.replace, 0

    def replace_or_die(*arguments):
        nonlocal n_calls
        if n_calls == dies_after:
            os._exit(9)
        n_calls += 1
        replace(*arguments)

    def no_library(*arguments, **settings):
        raise OSError("no C library")

    os.replace, ctypes.CDLL = replace_or_die, no_library
    with (atomic_file if kind == "file" else atomic_folder)(path) as new:
        (new if kind == "file" else new / "a").write_text("new")
    os._exit(9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("dies_after", [0, 1, 2])
def test_what_a_killed_process_leaves_is_cleared(tmp_path, kind, dies_after):
    """Also where folders cannot be exchanged in one step."""
    target = tmp_path / "target"
    if kind == "folder":
        write_folder(target, a="old")
    else:
        target.write_text("old")
    others = [".target.lock", ".target.0123456789ab.txt", ".target2.0123456789ab.tmp", ".target"]
    for name in others:
        (tmp_path / name).write_text("the user's own")
    in_fork(lambda: write_and_die(target, kind, dies_after))
    clear_temporary(tmp_path, "target")
    assert {path.name for path in tmp_path.iterdir()} == {"target", *others}
    actual = target.read_text() if kind == "file" else (target / "a").read_text()
    assert actual == ("new" if dies_after >= (1 if kind == "file" else 2) else "old")


def test_clearing_all_of_a_folder(tmp_path):
    for name in (".a.0123456789ab.tmp", ".b.0123456789ab.tmp", ".a.tmp", ".hidden"):
        (tmp_path / name).mkdir()
    clear_temporary(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tmp", ".hidden"}


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


def test_a_lock_whose_file_is_removed_meanwhile_is_one_lock(tmp_path):
    """Many threads, each of which removes the file in the end."""
    path, inside, most, taken = tmp_path / ".lock", [0], [0], [0]

    def take():
        for _ in range(300):
            with contextlib.suppress(ValueError), exclusive_lock(path, "it is in use"):
                inside[0] += 1
                taken[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and taken[0]


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks")
@pytest.mark.parametrize("name", ["ENOSYS", "ENOTSUP", "EOPNOTSUPP", "ENOLCK"])
def test_a_file_system_without_locks(tmp_path, monkeypatch, name):
    import fcntl

    def flock(*args):
        raise OSError(getattr(errno, name), "cannot lock")

    monkeypatch.setattr(fcntl, "flock", flock)
    warns = pytest.warns(UserWarning, match="no locks: let no two runs write there")
    with warns as caught, exclusive_lock(tmp_path / ".lock", "it is in use"):
        pass
    assert len(caught) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks")
def test_a_lock_that_fails_leaves_no_open_file(tmp_path, monkeypatch):
    import fcntl

    def flock(*args):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(OSError), exclusive_lock(tmp_path / ".lock", "it is in use"):
            raise AssertionError("not locked")
        gc.collect()
    # Other tests leave warnings, too.
    assert not [w for w in caught if str(tmp_path) in str(w.message)]
