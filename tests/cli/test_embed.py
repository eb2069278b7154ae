from __future__ import annotations

import gzip
import json
import math
import os
import threading
from pathlib import Path

import h5py
import numpy
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from spacy_elmo.bilm import BiLM
from spacy_elmo.bulk.job import default_rows
from spacy_elmo.files import exclusive_lock
from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import current_session

from ..conftest import add_tagger, elmo_pipeline, listener, max_difference, random_bilm, tagged
from .conftest import fail, succeed

LINES = ["the bank of the river .", "", "🙂 e\u0301 שלום 銀行", "money"]


@pytest.fixture
def expected(bilm: BiLM) -> list[numpy.ndarray]:
    return [
        layers.numpy() for layers in current_session(bilm).embed([line.split() for line in LINES])
    ]


def unwrapped(*arguments: object, stdin: str | None = None) -> str:
    return " ".join(succeed(*arguments, stdin=stdin).split())


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


JOINED = ("hdf5", "npz", "spacy")


def arrays_of(out: Path) -> list[numpy.ndarray]:
    """What an output has for each row."""
    if out.suffix == ".hdf5":
        return read(out)
    if out.suffix == ".npz":
        npz = numpy.load(out)
        # The same bytes in every run.
        assert {file.date_time[0] for file in npz.zip.infolist()} == {1980}
        return [npz[str(number)] for number in range(len(npz.files))]
    docs = DocBin().from_disk(out).get_docs(spacy.blank("en").vocab)
    return [x._.elmo_tokens if x._.elmo_layers is None else x._.elmo_layers for x in docs]


@pytest.mark.parametrize("layers", ["all", "mix", "1"])
@pytest.mark.parametrize("suffix", JOINED)
def test_choice_of_layers(suffix, layers, text: Path, pipeline: Path, expected: list, tmp_path):
    choose = {"all": lambda x: x, "mix": lambda x: x.mean(0), "1": lambda x: x[1]}
    out = tmp_path / f"out.{suffix}"
    succeed("embed", text, out, "-m", pipeline, "--whitespace", "--layers", layers)
    actual = arrays_of(out)
    assert max(map(max_difference, actual, map(choose[layers], expected))) <= 1e-6
    if suffix != "spacy":
        options = ("--layers", layers, "--pool", "mean", "--dtype", "float16", "--force", "-w")
        succeed("embed", text, out, "-m", pipeline, *options)
        for pooled, array in zip(arrays_of(out), actual, strict=True):
            assert pooled.dtype == "float16"
            assert max_difference(pooled, array.sum(-2) / max(array.shape[-2], 1)) <= 1e-3


def test_pooled_as_docs_are(pipeline: Path, tmp_path: Path):
    """--pool doc is `doc._.elmo`, of the mix, where the default is all layers."""
    (tmp_path / "a.txt").write_text("the bank\n")
    succeed("embed", tmp_path / "a.txt", tmp_path / "a.npz", "-m", pipeline, "--pool", "doc")
    [found] = arrays_of(tmp_path / "a.npz")
    assert max_difference(found, spacy.load(pipeline)("the bank")._.elmo) <= 1e-6


@pytest.mark.parametrize("suffix", JOINED)
def test_nulls(suffix: str, pipeline: Path, tmp_path: Path):
    """They are like empty lines, but counted."""
    path, out = tmp_path / "in.jsonl", tmp_path / f"out.{suffix}"
    path.write_text('{"text": "a b"}\n\n{"text": null}\n{"text": null}\n{"text": "c"}\n')
    command = ("embed", path, out, "-m", pipeline)
    assert "line 3: 'text' is null: remove it, or choose nulls 'empty'" in fail(*command)
    output = unwrapped(*command, "-q", "--nulls", "empty")
    assert "2 of the texts are null, with no tokens" in output
    assert [array.shape for array in arrays_of(out)] == [(3, n, 12) for n in (2, 0, 0, 1)]


# How many docs the component below accepts before it fails.
passing = {"docs": math.inf}


@Language.component("interrupt")
def interrupt(doc: Doc) -> Doc:
    """Fails after the number of docs that a test has set."""
    passing["docs"] -= 1
    if passing["docs"] < 0:
        raise ValueError("interrupted")
    return doc


def save(weights: Path, folder: Path, **config) -> Language:
    """A pipeline that can be interrupted."""
    nlp = elmo_pipeline(weights, **config)
    nlp.add_pipe("interrupt", first=True)
    nlp.to_disk(folder)
    return nlp


@pytest.fixture
def interruptible(weights_folder: Path, tmp_path: Path) -> Path:
    save(weights_folder, tmp_path / "interruptible")
    return tmp_path / "interruptible"


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
def test_a_resumed_run_gives_the_same_numbers(precision: str, interruptible: Path, tmp_path: Path):
    """Bit for bit, though encodings depend on what else is in a batch."""
    options = ("-m", interruptible, "--precision", precision, "--rows", 2)
    text = tmp_path / "text.txt"
    text.write_text("the bank\na river runs\nmoney\nthe bank of money\nthe river\na bank\n")
    interrupted(5, text, tmp_path / "out.hdf5", *options)
    output = unwrapped("embed", text, tmp_path / "out.hdf5", *options)
    assert "6 rows, 4 of them by an earlier run" in output
    succeed("embed", text, tmp_path / "undisturbed.hdf5", *options)
    assert same(tmp_path / "out.hdf5", tmp_path / "undisturbed.hdf5")
    assert not list(tmp_path.glob(".*"))


def test_other_runs_are_not_mixed_with_parts_of_an_earlier_one(
    text: Path, weights_folder: Path, tmp_path: Path
):
    out, folder = tmp_path / "out.hdf5", tmp_path / "pipeline"
    nlp = save(weights_folder, folder)
    nlp.add_pipe("sentencizer", before="elmo")
    nlp.to_disk(folder)
    command = (text, out, "-m", folder, "--rows", 1)
    interrupted(2, *command)
    options = ("--layers", "top", "--dtype", "float16", "--precision", "int8", "--rows", 2)
    options += ("--errors", "ignore", "--encoding", "latin1", "--whitespace")
    message = fail("embed", *command, *options)
    names = "dtype, encoding, errors, layers, precision, rows, whitespace"
    assert f"differs from this run in {names}: choose another output" in message
    content = text.read_text(encoding="utf8")
    text.write_text(content.replace("the bank", "the sank"), encoding="utf8")
    assert "rows 1 to 1: other rows than those that" in fail("embed", *command)
    text.write_text("another\n")
    assert "differs from this run in inputs" in fail("embed", *command)
    text.write_text(content, encoding="utf8")
    nlp.get_pipe("sentencizer").punct_chars.add("!!")  # In no config, as the next one.
    nlp.tokenizer.rules = {}
    nlp.to_disk(folder)
    assert "differs from this run in sentencizer, tokenizer:" in fail("embed", *command)
    succeed("embed", *command, "--layers", "top", "--force")
    assert read(out)[0].ndim == 2


def test_stdin_is_resumed_only_with_the_same_input(interruptible: Path, tmp_path: Path):
    lines = [f"the {word}\n" for word in ("bank", "river", "money", "end")]
    command = ("embed", "-", tmp_path / "out.hdf5", "-m", interruptible, "--rows", 1)
    broken_off = "".join(lines[:2]).encode() + b"\xff\n"
    assert "stdin, line 3" in fail(*command, stdin=broken_off)
    message = fail(*command, stdin="".join(["another\n", *lines[1:]]))
    assert "-, rows 1 to 1: other rows than those" in message
    assert "has rows that are gone" in fail(*command, stdin=lines[0])
    assert "2 of them by an earlier run" in unwrapped(*command, stdin="".join(lines))
    command = ("embed", "-", tmp_path / "all.hdf5", *command[3:])
    succeed(*command, stdin="".join(lines))
    assert same(tmp_path / "out.hdf5", tmp_path / "all.hdf5")


def test_damaged_parts(text: Path, interruptible: Path, tmp_path: Path):
    """They are computed again, where that is seen on opening them, and else reported."""
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    command = ("embed", text, out, "-m", interruptible, "--rows", 1)
    interrupted(3, *command[1:])
    (parts / ".part-00000-000003.npz.0123456789ab.tmp").write_bytes(b"PK")
    other = tmp_path / "..out.hdf5.partial.0123456789ab.tmp"
    other.mkdir()
    paths = sorted(parts.glob("part-*"))
    data = bytearray(paths[0].read_bytes())
    data[150] ^= 1
    paths[0].write_bytes(data)
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    paths[2].write_bytes(b"")
    assert f"{paths[0].name} is damaged: remove it" in fail(*command)
    assert not out.exists() and not list(parts.glob(".part-*"))
    paths[0].unlink()
    assert "3 of them by an earlier run" in unwrapped(*command)
    assert not parts.exists() and not other.exists()
    succeed("embed", text, tmp_path / "undisturbed.hdf5", *command[3:])
    assert same(out, tmp_path / "undisturbed.hdf5")


def test_vectors_are_those_of_the_component_that_is_named(text: Path, tmp_path: Path):
    """Whatever else is in the pipeline: others with other weights, tasks, and a cleaner."""
    nlp = spacy.blank("en")
    expected = {}
    for number, name in enumerate("ab"):
        bilm = random_bilm(seed=number)
        safetensors_format.write(bilm, tmp_path / name)
        nlp.add_pipe("elmo", name=name, config={"model": {"weights": str(tmp_path / name)}})
        embedded = current_session(bilm).embed([line.split() for line in LINES])
        expected[name] = [layers.numpy() for layers in embedded]
    add_tagger(nlp, listener(upstream="a"))
    nlp.initialize(lambda: tagged(nlp))
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.elmo_layers": None, "_.elmo_tokens": None}})
    nlp.to_disk(tmp_path / "pipeline")
    for name in "ab":
        out = tmp_path / f"{name}.hdf5"
        succeed("embed", text, out, "-m", tmp_path / "pipeline", "--name", name, "--whitespace")
        assert max(map(max_difference, read(out), expected[name])) <= 1e-6


def test_bad_input(pipeline: Path, tmp_path: Path):
    jsonl = tmp_path / "in.jsonl"
    jsonl.write_text('{"text": "good"}\n{"tokens": ["a", ""]}\n')
    message = fail("embed", jsonl, tmp_path / "new" / "b.npz", "-m", pipeline)
    assert "in.jsonl, line 2: 'tokens' is neither a string nor a list of tokens" in message
    assert not list((tmp_path / "new").iterdir())  # Nothing binds the next run.


@pytest.mark.parametrize(
    "name, options, problem",
    [
        ("out.pkl", (), "out.pkl must be a path that ends in .hdf5, .h5, .npz, .spacy, .parquet"),
        ("s3://x/out.npz", (), "must be a path that ends"),
        ("out.hdf5", ("--precision", "float64"), "float64"),
        ("out.hdf5", ("--layers", "last"), "layers must be one of all, top, mix, mean"),
        ("out.hdf5", ("--layers", 9), "layers must be from -3 to 2, found 9"),
        ("out.hdf5", ("--workers", 2), "--workers has no meaning with --engine local"),
        ("out.npz", ("--shard", "1/2"), "--shard has no meaning with .npz: leave it out"),
        ("out.parquet", ("--engine", "ray", "--shard", "1/2"), "--shard has no meaning with --eng"),
        ("out.parquet", ("--shard", "3/2"), "--shard must be I/N, with I from 1 to N"),
        ("out.parquet", ("--shard", "1/2", "-F"), "no --force, found '1/2'"),
        ("out.parquet", ("--id", "text", "--id", "vector"), "have no columns"),
    ],
)
def test_bad_arguments(name: str, options: tuple, problem: str, text: Path, pipeline: Path):
    out = name if "://" in name else text.parent / name
    assert problem in fail("embed", text, out, "-m", pipeline, *options)
    assert not list(text.parent.glob("*out*"))


def test_outputs_that_are_there(text: Path, pipeline: Path, tmp_path: Path):
    out, parts = tmp_path / "out.hdf5", tmp_path / ".out.hdf5.partial"
    command = ("embed", text, out, "-m", pipeline)
    parts.write_text("three years of work")
    for options in ((), ("--force",)):
        assert "partial was not written by this command" in fail(*command, *options)
    assert parts.read_text() == "three years of work" and not out.exists()
    parts.unlink()
    succeed(*command)
    assert "exists: choose another" in fail(*command)
    assert "the same text twice" in fail("embed", text, text, *command[2:], "--force")
    out.unlink()
    out.mkdir()
    assert "exists: choose another" in fail(*command, "--force")
    assert "give inputs and an output" in fail("embed", out, "-m", pipeline)


@pytest.mark.parametrize("name", ["out.hdf5", "out.parquet"])
def test_a_second_run_is_refused(name: str, text: Path, interruptible: Path, tmp_path: Path):
    command = ("embed", text, tmp_path / name, "-m", interruptible, "--rows", 1)
    interrupted(1, *command[1:])
    folder = tmp_path / (name if name == "out.parquet" else f".{name}.partial")
    with exclusive_lock(folder / ".shard-1-of-1.lock", ""):
        for options in ((), ("--force",)):
            assert "another run is writing" in fail(*command, *options)
    assert len(list(folder.glob("part-*"))) == 1
    succeed(*command, "--force")


def test_kinds_of_files(pipeline: Path, tmp_path: Path):
    """A folder of all kinds, and the output in it, is read as one file of their lines."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    with gzip.open(folder / "a.txt.gz", "wt", encoding="utf8") as file:
        file.write("the bank\n\n")
    with gzip.open(folder / "b.JSONL.gz", "wt") as file:
        file.write('{"text": "the river"}\n\n{"tokens": ["of", "money"]}\n')
    DocBin(docs=[Doc(spacy.blank("en").vocab, ["a", "bank"])]).to_disk(folder / "c.spacy")
    (folder / "more" / "d.txt").write_text("the end\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    plain = tmp_path / "plain.txt"
    plain.write_text("the bank\n\nthe river\nof money\na bank\nthe end\n")
    options = ("-m", pipeline, "-q", "--rows", 1)
    succeed("embed", plain, tmp_path / "plain.hdf5", *options)
    succeed("embed", folder, folder / "out.hdf5", *options)
    assert same(folder / "out.hdf5", tmp_path / "plain.hdf5")
    # What the command writes is no input.
    succeed("embed", folder, folder / "out.spacy", *options)
    assert "6 rows" in unwrapped("embed", folder, folder / "out.spacy", *options, "-F")
    (tmp_path / "out.spacy").touch()
    command = ("embed", tmp_path / "*.spacy", tmp_path / "out.spacy", "-m", pipeline, "-F")
    assert "besides the output" in fail(*command)


ROWS = [
    {"id": "1", "text": 'Great, "really"', "tokens": None, "body": "x"},
    {"id": "2", "text": ["the", "bank"], "tokens": None, "body": "the river"},
    {"id": "3", "text": "", "tokens": ["of", "money"], "body": ["a", "b"]},
]


@pytest.mark.parametrize("options", [(), ("--text", "body")])
def test_the_same_rows_whatever_the_output(options: tuple, pipeline: Path, tmp_path: Path):
    """And whatever the input. "tokens" come before "text", unless a column is named."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    name = options[1] if options else None
    texts = [row[name or ("tokens" if row["tokens"] else "text")] for row in ROWS]
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
    assert [row["id"] for row in rows] == [f"{path}:{number}" for number in (1, 2, 3)]
    means = [npz[str(number)].mean(0).sum(0) / max(n, 1) for number, n in enumerate(lengths)]
    assert max_difference(numpy.array([row["vector"] for row in rows]), numpy.stack(means)) < 0.01


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX only")
def test_a_named_pipe_is_read_like_stdin(pipeline: Path, tmp_path: Path):
    """Such as `embed <(command) vectors.hdf5` makes."""
    pipe, text = tmp_path / "pipe", "the bank\n\nmoney\n"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
    writer.start()
    assert "3 rows" in unwrapped("embed", pipe, tmp_path / "pipe.hdf5", "-m", pipeline)
    writer.join()
    succeed("embed", "-", tmp_path / "stdin.hdf5", "-m", pipeline, stdin=text)
    assert same(tmp_path / "pipe.hdf5", tmp_path / "stdin.hdf5")


def test_bad_lines_are_counted(pipeline: Path, tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"body,id\nthe bank,1\nmoney\nr\xe4iver,3\nbank,4\n")
    command = ("embed", path, tmp_path / "a.npz", "-m", pipeline, "--text", "body")
    assert "a.csv, row 2: has 1 fields, but the header 2" in fail(*command)
    for errors, n, what in (("replace", 4, "replaced"), ("ignore", 3, "left out")):
        output = unwrapped(*command, "--errors", errors, "--force")
        assert f"Of 2 bad line(s) or row(s), what cannot be read was {what}" in output
        assert len(arrays_of(tmp_path / "a.npz")) == n


def test_parts_have_tens_of_megabytes():
    """Of 20 tokens, with 3 layers of 512 numbers in float32."""
    sizes = {"all": 20 * 3 * 512 * 4, "mix": 20 * 512 * 4}
    for layers, size in sizes.items():
        assert 10e6 < default_rows("none", layers) * size < 100e6
    assert default_rows("mean", "all") == 16_384
