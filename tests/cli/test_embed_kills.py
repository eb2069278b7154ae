"""`spacy elmo embed`, killed at random moments and on a full disk."""

from __future__ import annotations

import random
import subprocess
import sys
from filecmp import cmp
from pathlib import Path

import pytest

from ..conftest import elmo_pipeline
from ..kills import kill_repeatedly, run_to_the_end, small_disk
from .conftest import succeed
from .test_embed import arrays_of

COMMAND = (sys.executable, "-m", "spacy", "elmo", "embed")


def make_input(weights: Path, folder: Path, *, lines: int) -> tuple[Path, Path]:
    """Lines of text, and a pipeline."""
    chance = random.Random(0)
    words = ["the", "bank", "river", "money", "of"]
    with (folder / "text.txt").open("w") as file:
        for _ in range(lines):
            tokens = [
                chance.choice(words) + chance.choice("abc") for _ in range(chance.randint(0, 40))
            ]
            file.write(" ".join(tokens) + "\n")
    nlp = elmo_pipeline(weights)
    nlp.add_pipe("sentencizer", first=True)
    nlp.to_disk(folder / "pipeline")
    return folder / "text.txt", folder / "pipeline"


@pytest.mark.parametrize(
    "name, times",
    [
        ("out.hdf5", 1),
        pytest.param("out.parquet", 2, marks=pytest.mark.slow),
        pytest.param("out.hdf5", 20, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(name: str, times: int, weights_folder: Path, tmp_path: Path):
    """No part that was there is written again."""
    lines = 200 + 400 * times
    text, pipeline = make_input(weights_folder, tmp_path, lines=lines)
    folder = tmp_path / "killed"
    folder.mkdir()
    out = folder / name
    parts = out if name == "out.parquet" else folder / f".{name}.partial"
    seen: dict[Path, int] = {}

    def check() -> None:
        for path in parts.glob("part-*"):
            assert seen.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns

    done = kill_repeatedly(
        [*COMMAND, text, out, "-m", pipeline, "-q", "--rows", 10],
        times=times,
        seed=0,
        progress=lambda: len(list(parts.glob("part-*"))),
        spread=20,
        after_kill=check,
    )
    assert "by an earlier run" in " ".join(done.stdout.split())
    assert list(folder.iterdir()) == [out] and not list(out.glob(".*"))
    succeed("embed", text, tmp_path / name, "-m", pipeline, "-q", "--rows", 10)
    if name == "out.hdf5":
        assert len(arrays_of(out)) == lines and cmp(out, tmp_path / name, shallow=False)
        return
    tables = [pytest.importorskip("pyarrow.parquet").read_table(x) for x in (out, tmp_path / name)]
    assert len(tables[0]) == lines and tables[0].equals(tables[1])


@pytest.mark.parametrize(
    "suffix, kilobytes",
    # Room for one part or two of four; then for all parts, but not for the output.
    [
        ("hdf5", 700),
        pytest.param("hdf5", 2000, marks=pytest.mark.slow),
        pytest.param("npz", 2000, marks=pytest.mark.slow),
        pytest.param("spacy", 1500, marks=pytest.mark.slow),
    ],
)
def test_full_disk(suffix: str, kilobytes: int, weights_folder: Path, tmp_path: Path):
    text, pipeline = make_input(weights_folder, tmp_path, lines=400)
    with small_disk(kilobytes << 10) as disk:
        out = disk / f"out.{suffix}"
        command = [*COMMAND, text, out, "-m", pipeline, "-q", "--rows", 50]
        failed = run_to_the_end(command, code=1)
        assert "No space left" in failed.stdout and "what is finished" in failed.stdout
        assert failed.stderr == ""
        assert [path.name for path in disk.iterdir()] == [f".out.{suffix}.partial"]
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        assert "by an earlier run" in " ".join(succeed(*command[4:]).split())
        assert list(disk.iterdir()) == [out]
        succeed("embed", text, tmp_path / out.name, "-m", pipeline, *command[-3:])
        assert cmp(out, tmp_path / out.name, shallow=False)
