"""`spacy elmo prepare` and `spacy elmo pretrain`, killed and on a full disk: the result is that of
a run that was not killed, and no other files stay."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import spacy

from spacy_elmo.pretraining import checkpoint as checkpoints
from spacy_elmo.pretraining.corpus import open_corpus

from ..cli.conftest import succeed
from ..kills import kill_repeatedly, started, wait_for_end
from .conftest import contents, sentences
from .test_trainer import CONFIG

SPACY = (sys.executable, "-m", "spacy", "elmo")
OPTIONS = ("--whitespace", "--sentence-per-line", "--vocab-size", 15, "--dev-fraction", 0.1)
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def bytes_below(folder: Path) -> int:
    """How much has been written below a folder, while files and folders come and go."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_size
    return total


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# prepare


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Several chunks of text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = "".join(f"{line}\n" for line in sentences(20_000))
    path.write_text(lines * 5, encoding="utf8")
    return path


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_prepare_killed(tmp_path, text, times):
    succeed("prepare", text, tmp_path / "whole", *OPTIONS)  # In one process.
    command = [*SPACY, "prepare", text, *OPTIONS, "--n-process", 2]
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "text.txt").symlink_to(text)
    kill_repeatedly(
        [*command, folder / "corpus", "--force"],
        times=times,
        seed=2,
        progress=lambda: bytes_below(folder) - text.stat().st_size,
        # Files are written twice, provisionally and renumbered.
        spread=bytes_below(tmp_path / "whole"),
        delay=0.3,
    )
    assert names(folder) == {"text.txt", "corpus"}
    assert contents(folder / "corpus") == contents(tmp_path / "whole")
    open_corpus(folder / "corpus")


@pytest.mark.parametrize(
    "number, group",
    [
        pytest.param(signal.SIGTERM, False, id="by the system", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, id="at a terminal"),
    ],
)
def test_prepare_interrupted(tmp_path, number, group):
    """Its workers, each in the middle of a chunk that takes minutes, end with it, and nothing is
    left."""
    (tmp_path / "text.txt").write_text("a b c d e . " * 1_000_000 + "\n")
    command = [*SPACY, "prepare", "text.txt", "corpus", "--max-length", 10**9, "--n-process", 2]
    with started(command, cwd=tmp_path) as (process, read):
        parent = psutil.Process(process.pid)
        end = time.monotonic() + 300
        while sum(child.cpu_times().user > 3 for child in parent.children(recursive=True)) < 1:
            assert process.poll() is None and time.monotonic() < end, read()
            time.sleep(0.1)
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(300) not in (0, -number), read()
        assert not wait_for_end(process.pid)
    assert names(tmp_path) == {"text.txt"}


# pretrain


@pytest.fixture(scope="module")
def config(tmp_path_factory, corpus) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.cfg"
    path.write_text(CONFIG.format(corpus=corpus.folder, max_steps=24))
    return path


def last_step(folder: Path) -> int:
    return max(map(checkpoints.get_step, checkpoints.all_checkpoints(folder)), default=0)


def result(folder: Path) -> dict[str, object]:
    """All that a run leaves, but for times."""
    files: dict[str, object] = {
        name: data
        for name, data in contents(folder).items()
        if name != "curves.png" and not name.startswith("step-")
    }
    files["log.jsonl"] = [
        {**json.loads(line), "seconds": None}
        for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    for path in checkpoints.all_checkpoints(folder):
        saved = checkpoints.load(path)
        progress = saved["progress"]
        history = [{**record, "seconds": None} for record in progress["history"]]
        files[path.name] = {**progress, "history": history, "seconds": None, "evaluated": None}
        for name, states in saved["optimizer"].items():
            values = {"": saved["model"][name], **states}
            files[f"{path.name}/{name}"] = {key: x.numpy().tobytes() for key, x in values.items()}
    return files


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_pretrain_killed(tmp_path, config, times):
    succeed("pretrain", config, tmp_path / "whole")
    folder = tmp_path / "killed"

    def check():
        for name in ("model-best", "model-last"):
            if (folder / name).exists():
                spacy.load(folder / name)

    kill_repeatedly(
        [*SPACY, "pretrain", config, folder, "--resume"],
        times=times,
        seed=0,
        progress=lambda: last_step(folder),
        spread=24 // (times + 1),  # Of 24 steps.
        after_kill=check,
    )
    assert result(folder) == result(tmp_path / "whole")
    assert not [name for name in names(folder) if name.startswith(".")]
