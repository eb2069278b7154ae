from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from spacy_elmo.bilm import BiLM
from spacy_elmo.files import exclusive_lock
from spacy_elmo.formats import safetensors_format

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
        # One more key, as in files of AllenNLP: `sentence_to_index`.
        return [file[str(number)][()] for number in range(len(file) - 1)]


def test_hdf5_has_the_layout_of_bilm_tf(text: Path, pipeline: Path, expected: list, tmp_path: Path):
    succeed("embed", text, tmp_path / "out.hdf5", "-m", pipeline, "--whitespace")
    actual = read(tmp_path / "out.hdf5")
    assert [array.shape for array in actual] == [(3, len(line.split()), 12) for line in LINES]
    assert max(map(max_difference, actual, expected)) <= 1e-6
    assert not list(tmp_path.glob(".out*"))
    # AllenNLP's command `elmo`: JSON in an array of one string, from tokens joined by spaces.
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["sentence_to_index"].shape == (1,)
        numbers = json.loads(file["sentence_to_index"][0])
    assert numbers == {line: str(number) for number, line in enumerate(LINES)}


@pytest.mark.parametrize("layers", ["top", "mixed", "mean"])
def test_choice_of_layers(layers: str, text: Path, pipeline: Path, expected: list, tmp_path: Path):
    choose = {"top": lambda x: x[-1], "mixed": lambda x: x.mean(0), "mean": lambda x: x.mean(0)}
    for suffix in ("hdf5", "npz", "spacy"):
        out = tmp_path / f"out.{suffix}"
        succeed("embed", text, out, "-m", pipeline, "--whitespace", "--layers", layers)
        if suffix == "hdf5":
            actual = read(out)
        elif suffix == "npz":
            npz = numpy.load(out)
            actual = [npz[str(number)] for number in range(len(LINES))]
            # The same bytes in every run.
            assert {file.date_time[0] for file in npz.zip.infolist()} == {1980}
        else:
            docs = list(DocBin().from_disk(out).get_docs(spacy.blank("en").vocab))
            assert all(doc._.elmo_layers is None for doc in docs)
            actual = [doc._.elmo_tokens for doc in docs]
        assert max(map(max_difference, actual, map(choose[layers], expected))) <= 1e-6


@pytest.mark.parametrize("suffix", ["hdf5", "npz", "spacy"])
def test_nulls(suffix: str, pipeline: Path, tmp_path: Path):
    """They are like empty lines, but counted. An object without a text is an error."""
    path, out = tmp_path / "in.jsonl", tmp_path / f"out.{suffix}"
    path.write_text('{"text": "a b"}\n\n{"text": null}\n{"text": null}\n{"text": "c"}\n')
    command = ("embed", path, out, "-m", pipeline)
    assert "line 3: 'text' is null: remove it, or choose nulls 'empty'" in fail(*command)
    output = " ".join(succeed(*command, "-q", "--nulls", "empty").split())
    assert "2 of the texts are null, with no tokens" in output
    if suffix == "hdf5":
        arrays = read(out)
    elif suffix == "npz":
        arrays = [numpy.load(out)[str(number)] for number in range(5)]
    else:
        docs = DocBin().from_disk(out).get_docs(spacy.blank("en").vocab)
        arrays = [doc._.elmo_layers for doc in docs]
    assert [array.shape for array in arrays] == [(3, n, 12) for n in (2, 0, 0, 0, 1)]
    path.write_text('{"text": "a b"}\n{"body": "c"}\n')
    command = (*command, "--force", "--nulls", "empty")
    assert "line 2: must have a string or a list of strings 'text'" in fail(*command)


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


def test_lines_of_tokens_are_sentences(bilm: BiLM, hdf5_folder: Path, tmp_path: Path):
    """As in bilm-tf and AllenNLP, also where a sentencizer would end them earlier."""
    tokens = ["money", ".", "the", "river", "bank", "."]
    expected = bilm.embed([tokens])[0]
    (tmp_path / "in.txt").write_text(" ".join(tokens) + "\n")
    (tmp_path / "in.jsonl").write_text(json.dumps({"tokens": tokens}) + "\n")
    for name, options in (("in.txt", ["--whitespace"]), ("in.jsonl", [])):
        out = tmp_path / f"{name}.hdf5"
        succeed("embed", tmp_path / name, out, "-m", hdf5_folder, *options)
        assert max_difference(read(out)[0], expected) <= 1e-6


def test_progress_shows_rate_and_quiet_shows_none(text: Path, pipeline: Path, tmp_path: Path):
    noisy = run("embed", text, tmp_path / "a.hdf5", "-m", pipeline)
    assert "tokens/s" in noisy.stderr
    assert run("embed", text, tmp_path / "b.hdf5", "-m", pipeline, "--quiet").stderr == ""


# How many docs the component below accepts before it fails.
passing = {"docs": math.inf}


@Language.component("interrupt")
def interrupt(doc: Doc) -> Doc:
    """Fails after the number of docs that a test has set."""
    passing["docs"] -= 1
    if passing["docs"] < 0:
        raise ValueError("interrupted")
    return doc


def save(weights: Path, folder: Path, *, batch_size: int = 1, **config) -> Language:
    """A pipeline that writes a part per record, and that can be interrupted."""
    nlp = elmo_pipeline(weights, batch_size=batch_size, **config)
    nlp.add_pipe("interrupt", first=True)
    nlp.to_disk(folder)
    return nlp


@pytest.fixture
def in_parts(weights_folder: Path, tmp_path: Path) -> Path:
    save(weights_folder, tmp_path / "in_parts")
    return tmp_path / "in_parts"


def interrupted(n: int, *arguments: object) -> None:
    """Leave the parts of a run that ended after so many records."""
    passing["docs"] = n
    try:
        assert "interrupted" in fail("embed", *arguments)
    finally:
        passing["docs"] = math.inf


def same(first: Path, second: Path) -> bool:
    """Whether two HDF5 files hold the same arrays, bit for bit."""
    pairs = list(zip(read(first), read(second), strict=True))
    return bool(pairs) and all(numpy.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_resumed_run_gives_the_same_numbers(precision: str, weights_folder: Path, tmp_path: Path):
    """Bit for bit, though encodings depend on what else is in a batch."""
    save(weights_folder, tmp_path / "pipeline", batch_size=2)
    options = ("-m", tmp_path / "pipeline", "--precision", precision)
    text = tmp_path / "text.txt"
    text.write_text("the bank\na river runs\nmoney\nthe bank of money\nthe river\na bank\n")
    interrupted(5, text, tmp_path / "out.hdf5", *options)
    assert "after the 4 records that" in succeed("embed", text, tmp_path / "out.hdf5", *options)
    succeed("embed", text, tmp_path / "undisturbed.hdf5", *options)
    assert same(tmp_path / "out.hdf5", tmp_path / "undisturbed.hdf5")


def test_other_input_is_not_mixed_with_parts_of_an_earlier_run(
    text: Path, in_parts: Path, tmp_path: Path
):
    out = tmp_path / "out.hdf5"
    interrupted(2, text, out, "-m", in_parts)
    message = fail("embed", text, out, "-m", in_parts, "--layers", "top")
    assert "layers (was all)" in message and "--force" in message
    text.write_text("another\n")
    assert "input differs" in fail("embed", text, out, "-m", in_parts)
    succeed("embed", text, out, "-m", in_parts, "--layers", "top", "--force")
    assert read(out)[0].ndim == 2


def test_another_mix_is_not_mixed_with_parts_of_an_earlier_run(
    text: Path, weights_folder: Path, tmp_path: Path
):
    for layer in (0, 2):
        mix = {"@layers": "spacy-elmo.SingleLayer.v1", "layer": layer}
        save(weights_folder, tmp_path / f"layer{layer}", mix=mix)
    out = tmp_path / "out.hdf5"
    interrupted(2, text, out, "-m", tmp_path / "layer0", "--layers", "mixed")
    message = fail("embed", text, out, "-m", tmp_path / "layer2", "--layers", "mixed")
    assert "elmo (was" in message and "tokenizer (was" not in message


def test_another_tokenizer_is_not_mixed_with_parts_of_an_earlier_run(
    weights_folder: Path, tmp_path: Path
):
    """Its rules are in no config."""
    text, out, folder = tmp_path / "text.txt", tmp_path / "out.hdf5", tmp_path / "pipeline"
    text.write_text("don't\nwon't\n")
    nlp = save(weights_folder, folder)
    interrupted(1, text, out, "-m", folder)
    nlp.tokenizer.rules = {}
    nlp.to_disk(folder)
    assert "tokenizer (was" in fail("embed", text, out, "-m", folder)


def test_other_sentences_are_not_mixed_with_parts_of_an_earlier_run(
    text: Path, weights_folder: Path, tmp_path: Path
):
    """The weights of what splits sentences are in no config."""
    out, folder = tmp_path / "out.hdf5", tmp_path / "pipeline"
    nlp = save(weights_folder, folder)
    senter = nlp.add_pipe("senter", before="elmo")
    nlp.initialize()
    nlp.to_disk(folder)
    interrupted(2, text, out, "-m", folder)
    before = senter.to_bytes()
    for node in senter.model.walk():
        for name in node.param_names:
            node.set_param(name, node.get_param(name) + 1)
    nlp.to_disk(folder)
    assert "senter (was" in fail("embed", text, out, "-m", folder)
    senter.from_bytes(before)
    nlp.to_disk(folder)
    assert "after the 2 records that" in succeed("embed", text, out, "-m", folder)


def test_a_stateful_component_cannot_be_resumed(text: Path, weights_folder: Path, tmp_path: Path):
    save(weights_folder, tmp_path / "pipeline", model={"stateful": True})
    out, options = tmp_path / "out.hdf5", ("-m", tmp_path / "pipeline")
    interrupted(2, text, out, *options)
    message = fail("embed", text, out, *options)
    assert "stateful" in message and "--force" in message
    succeed("embed", text, out, *options, "--force")
    succeed("embed", text, tmp_path / "undisturbed.hdf5", *options)
    assert same(out, tmp_path / "undisturbed.hdf5")


def test_stdin_is_resumed_only_with_the_same_input(in_parts: Path, tmp_path: Path):
    lines = [f"the {word}\n" for word in ("bank", "river", "money", "end")]
    command = ("embed", "-", tmp_path / "out.hdf5", "-m", in_parts)
    broken_off = "".join(lines[:2]).encode() + b"\xff\n"
    assert "stdin, line 3" in fail(*command, stdin=broken_off)
    message = fail(*command, stdin="".join(["another\n", *lines[1:]]))
    assert "input differs" in message and "between records 0 and 1" in message
    assert "input differs" in fail(*command, stdin=lines[0])
    assert "2 records that" in succeed(*command, stdin="".join(lines))
    succeed("embed", "-", tmp_path / "all.hdf5", "-m", in_parts, stdin="".join(lines))
    assert same(tmp_path / "out.hdf5", tmp_path / "all.hdf5")


def test_vectors_are_those_of_the_component_that_is_named(text: Path, tmp_path: Path):
    """Whatever else is in the pipeline: others with other weights, tasks, and a cleaner."""
    nlp = spacy.blank("en")
    expected = {}
    for number, name in enumerate("ab"):
        bilm = random_bilm(seed=number)
        safetensors_format.write(bilm, tmp_path / name)
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
    assert "text.txt, line 2: not utf8" in fail("embed", text, tmp_path / "a.npz", "-m", pipeline)
    jsonl = tmp_path / "in.jsonl"
    problems = {
        "{": "not JSON",
        "3": "must be an object",
        '{"tokens": ["a", ""]}': "empty string",
    }
    for line, problem in problems.items():
        jsonl.write_text(f'{{"text": "good"}}\n{line}\n')
        message = fail("embed", jsonl, tmp_path / "b.npz", "-m", pipeline)
        assert "in.jsonl, line 2" in message and problem in message


def test_choices_of_layers(text: Path, tmp_path: Path):
    """Checked before anything is loaded."""
    result = run("embed", text, tmp_path / "out.npz", "-m", "nowhere", "--layers", "last")
    assert result.exit_code == 2 and "--layers" in result.output
    for output in (result.output, run("embed", "--help").output):
        assert all(name in output for name in ("all", "top", "mixed", "mean"))


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


def test_second_run_on_one_output_is_refused(text: Path, pipeline: Path, tmp_path: Path):
    with exclusive_lock(tmp_path / ".out.hdf5.lock", ""):
        parts = tmp_path / ".out.hdf5.partial"
        parts.touch()
        for options in ([], ["--force"]):
            message = fail("embed", text, tmp_path / "out.hdf5", "-m", pipeline, *options)
            assert "another run" in message
        assert parts.exists()


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_file_of_another_program_is_not_used(
    options: list, text: Path, pipeline: Path, tmp_path: Path
):
    work = tmp_path / ".out.hdf5.partial"
    work.write_text("three years of work")
    command = ("embed", text, tmp_path / "out.hdf5", "-m", pipeline, *options)
    message = fail(*command)
    assert ".out.hdf5.partial" in message and "move it away" in message
    assert work.read_text() == "three years of work" and not (tmp_path / "out.hdf5").exists()
    work.unlink()
    succeed(*command)


def test_what_a_killed_run_leaves_in_the_parts(text: Path, in_parts: Path, tmp_path: Path):
    """A part that is not complete, and a folder of parts without its settings."""
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    interrupted(3, text, out, "-m", in_parts)
    (parts / ".00000003-1-abc.zip.0123456789ab.tmp").write_bytes(b"PK")
    other = tmp_path / "..out.hdf5.partial.0123456789ab.tmp"
    other.mkdir()
    assert "after the 3 records that" in succeed("embed", text, out, "-m", in_parts)
    assert not parts.exists() and not other.exists()
    succeed("embed", text, tmp_path / "undisturbed.hdf5", "-m", in_parts)
    assert same(out, tmp_path / "undisturbed.hdf5")


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_ended_while_the_parts_are_removed(
    options: list, text: Path, in_parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Files may be removed in any order. What is left does not block the output."""
    out, arguments = tmp_path / "out.hdf5", ("-m", in_parts, "-q")

    rmtree = shutil.rmtree

    def remove_settings_only(folder: Path, **options):
        if not list(Path(folder).glob("*.zip")):
            return rmtree(folder, **options)
        (Path(folder) / "settings.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_settings_only)
        assert run("embed", text, out, *arguments).exit_code != 0
    assert len(list(tmp_path.glob(".*out*"))) == 1  # The parts.
    if not options:
        assert "exists already" in fail("embed", text, out, *arguments)
        out.unlink()
    succeed("embed", text, out, *arguments, *options)
    assert not list(tmp_path.glob(".*out*")) and len(read(out)) == len(LINES)


@pytest.mark.parametrize("contents", [b"", b"\xff", b"[1]", b"3"])
def test_damaged_settings(contents: bytes, text: Path, in_parts: Path, tmp_path: Path):
    out, settings = tmp_path / "out.npz", tmp_path / ".out.npz.partial" / "settings.json"
    interrupted(3, text, out, "-m", in_parts)
    settings.write_bytes(contents)
    message = fail("embed", text, out, "-m", in_parts)
    assert "settings.json is damaged" in message and "--force" in message
    assert not out.exists()
    succeed("embed", text, out, "-m", in_parts, "--force")


def other_part(path: Path) -> bytes:
    """A zip file with more records than its name says."""
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("1.npy", b"")
    return path.read_bytes()


@pytest.mark.parametrize(
    "number, damage",
    [
        (0, lambda path: b""),
        (1, lambda path: bytes(path.stat().st_size)),
        (2, lambda path: path.read_bytes()[:-9]),
        (1, other_part),
        (0, None),
        (1, None),
    ],
    ids=["empty", "zeros", "truncated", "other", "first missing", "missing"],
)
def test_damaged_parts_are_computed_again(
    number: int, damage: Callable | None, text: Path, in_parts: Path, tmp_path: Path
):
    """And those after them."""
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    interrupted(3, text, out, "-m", in_parts)
    path = sorted(parts.glob("*.zip"))[number]
    path.unlink() if damage is None else path.write_bytes(damage(path))
    # A kill between this run and the next one.
    n_new = 1
    interrupted(n_new, text, out, "-m", in_parts)
    assert len(list(parts.glob("*.zip"))) == number + n_new
    output = succeed("embed", text, out, "-m", in_parts)
    assert f"after the {number + n_new} record" in output
    succeed("embed", text, tmp_path / "undisturbed.hdf5", "-m", in_parts)
    assert same(out, tmp_path / "undisturbed.hdf5")


def test_damaged_parts_are_reported(text: Path, in_parts: Path, tmp_path: Path):
    """On opening where that is cheap, and else when the output is made of them."""
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    arguments = ("embed", text, out, "-m", in_parts)
    interrupted(3, *arguments[1:])
    paths = sorted(parts.glob("*.zip"))
    paths[1].write_bytes(b"PK")
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 1
    paths[0].write_bytes(data)
    result = run(*arguments)
    output = " ".join(result.output.split())
    assert "2 part(s) of an earlier run are damaged" in output
    assert f"{paths[0].name} is damaged: remove it" in output and result.exit_code == 1
    assert not out.exists()
    paths[0].unlink()
    succeed(*arguments)
    assert len(read(out)) == len(LINES)


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_other_zip_files_among_the_parts(options: list, text: Path, in_parts: Path, tmp_path: Path):
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    interrupted(3, text, out, "-m", in_parts)
    for name in ("notes.zip", "old-backup.zip", "1-2-3.zip"):
        (parts / name).write_text("x")
    output = succeed("embed", text, out, "-m", in_parts, *options)
    assert ("after the 3 records" in output) == (not options)


def test_a_run_that_fails_at_once_leaves_nothing(text: Path, pipeline: Path, tmp_path: Path):
    text.write_bytes(b"\xff")
    fail("embed", text, tmp_path / "new" / "out.hdf5", "-m", pipeline)
    assert not list((tmp_path / "new").iterdir())


def test_an_output_that_is_a_folder(text: Path, pipeline: Path, tmp_path: Path):
    out = tmp_path / "out.hdf5"
    out.mkdir()
    assert "is a folder" in fail("embed", text, out, "-m", pipeline, "--force")


@pytest.mark.parametrize("exists", [True, False])
def test_the_target_of_a_link_is_written(exists: bool, text: Path, pipeline: Path, tmp_path: Path):
    link, target = tmp_path / "link.hdf5", tmp_path / "big" / "target.hdf5"
    target.parent.mkdir()
    if exists:
        target.touch()
    link.symlink_to(target)
    succeed("embed", text, link, "-m", pipeline, *(["--force"] if exists else []))
    assert link.is_symlink() and len(read(target)) == len(LINES)
    assert list(target.parent.iterdir()) == [target]


def test_a_byte_order_mark_is_no_text(pipeline: Path, tmp_path: Path):
    mark = "\ufeff"
    (tmp_path / "plain.txt").write_text("the bank\n")
    (tmp_path / "mark.txt").write_text(f"{mark}the bank\n", encoding="utf8")
    (tmp_path / "mark.jsonl").write_text(f'{mark}{{"text": "the bank"}}\n', encoding="utf8")
    for name in ("plain.txt", "mark.txt", "mark.jsonl"):
        succeed("embed", tmp_path / name, tmp_path / f"{name}.hdf5", "-m", pipeline, "-q")
    for name in ("mark.txt", "mark.jsonl"):
        assert same(tmp_path / "plain.txt.hdf5", tmp_path / f"{name}.hdf5")


def test_a_line_longer_than_what_a_parser_takes(pipeline: Path, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a" * 1_000_001 + " bank\n")
    succeed("embed", text, tmp_path / "out.hdf5", "-m", pipeline, "-q")
    assert read(tmp_path / "out.hdf5")[0].shape == (3, 2, 12)


def test_kinds_of_files(pipeline: Path, in_parts: Path, tmp_path: Path):
    """A folder of all kinds, and the output in it, is read as one file of their lines."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    with gzip.open(folder / "a.txt.gz", "wt", encoding="utf8") as file:
        file.write("the bank\n\n")
    with gzip.open(folder / "b.JSONL.gz", "wt") as file:
        file.write('{"text": "the river"}\n\n{"tokens": ["of", "money"]}\n')
    DocBin(docs=[Doc(spacy.blank("en").vocab, ["a", "bank"])]).to_disk(folder / "c.spacy")
    last = folder / "more" / "d.txt"
    last.write_text("the end\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    plain = tmp_path / "plain.txt"
    plain.write_text("the bank\n\nthe river\n\nof money\na bank\nthe end\n")
    succeed("embed", plain, tmp_path / "plain.hdf5", "-m", in_parts, "-q")

    out = folder / "out.hdf5"
    for n in (1, 2, 2):
        interrupted(n, folder, out, "-m", in_parts)
    assert "after the 5 records that" in succeed("embed", folder, out, "-m", in_parts)
    assert same(out, tmp_path / "plain.hdf5")
    succeed("embed", folder / "**" / "*.gz", tmp_path / "pattern.hdf5", "-m", in_parts)
    assert all(map(numpy.array_equal, read(tmp_path / "pattern.hdf5"), read(out)[:5]))
    # What the command writes is no input.
    interrupted(3, folder, folder / "out.spacy", "-m", in_parts)
    output = succeed("embed", folder, folder / "out.spacy", "-m", in_parts)
    assert "after the 3 records that" in output and "Wrote 7 records" in output
    (tmp_path / "out.spacy").touch()
    command = ("embed", tmp_path / "*.spacy", tmp_path / "out.spacy", "-m", in_parts, "--force")
    assert "besides the output" in fail(*command)


def test_unknown_kinds_of_files_are_refused(pipeline: Path, tmp_path: Path):
    """Below a folder or of a pattern, where they may be anything."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.dat").write_text("a,b\n")
    for source in (folder, folder / "*"):
        message = fail("embed", source, tmp_path / "out.hdf5", "-m", pipeline)
        assert "texts" in message and ".jsonl" in message


ROWS = [
    {"id": "1", "text": 'Great, "really"', "tokens": None, "body": "x"},
    {"id": "2", "text": ["the", "bank"], "tokens": None, "body": "the river"},
    {"id": "3", "text": "", "tokens": ["of", "money"], "body": ["a", "b"]},
]


@pytest.mark.parametrize("options", [(), ("--text", "text"), ("--text", "body")])
def test_the_same_rows_whatever_the_output(options: tuple, pipeline: Path, tmp_path: Path):
    """And whatever the input. "tokens" come before "text", unless a column is named."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))
    name = options[1] if options else None
    texts = [row[name or ("tokens" if row["tokens"] else "text")] for row in ROWS]
    texts = [text for one in texts for text in (one, "")][:-1]  # Between empty lines.
    nlp = spacy.load(pipeline)
    words = [x if isinstance(x, list) else [t.text for t in nlp.tokenizer(x)] for x in texts]
    for out in ("a.npz", "b.hdf5", "c.spacy", "d.parquet"):
        succeed("embed", path, tmp_path / out, "-m", pipeline, "-q", *options)
    docs = DocBin().from_disk(tmp_path / "c.spacy").get_docs(nlp.vocab)
    assert [[token.text for token in doc] for doc in docs] == words
    lengths = list(map(len, words))
    npz = numpy.load(tmp_path / "a.npz")
    assert [npz[str(number)].shape[1] for number in range(len(words))] == lengths
    assert [array.shape[1] for array in read(tmp_path / "b.hdf5")] == lengths
    rows = parquet.read_table(tmp_path / "d.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"{path}:{number}" for number in range(1, 6)]
    means = [npz[str(number)].mean(0).sum(0) / max(n, 1) for number, n in enumerate(lengths)]
    assert max_difference(numpy.array([row["vector"] for row in rows]), numpy.stack(means)) < 0.01


def test_named_columns_of_a_table(pipeline: Path, tmp_path: Path):
    table, lines = tmp_path / "a.tsv", tmp_path / "lines.jsonl"
    table.write_text('text\tbody\nx\t"the\tbank"\ny\t\nz\tmoney\n')
    lines.write_text('{"text": "the\\tbank"}\n\n{"text": "money"}\n')
    succeed("embed", table, tmp_path / "a.hdf5", "-m", pipeline, "--text", "body")
    succeed("embed", lines, tmp_path / "b.hdf5", "-m", pipeline)
    assert same(tmp_path / "a.hdf5", tmp_path / "b.hdf5")
    message = fail("embed", table, tmp_path / "c.hdf5", "-m", pipeline, "--text", "txt")
    assert "a.tsv: no column 'txt', only ['text', 'body']" in message
    assert not (tmp_path / "c.hdf5").exists()


@pytest.mark.parametrize("out", ["out.npz", "out.parquet"])
def test_what_is_no_table_is_not_read_as_one(out: str, text: Path, pipeline: Path, tmp_path: Path):
    for options in (("--text", "text"), ("--id", "id")):
        if out == "out.npz" and options[0] == "--id":
            continue
        message = fail("embed", text, tmp_path / out, "-m", pipeline, *options)
        assert "its lines have no columns: leave out --text" in message
    text.rename(tmp_path / "text.json")
    message = fail("embed", tmp_path / "text.json", tmp_path / out, "-m", pipeline)
    assert ".json is not read: name it .jsonl if" in message
    assert "no such file: missing.csv" in fail("embed", "missing.csv", tmp_path / out, "-m", "x")


@pytest.mark.parametrize("errors", ["strict", "replace", "ignore"])
def test_errors(errors: str, pipeline: Path, tmp_path: Path):
    """For each output. How many lines were affected is said at the end."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path, right = tmp_path / "a.csv", tmp_path / "right.txt"
    path.write_bytes(b"text,id\nthe bank,1\nmoney\nr\xe4iver,3\nbank,4\n")
    for out in ("out.hdf5", "out.parquet"):
        command = ("embed", path, tmp_path / out, "-m", pipeline, "--errors", errors, "-q")
        if errors == "strict":
            message = fail(*command)
            assert "a.csv, row 2 (line 3): has 1 fields, but the header 2" in message
            continue
        what = "replaced" if errors == "replace" else "left out"
        output = " ".join(succeed(*command).split())
        problem = f"Of 2 bad line(s) or row(s), what cannot be read was {what}"
        assert f"{problem} (--errors {errors})" in output
    if errors == "strict":
        return
    texts = {
        "replace": ["the bank", "", "r\ufffdiver", "bank"],
        "ignore": ["the bank", "river", "bank"],
    }
    right.write_text("".join(f"{x}\n" for x in texts[errors]), encoding="utf8")
    assert "bad line" not in succeed("embed", right, tmp_path / "right.hdf5", "-m", pipeline)
    assert same(tmp_path / "out.hdf5", tmp_path / "right.hdf5")
    ids = parquet.read_table(tmp_path / "out.parquet").column("id").to_pylist()
    numbers = [1, 2, 3, 4] if errors == "replace" else [1, 3, 4]
    assert ids == [f"{path}:{number}" for number in numbers]


@pytest.mark.parametrize("name", ["lines.dat", "lines.tok", "lines.v1.2", "lines"])
def test_a_file_that_is_named_may_have_any_suffix(
    name: str, text: Path, pipeline: Path, expected: list, tmp_path: Path
):
    text.rename(tmp_path / name)
    succeed("embed", tmp_path / name, tmp_path / "out.hdf5", "-m", pipeline, "-w", "-q")
    assert max(map(max_difference, read(tmp_path / "out.hdf5"), expected)) <= 1e-6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX only")
def test_a_named_pipe_is_read_like_stdin(pipeline: Path, tmp_path: Path):
    """Such as `embed <(command) vectors.hdf5` makes."""
    pipe, text = tmp_path / "pipe", "the bank\n\nmoney\n"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
    writer.start()
    assert "Wrote 3 records" in succeed("embed", pipe, tmp_path / "pipe.hdf5", "-m", pipeline)
    writer.join()
    succeed("embed", "-", tmp_path / "stdin.hdf5", "-m", pipeline, stdin=text)
    assert same(tmp_path / "pipe.hdf5", tmp_path / "stdin.hdf5")


@pytest.mark.parametrize("name", ["out.npy", "out.csv", "out"])
def test_outputs(name: str, text: Path, pipeline: Path, tmp_path: Path):
    message = fail("embed", text, tmp_path / name, "-m", pipeline)
    suffixes = ".hdf5, .h5, .npz, .spacy, .parquet"
    assert f"{name}: the output must end in one of {suffixes}" in message


def test_one_record(pipeline: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text("the bank\n")
    output = succeed("embed", tmp_path / "text.txt", tmp_path / "out.npz", "-m", pipeline)
    assert "Wrote 1 record to" in output


def test_spacy_finds_the_commands():
    command = [sys.executable, "-m", "spacy", "elmo", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(name in output for name in ("convert", "embed", "export", "info"))
