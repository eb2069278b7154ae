"""`spacy elmo embed --engine ray`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..kills import started, wait_for_end
from .conftest import fail, succeed
from .test_embed_parquet import check_manifest, make_lines, same

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.slow


def ray_command(text: Path, out: Path, pipeline: Path, *options: object) -> list:
    command = [sys.executable, "-m", "spacy", "elmo", "embed", text, out, "-m", pipeline, "-q"]
    return [*command, "--engine", "ray", *options]


def run(command: list, home: Path, code: int = 0) -> str:
    home.mkdir(exist_ok=True)
    env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())  # It is wrapped.


def test_two_workers_give_what_one_process_gives(pipeline: Path, tmp_path: Path):
    text, out = tmp_path / "text.txt", tmp_path / "out.parquet"
    make_lines(text, 500)
    command = ray_command(text, out, pipeline, "--rows", 20, "--workers", 2)
    output = run(command, tmp_path / "home")
    assert "500 rows" in output and "Traceback" not in output
    assert not list((tmp_path / "home").rglob("*ray*")) and not list(out.glob(".*"))
    succeed("embed", text, tmp_path / "local.parquet", "-m", pipeline, "--rows", 20, "-q")
    assert check_manifest(out)["n_rows"] == 500 and same(out, tmp_path / "local.parquet")
    assert "500 of them by an earlier run" in run(command, tmp_path / "home")
    joined = ray_command(text, tmp_path / "out.npz", pipeline, "--rows", 20, "--workers", 2)
    run(joined, tmp_path / "home")
    succeed("embed", text, tmp_path / "local.npz", "-m", pipeline, "--rows", 20, "-q")
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "local.npz").read_bytes()


def test_bad_input(pipeline: Path, tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"body": 1}\n')
    command = ray_command(tmp_path / "bad.jsonl", tmp_path / "out.parquet", pipeline)
    output = run(command, tmp_path / "home", code=1)
    assert "bad.jsonl, line 2: no 'text'" in output
    assert "Traceback" not in output
    output = run([*command, "--threads", 4096], tmp_path / "home", code=1)
    assert "an actor needs {'CPU': 4096}: fewer --threads?" in output


def test_killed(pipeline: Path, tmp_path: Path):
    """Three workers, then the driver; nothing that is finished is computed again."""
    text, out = tmp_path / "text.txt", tmp_path / "out.parquet"
    make_lines(text, 4000)
    command = ray_command(text, out, pipeline, "--rows", 10, "--workers", 2)
    times: dict[Path, int] = {}

    def check() -> int:
        for path in out.glob("part-*.parquet"):
            assert times.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
        return len(times)

    def wait_for_parts(n: int) -> None:
        end = time.monotonic() + 300
        while check() < n:
            assert process.poll() is None and time.monotonic() < end, read()
            time.sleep(0.05)

    chance = random.Random(0)
    (tmp_path / "home").mkdir()
    with started(command, env={"HOME": str(tmp_path / "home")}) as (process, read):
        for n in (20, 60, 100):
            wait_for_parts(n)
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [x for x in children if "MapWorker" in " ".join(x.cmdline())]
            chance.choice(workers).kill()
        wait_for_parts(140)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # An agent of Ray notices a minute later.
        assert not wait_for_end(process.pid, "MapWorker")
    n_before = check()
    assert n_before < 400
    run(command, tmp_path / "home")
    assert check() == 400 and check_manifest(out)["n_rows"] == 4000
    assert not list(out.glob(".*"))
    succeed("embed", text, tmp_path / "local.parquet", "-m", pipeline, "--rows", 10, "-q")
    assert same(out, tmp_path / "local.parquet")


def test_stdin(pipeline: Path, tmp_path: Path):
    stdin = ("embed", "-", tmp_path / "o.parquet", "-m", pipeline, "--engine", "ray")
    assert "- can be read only once, and by no worker" in fail(*stdin, stdin="a")
