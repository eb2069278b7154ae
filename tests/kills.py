"""Killing commands at random moments, and running them on a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT = 600  # Seconds for one run of the command, on a busy machine.
GRACE = 30  # Seconds for the children of a killed process to notice.
_POLL = 0.002


def kill_repeatedly(
    command: Sequence[object],
    *,
    times: int,
    seed: int,
    progress: Callable[[], int],
    spread: int,
    delay: float = 0.1,
    number: signal.Signals = signal.SIGKILL,
    after_kill: Callable[[], None] = lambda: None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Start a command and kill it, again and again, and let the last one run to its end.

    progress (Callable): What the command has written so far, as a number that grows.
    spread, delay: A kill waits until the progress has grown by a random number from 0 to `spread`,
        and then for `delay` seconds at most.
    RETURNS (CompletedProcess): The last run, with its output.
    """
    choose = random.Random(seed)
    kills, too_late = 0, 0
    while kills < times:
        target, pause = choose.randint(0, spread), choose.random() * delay
        with started(command, cwd, env) as (process, read):
            _wait_for_progress(process, progress, target)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
            ended = process.poll() is not None
            process.send_signal(number)
            process.wait(TIMEOUT)
            left, output = wait_for_end(process.pid), read()
        assert not left, f"these processes outlived the killed one: {left}"
        if ended:
            assert process.returncode == 0, f"it failed after {kills} kills: {output}"
            too_late += 1
            assert too_late <= 2 * times, "the command ends before it can be killed: lower spread"
        else:
            kills += 1
            after_kill()
    return run_to_the_end(command, cwd=cwd, env=env)


def run_to_the_end(
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    code: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with this exit code, and leave no process behind."""
    with started(command, cwd, env) as (process, read):
        process.wait(TIMEOUT)
        left, (stdout, stderr) = wait_for_end(process.pid), read()
    assert process.returncode == code, stdout + stderr
    assert not left, f"these processes outlived the command: {left}"
    return subprocess.CompletedProcess(process.args, code, stdout, stderr)


def wait_for_end(session: int, name: str = "") -> list[str]:
    """RETURNS (list): Processes of a session that are still there after the grace period, of those
    with this in their command line."""
    end = time.monotonic() + GRACE
    while left := [x for x in map(_describe, _members(session)) if name in x]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


@contextlib.contextmanager
def small_disk(n_bytes: int) -> Iterator[Path]:
    """Mount a file system of this size. Skips the test where that is not allowed."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder]
        try:
            done = subprocess.run(mount, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"cannot mount a small disk: {error}")
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def started(
    command: Sequence[object], cwd: Path | None = None, env: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], list[str]]]]:
    """Start a command. At the end, none of its processes is running.
    YIELDS (tuple): The process, and a function that reads its output and its errors."""
    if sys.platform == "win32":
        pytest.skip("needs POSIX sessions")
    # Not pipes: a child that outlives the command would keep them open.
    with (
        tempfile.TemporaryFile("w+", encoding="utf8") as stdout,
        tempfile.TemporaryFile("w+", encoding="utf8") as stderr,
    ):
        process = subprocess.Popen(
            [str(argument) for argument in command],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stdout=stdout,
            stderr=stderr,
            text=True,
            # The processes of this session are the command and its descendants, orphans too.
            start_new_session=True,
        )

        def read() -> list[str]:
            for file in (stdout, stderr):
                file.seek(0)
            return [stdout.read(), stderr.read()]

        try:
            yield process, read
        finally:
            for member in _members(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()


def _wait_for_progress(
    process: subprocess.Popen[str], progress: Callable[[], int], target: int
) -> None:
    start = progress()
    end = time.monotonic() + TIMEOUT
    while process.poll() is None:
        current = progress()
        start = min(start, current)
        if current - start >= target:
            return
        assert time.monotonic() < end, f"no progress: {current - start} of {target}"
        time.sleep(_POLL)


def _members(session: int) -> list[psutil.Process]:
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if os.getsid(pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)
