"""What commands share: the progress of those that take long."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.cli import app, util

from .conftest import succeed

N = 36
LINES = [f"the bank {number} of the river ." for number in range(N)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(*arguments: object) -> None:
    """Run a command at a terminal."""
    with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(Terminal()):
        app([str(argument) for argument in arguments])
    assert end.value.code == 0


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bars that commands show."""
    shown: list[Any] = []

    class Bar(util.tqdm):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings | {"delay": 0})
            shown.append(self)

    monkeypatch.setattr(util, "tqdm", Bar)
    return shown


def described(bars: list[Any]) -> dict[str, tuple[int, int]]:
    """What each bar has shown: how much of which total."""
    return {bar.desc: (bar.n, bar.total) for bar in bars}


@pytest.mark.parametrize("suffix", ["npz", "hdf5", "spacy", "parquet"])
def test_embed_counts_rows(suffix: str, text: Path, pipeline: Path, tmp_path: Path, bars: list):
    pytest.importorskip("pyarrow")
    command = ("embed", text, tmp_path / f"out.{suffix}", "-m", pipeline, "--rows", 5)
    show(*command)
    size = text.stat().st_size
    expected = {"Counting": (size, size), "Embedding": (N, N), "Writing": (N, N)}
    if suffix == "parquet":
        del expected["Writing"]  # The parts are the output.
    assert described(bars) == expected
    bars.clear()
    show(*command, "--force", "--quiet")
    assert all(bar.disable for bar in bars)


def test_embed_counts_rows_of_earlier_runs_and_bad_ones(pipeline: Path, tmp_path: Path, bars: list):
    path = tmp_path / "a.csv"
    path.write_bytes(b"body,id\nthe bank,1\nmoney\nr\xe4iver,3\nbank,4\n")
    command = ("embed", path, tmp_path / "a.parquet", "-m", pipeline, "--text", "body")
    for errors, n in (("replace", 4), ("ignore", 3)):
        for force in (["--force"], []):
            show(*command, "--errors", errors, *force)
            assert described(bars)["Embedding"] == (n, n)
            bars.clear()


@pytest.mark.parametrize("kind", ["txt", "spacy", "parquet"])
def test_neighbors_count_bytes(kind: str, text: Path, pipeline: Path, tmp_path: Path, bars: list):
    if kind == "spacy":
        show("embed", text, tmp_path / "a.spacy", "-m", pipeline)
        text = tmp_path / "a.spacy"
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            arrow.table({"text": LINES}), text := tmp_path / "a.parquet", row_group_size=5
        )
    bars.clear()
    show("neighbors", pipeline, text, "-q", "the [bank]")
    assert described(bars) == {"Reading": (text.stat().st_size, text.stat().st_size)}


READ = (sum(len(line) + 1 for line in LINES),) * 2
SCORED = {"Reading": READ, "Scoring": (7 * N, 7 * N)}


@pytest.mark.parametrize(
    "command, expected",
    [
        ("quantize pipeline out --texts text.txt", {"Comparing": (7 * N, 7 * N)}),
        ("fit-pooling pipeline text.txt out", {"Reading": READ, "Embedding": (N, N)}),
        ("prepare text.txt corpus --dev-fraction 0.5", {"Reading": READ}),
        ("perplexity en_elmo_sm text.txt", SCORED),
        ("perplexity en_elmo_sm text.txt --carry-state", SCORED),
        ("perplexity en_elmo_sm text.txt --words words.jsonl", SCORED),
    ],
)
def test_other_commands(command: str, expected, text: Path, pipeline: Path, bars, monkeypatch):
    monkeypatch.chdir(text.parent)
    show(*command.split())
    assert described(bars) == expected


def test_there_are_no_bars_in_logs(text: Path, pipeline: Path, tmp_path: Path):
    output = succeed("embed", text, tmp_path / "out.npz", "-m", pipeline)
    output += succeed("neighbors", pipeline, text, "-q", "the [bank]")
    assert "%|" not in output
