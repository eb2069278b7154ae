from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import h5py
import numpy
import pytest
import spacy
from spacy.tokens import DocBin

from spacy_elmo import dump
from spacy_elmo.bilm import BiLM
from spacy_elmo.bilm.formats import native

from ..conftest import add_tagger, elmo_pipeline, listener, max_difference, random_bilm, tagged
from .conftest import fail, run, succeed

LINES = ["the bank of the river .", "", "🙂 e\u0301 שלום 銀行", "money"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf8")
    return path


@pytest.fixture
def expected(bilm: BiLM) -> list[numpy.ndarray]:
    return [layers.numpy() for layers in bilm.embed([line.split() for line in LINES])]


def read(path: Path) -> list[numpy.ndarray]:
    with h5py.File(path) as file:
        return [file[str(number)][()] for number in range(len(file))]


def test_hdf5_has_the_layout_of_bilm_tf(text: Path, pipeline: Path, expected: list, tmp_path: Path):
    succeed("embed", text, tmp_path / "out.hdf5", "-m", pipeline, "--whitespace")
    found = read(tmp_path / "out.hdf5")
    assert [array.shape for array in found] == [(3, len(line.split()), 12) for line in LINES]
    assert max(map(max_difference, found, expected)) <= 1e-6
    assert not list(tmp_path.glob("*.parts")) and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("layers", ["top", "mixed", "mean"])
def test_choice_of_layers(layers: str, text: Path, pipeline: Path, expected: list, tmp_path: Path):
    choose = {"top": lambda x: x[-1], "mixed": lambda x: x.mean(0), "mean": lambda x: x.mean(0)}
    for suffix in ("hdf5", "npz", "spacy"):
        out = tmp_path / f"out.{suffix}"
        succeed("embed", text, out, "-m", pipeline, "--whitespace", "--layers", layers)
        if suffix == "hdf5":
            found = read(out)
        elif suffix == "npz":
            npz = numpy.load(out)
            found = [npz[str(number)] for number in range(len(LINES))]
        else:
            docs = list(DocBin().from_disk(out).get_docs(spacy.blank("en").vocab))
            assert all(doc._.elmo_layers is None for doc in docs)
            found = [doc._.elmo_tokens for doc in docs]
        assert max(map(max_difference, found, map(choose[layers], expected))) <= 1e-6


def test_jsonl_spacy_and_stdin_agree(pipeline: Path, text: Path, expected: list, tmp_path: Path):
    jsonl = tmp_path / "in.jsonl"
    records = [{"tokens": line.split()} for line in LINES[:2]] + [{"text": t} for t in LINES[2:]]
    jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))
    succeed("embed", jsonl, tmp_path / "jsonl.spacy", "-m", pipeline, "-w")
    succeed("embed", tmp_path / "jsonl.spacy", tmp_path / "spacy.hdf5", "-m", pipeline)
    stdin = text.read_text(encoding="utf8")
    succeed("embed", "-", tmp_path / "stdin.hdf5", "-m", pipeline, "-w", stdin=stdin)
    for name in ("spacy.hdf5", "stdin.hdf5"):
        assert max(map(max_difference, read(tmp_path / name), expected)) <= 1e-6


def test_weights_in_place_of_a_pipeline(text: Path, hdf5_folder: Path, expected, tmp_path: Path):
    succeed("embed", text, tmp_path / "out.hdf5", "-m", hdf5_folder, "-w", "-q")
    assert max(map(max_difference, read(tmp_path / "out.hdf5"), expected)) <= 1e-6


def test_progress_shows_rate_and_quiet_shows_none(text: Path, pipeline: Path, tmp_path: Path):
    noisy = run("embed", text, tmp_path / "a.hdf5", "-m", pipeline)
    assert "tokens/s" in noisy.stderr
    assert run("embed", text, tmp_path / "b.hdf5", "-m", pipeline, "--quiet").stderr == ""


def test_resumes_after_kills_without_loss(pipeline: Path, tmp_path: Path):
    """Killed at random moments, the output is that of an undisturbed run."""
    text = tmp_path / "text.txt"
    chance = random.Random(0)
    words = ["the", "bank", "river", "money", "of"]
    with text.open("w") as file:
        for _ in range(4000):
            file.write(" ".join(chance.choices(words, k=chance.randint(0, 40))) + "\n")
    # The parts of this run are small, so that there are many of them.
    script = (
        "import sys, spacy_elmo.dump as dump, spacy_elmo.cli as cli\n"
        "dump._PART_RECORDS = 50\n"
        "cli.app(sys.argv[1:])"
    )
    out = tmp_path / "out.hdf5"
    command = [sys.executable, "-c", script, "embed", text, out, "-m", pipeline, "-w", "-q"]
    parts = tmp_path / "out.hdf5.parts"
    kills = 0
    for at_least in (1, 20, 40):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(parts.glob("0*"))) < at_least:
                time.sleep(0.005)
            time.sleep(chance.random() / 50)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
        for part in parts.glob("0*"):
            read_part(part)
    assert kills and not out.exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "an earlier run" in done.stdout
    succeed("embed", text, tmp_path / "undisturbed.hdf5", "-m", pipeline, "-w", "-q")
    assert len(read(out)) == 4000
    # Batches differ from run to run, so equal but for rounding.
    assert max(map(max_difference, read(out), read(tmp_path / "undisturbed.hdf5"))) <= 1e-5


def read_part(path: Path) -> None:
    first, end = map(int, path.stem.split("-")[:2])
    with h5py.File(path) as file:
        assert sorted(map(int, file)) == list(range(first, end))


def interrupted(
    text: Path, out: Path, pipeline: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> None:
    """Leave the parts of a run that found a bad line after the good ones."""
    good = text.read_bytes()
    text.write_bytes(good + b"\xff\n")
    with monkeypatch.context() as patch:
        patch.setattr("spacy_elmo.dump._PART_RECORDS", 1)
        patch.setattr("spacy_elmo.component._BATCHES_PER_BUFFER", 0)
        fail("embed", text, out, "-m", pipeline, "-q", *options)
    text.write_bytes(good)


def test_other_input_is_not_mixed_with_parts_of_an_earlier_run(
    text: Path, pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out.hdf5"
    interrupted(text, out, pipeline, monkeypatch)
    message = fail("embed", text, out, "-m", pipeline, "--layers", "top")
    assert "input" in message and "layers (was all)" in message and "--force" in message
    succeed("embed", text, out, "-m", pipeline, "--layers", "top", "--force")
    assert read(out)[0].ndim == 2


def test_another_mix_is_not_mixed_with_parts_of_an_earlier_run(
    text: Path, weights_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for layer in (0, 2):
        mix = {"@layers": "spacy-elmo.SingleLayer.v1", "layer": layer}
        elmo_pipeline(weights_folder, mix=mix).to_disk(tmp_path / f"layer{layer}")
    out = tmp_path / "out.hdf5"
    interrupted(text, out, tmp_path / "layer0", monkeypatch, "--layers", "mixed")
    message = fail("embed", text, out, "-m", tmp_path / "layer2", "--layers", "mixed")
    assert "pipeline (was" in message and "weights (was" not in message


def test_stdin_goes_on_only_where_it_was(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = [f"the {word}\n" for word in ("bank", "river", "money", "end")]
    out = tmp_path / "out.hdf5"

    def broken_off(documents):
        yield from islice(documents, 2)
        raise ValueError("broken off")

    with monkeypatch.context() as patch:
        patch.setattr("spacy_elmo.dump._PART_RECORDS", 1)
        read_docs = dump.read_docs
        patch.setattr(dump, "read_docs", lambda *a, **k: broken_off(read_docs(*a, **k)))
        patch.setattr("spacy_elmo.component._BATCHES_PER_BUFFER", 0)
        fail("embed", "-", out, "-m", pipeline, "-q", stdin="".join(lines))
    other = ["another\n", *lines[1:]]
    message = fail("embed", "-", out, "-m", pipeline, "-q", stdin="".join(other))
    assert "stdin differs" in message and "between records 0 and 1" in message
    assert "stdin differs" in fail("embed", "-", out, "-m", pipeline, "-q", stdin=lines[0])
    assert "2 records that" in succeed("embed", "-", out, "-m", pipeline, stdin="".join(lines))
    succeed("embed", "-", tmp_path / "all.hdf5", "-m", pipeline, "-q", stdin="".join(lines))
    assert max(map(max_difference, read(out), read(tmp_path / "all.hdf5"))) <= 1e-6


def test_vectors_are_those_of_the_component_that_is_named(text: Path, tmp_path: Path):
    """Whatever else is in the pipeline: others with other weights, tasks, and a cleaner."""
    nlp = spacy.blank("en")
    expected = {}
    for number, name in enumerate("ab"):
        bilm = random_bilm(seed=number)
        native.write(bilm, tmp_path / name)
        nlp.add_pipe("elmo", name=name, config={"model": {"weights": str(tmp_path / name)}})
        embedded = bilm.embed([line.split() for line in LINES])
        expected[name] = [layers.numpy() for layers in embedded]
    add_tagger(nlp, listener(upstream="a"))
    nlp.initialize(lambda: tagged(nlp))
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.elmo_layers": None, "_.elmo_tokens": None}})
    nlp.to_disk(tmp_path / "pipeline")
    for name in "ab":
        for layers, choose in (("all", lambda x: x), ("mixed", lambda x: x.mean(0))):
            out = tmp_path / f"{name}-{layers}.hdf5"
            options = ("--name", name, "--layers", layers, "--whitespace")
            succeed("embed", text, out, "-m", tmp_path / "pipeline", *options)
            assert max(map(max_difference, read(out), map(choose, expected[name]))) <= 1e-6


def test_bad_lines_are_named(text: Path, pipeline: Path, tmp_path: Path):
    text.write_bytes(b"good\nb\xe4d\n")
    assert "text.txt, line 2 is not UTF-8" in fail(
        "embed", text, tmp_path / "a.npz", "-m", pipeline
    )
    jsonl = tmp_path / "in.jsonl"
    problems = {"{": "is not JSON", '{"a": 1}': 'neither "tokens"', "3": 'neither "tokens"'}
    for line, problem in problems.items():
        jsonl.write_text(f'{{"text": "good"}}\n{line}\n')
        message = fail("embed", jsonl, tmp_path / "b.npz", "-m", pipeline)
        assert "in.jsonl, line 2" in message and problem in message


def test_bad_arguments(text: Path, pipeline: Path, tmp_path: Path):
    out = tmp_path / "out.hdf5"
    assert "nowhere.txt" in fail("embed", tmp_path / "nowhere.txt", out, "-m", pipeline)
    assert ".npz" in fail("embed", text, tmp_path / "out.pkl", "-m", pipeline)
    assert "nowhere" in fail("embed", text, out, "-m", tmp_path / "nowhere")
    assert "float64" in fail("embed", text, out, "-m", pipeline, "--precision", "float64")
    (tmp_path / "bad.spacy").write_bytes(b"nothing")
    assert "bad.spacy" in fail("embed", tmp_path / "bad.spacy", out, "-m", pipeline)
    succeed("embed", text, out, "-m", pipeline)
    assert "--force" in fail("embed", text, out, "-m", pipeline)


@pytest.mark.skipif(os.name != "posix", reason="locks are POSIX only")
def test_second_run_on_one_output_is_refused(text: Path, pipeline: Path, tmp_path: Path):
    import fcntl

    with (tmp_path / ".out.hdf5.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        part = tmp_path / "out.hdf5.parts" / "000000000000-000000000001-0.hdf5"
        part.parent.mkdir()
        part.touch()
        for options in ([], ["--force"]):
            message = fail("embed", text, tmp_path / "out.hdf5", "-m", pipeline, *options)
            assert "another run" in message
        assert part.exists()


def test_a_part_that_is_gone(text: Path, pipeline: Path, tmp_path: Path, monkeypatch):
    out = tmp_path / "out.hdf5"
    monkeypatch.setattr("spacy_elmo.dump._PART_RECORDS", 1)
    nlp = spacy.load(pipeline)
    made = dump.Dump(out, text, nlp, nlp.get_pipe("elmo"), dump.Layers.all)
    with made.lock():
        made.start()
        list(made.write())
        next(made.folder.glob("000000000001-*")).unlink()
        with pytest.raises(ValueError, match="records from 1 on are missing"):
            made.finish()
        assert not out.exists()
        assert made.start() == 1
        list(made.write())
        assert made.finish() == len(LINES)
    assert len(read(out)) == len(LINES)


def test_spacy_finds_the_commands():
    command = [sys.executable, "-m", "spacy", "elmo", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(name in output for name in ("convert", "embed", "export", "info"))
