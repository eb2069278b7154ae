"""The runner of experiments, and the baselines it trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from spacy_elmo.formats import safetensors_format

from ..conftest import random_bilm, run_spacy
from .conftest import CONFIG_FOLDER, script

KEYS = {
    "task", "system", "size", "n_train", "per_class", "seed", "scores", "dev_scores",
    "mixes", "seconds", "steps", "config", "weights", "hardware", "fingerprint",
    "baseline_fingerprint",
}  # fmt: skip


def docs(count: int) -> list[Doc]:
    nlp = spacy.blank("en")
    result = []
    for number in range(count):
        word = ("good", "bad")[number % 2]
        doc = Doc(nlp.vocab, words=["A", word, "film", str(number)], tags=["DT", "JJ", "NN", "CD"])
        doc.cats = {"pos": float(number % 2 == 0), "neg": float(number % 2 == 1)}
        result.append(doc)
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, count in (("train", 20), ("dev", 6), ("test", 6)):
        DocBin(docs=docs(count)).to_disk(tmp_path / f"{name}.spacy")
    safetensors_format.write(random_bilm(), tmp_path / "bilm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


ARGUMENTS = (
    "films", "--config", CONFIG_FOLDER / "textcat_tok2vec.cfg", "--corpus", ".",
    "--training.max_steps", "2", "--training.eval_frequency", "1",
)  # fmt: skip


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`spacy train` and `spacy evaluate` run in this process, which saves their start."""

    def run(command: list[str], pass_fds: list[int]) -> subprocess.CompletedProcess:
        assert command[:3] == [sys.executable, "-m", "spacy"]
        result = run_spacy(*command[3:])
        print(result.output)
        return subprocess.CompletedProcess(command, result.exit_code)

    monkeypatch.setattr(subprocess, "run", run)


def test_a_run(folder, in_process):
    """From nothing to a result; the second time, nothing is done, and after a change, all is."""
    elmo = ("--system", "elmo", "--weights", "bilm", "--sizes", "3", "full", "--mix", "frozen")
    output = script("experiment", *ARGUMENTS, *elmo)
    assert "done already" not in output
    results = {size: folder / f"metrics/films/elmo/{size}/seed-0.json" for size in ("3", "full")}
    small, full = (json.loads(path.read_text(encoding="utf8")) for path in results.values())
    assert set(small) == set(full) == KEYS
    assert (small["n_train"], small["per_class"]) == (6, 3)
    assert (full["n_train"], full["per_class"]) == (20, None)
    assert small["steps"] == 2 and 0 <= small["scores"]["cats_acc"] <= 1
    assert len(small["mixes"]["textcat"]["input"]["weights"]) == 3
    assert [path.name for path in folder.glob("training/films/elmo/*")] == ["full"]
    assert set(small["dev_scores"]) <= set(small["scores"])
    assert spacy.load(folder / "training/films/elmo/full/seed-0")("A film").cats
    before = results["3"].read_bytes()
    assert script("experiment", *ARGUMENTS, *elmo).count("done already") == 2
    assert results["3"].read_bytes() == before
    shutil.rmtree(folder / "training")
    assert script("experiment", *ARGUMENTS, *elmo).count("done already") == 1
    assert (folder / "training/films/elmo/full/seed-0").is_dir()
    results["3"].write_text("[]")
    assert script("experiment", *ARGUMENTS, *elmo).count("done already") == 1
    safetensors_format.write(random_bilm(seed=1), folder / "bilm")
    output = script("experiment", *ARGUMENTS, *elmo[:4], "--sizes", "3", "--mix", "frozen")
    assert "done already" not in output and results["3"].read_bytes() != before
