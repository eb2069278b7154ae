"""The helper that kills commands: tests that rely on it must be able to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import kills
from .kills import PROGRAMS, kill_repeatedly, run_to_the_end, small_disk


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_command_is_killed_and_ends(tmp_path):
    path, sizes = tmp_path / "file", []
    command = [sys.executable, PROGRAMS / "count.py", path]
    done = kill_repeatedly(
        command,
        times=4,
        seed=0,
        progress=lambda: size(path),
        spread=90,
        delay=0.02,
        after_kill=lambda: sizes.append(size(path)),
    )
    assert done.stdout == "done\n" and size(path) == 400
    assert len(sizes) == 4 and sizes == sorted(sizes) and 0 < sizes[-1] < 400


def test_an_orphan_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "GRACE", 0.3)
    path = tmp_path / "file"
    with pytest.raises(AssertionError, match="outlived the killed one"):
        kill_repeatedly(
            [sys.executable, PROGRAMS / "leave_orphan.py", path],
            times=1, seed=0, progress=lambda: size(path), spread=1, delay=0.0,
        )  # fmt: skip


def test_a_command_that_is_too_fast(tmp_path):
    with pytest.raises(AssertionError, match="lower spread"):
        kill_repeatedly(
            [sys.executable, "-c", ""], times=1, seed=1, progress=lambda: 0, spread=9, delay=0.0
        )


def test_a_full_disk():
    with small_disk(1 << 20) as folder:
        code = f"open({str(folder / 'file')!r}, 'wb').write(bytes(2 << 20))"
        done = run_to_the_end([sys.executable, "-c", code], code=1)
        assert "No space left on device" in done.stderr
