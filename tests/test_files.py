"""Writing so that a reader sees the old or the new, never a half."""

import os
import stat

import pytest

from spacy_elmo.files import atomic_file, atomic_folder


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


def test_the_temporary_file_lies_in_the_same_folder(tmp_path):
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
