"""`spacy elmo embed` to Parquet."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
import pytest

from spacy_elmo import EmbedColumns

from .conftest import fail, succeed

arrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
parquet = pytest.importorskip("pyarrow.parquet")

LINES = ["the bank of the river .", "", "🙂 שלום 銀行", "money", "The money flows. It rains."]


def embed(*arguments: object) -> str:
    return succeed("embed", *arguments, "-q")


def read(out: Path) -> dict:
    """The rows by id."""
    rows = parquet.read_table(out).to_pylist()
    by_id = {row["id"]: numpy.array(row["vector"]) for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def same(first: Path, second: Path) -> bool:
    actual, expected = read(first), read(second)
    return actual.keys() == expected.keys() and all(
        numpy.array_equal(actual[key], expected[key]) for key in expected
    )


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def check_manifest(out: Path) -> dict:
    manifest = json.loads((out / "_manifest.json").read_text())
    parts = sorted(path for path in out.glob("part-*"))
    assert list(manifest["parts"]) == [path.name for path in parts]
    for path in parts:
        part = manifest["parts"][path.name]
        assert part["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert part["rows"] == parquet.read_metadata(path).num_rows
        assert parquet.read_metadata(path).num_row_groups == 1
    assert manifest["n_rows"] == sum(part["rows"] for part in manifest["parts"].values())
    return manifest


def test_lines(text: Path, pipeline: Path, tmp_path: Path):
    out = tmp_path / "out.parquet"
    assert "5 rows" in " ".join(embed(text, out, "-m", pipeline, "--rows", 2).split())
    table = parquet.read_table(out)
    assert table.schema.field("vector").type == arrow.list_(arrow.float16(), 12)
    vectors = EmbedColumns(pipeline).embed(LINES)
    for number, vector in enumerate(vectors, start=1):
        assert numpy.array_equal(read(out)[f"{text}:{number}"], vector)
    parts = [f"part-00000-00000{block}.parquet" for block in range(3)]
    assert names(out) == ["_manifest-1-of-1.json", "_manifest.json", "_settings.json", *parts]
    assert check_manifest(out)["n_rows"] == 5
    assert not list(tmp_path.glob(".*"))
    other = tmp_path / "other.parquet"  # Of another program.
    other.mkdir()
    (out / parts[0]).rename(other / "x.parquet")
    for options in ((), ("--force",)):
        message = fail("embed", text, other, "-m", pipeline, *options)
        assert "other.parquet was not written by this command" in message


def write_inputs(folder: Path) -> list[Path]:
    """The same rows in several kinds of files, with an id and another column."""
    folder.mkdir()
    rows = [{"id": f"n{i}", "body": line, "label": i} for i, line in enumerate(LINES)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "a.jsonl").write_text(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "c.parquet", row_group_size=2)
    return [folder / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_named_columns(number: int, pipeline: Path, tmp_path: Path):
    path = write_inputs(tmp_path / "in")[number]
    out = tmp_path / "out.parquet"
    options = ("-m", pipeline, "--text", "body", "--id", "id", "--id", "label", "--rows", 3)
    embed(path, out, *options)
    table = parquet.read_table(out)
    assert table.schema.names == ["id", "label", "vector"]
    labels = [*range(5)] if number == 2 else ["0", "1", "2", "3", "4"]
    assert table.column("label").to_pylist() == labels
    assert [len(x) for x in map(parquet.read_table, sorted(out.glob("part-*")))] == [3, 2]
    expected = EmbedColumns(pipeline).embed(LINES)
    assert numpy.array_equal(numpy.stack([*read(out).values()]), expected)
    assert list(read(out)) == [f"n{i}" for i in range(5)]


def test_texts_can_be_carried_through(text: Path, pipeline: Path, tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    embed(path, text, tmp_path / "out.parquet", "-m", pipeline, "--id", "text")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("text").to_pylist() == LINES * 2
    path.write_text('{"text": "a b", "n": ["a", {}]}\n{"text": "a", "n": null}\n')
    embed(path, tmp_path / "o.parquet", "-m", pipeline, "--id", "n")
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table.column("n").to_pylist() == ['["a", {}]', None]
    lists = arrow.array([[[1], None], None], arrow.list_(arrow.list_(arrow.int64())))
    parquet.write_table(arrow.table({"text": ["a", "b"], "n": lists}), tmp_path / "in.parquet")
    embed(tmp_path / "in.parquet", tmp_path / "n.parquet", "-m", pipeline, "--id", "n")
    assert parquet.read_table(tmp_path / "n.parquet").column("n").to_pylist() == lists.to_pylist()
    message = fail("embed", path, tmp_path / "v.parquet", "-m", pipeline, "--id", "vector")
    assert "--id vector: the vectors have this name" in message


@pytest.mark.parametrize("n_files, n_shards", [(1, 2), (5, 4)])
def test_shards(n_files: int, n_shards: int, pipeline: Path, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(n_files):
        lines = [f"the bank {number} {row} " + "of money " * (row % 5) for row in range(11)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    whole, out = folder / "whole.parquet", folder / "out.parquet"  # Not read as inputs.
    embed(folder, whole, "-m", pipeline, "--rows", 2)
    for shard in range(n_shards, 0, -1):
        assert not (out / "_manifest.json").exists()
        embed(folder, out, "-m", pipeline, "--rows", 2, "--shard", f"{shard}/{n_shards}")
    assert check_manifest(out)["n_rows"] == 11 * n_files and same(out, whole)


def test_a_restart_computes_nothing_again(text: Path, pipeline: Path, tmp_path: Path):
    out = tmp_path / "out.parquet"
    command = (text, out, "-m", pipeline, "--rows", 1)
    embed(*command)
    times = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert "5 of them by an earlier run" in " ".join(embed(*command).split())
    # As another number of shards.
    for shard in (1, 2):
        embed(*command, "--shard", f"{shard}/2")
    assert all(path.stat().st_mtime_ns == times[path] for path in out.glob("part-*"))
    # A missing part and a damaged one.
    before = read(out)
    parts = sorted(out.glob("part-*"))
    parts[1].unlink()
    parts[3].write_bytes(parts[3].read_bytes()[:-20])
    middle = bytearray(parts[4].read_bytes())
    middle[40:60] = bytes(20)
    parts[4].write_bytes(middle)
    assert "2 of them by an earlier run" in " ".join(embed(*command).split())
    assert all(numpy.array_equal(before[key], row) for key, row in read(out).items())
    assert [p.stat().st_mtime_ns == times[p] for p in parts] == [True, False, True, False, False]
    check_manifest(out)


def test_a_url_with_a_query(pipeline: Path, tmp_path: Path):
    """Such as a signature. The compression is that of the file. pyarrow reads .parquet."""
    paths = write_inputs(tmp_path / "in")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "in")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = [f"http://127.0.0.1:{server.server_port}/{x.name}?sig=a%2Fb" for x in paths[:2]]
        urls.append(f"file://{paths[2]}")
        embed(*urls, tmp_path / "out.parquet", "-m", pipeline, "--text", "body", "--id", "id")
        server.shutdown()
    rows = parquet.read_table(tmp_path / "out.parquet")
    assert rows.column("id").to_pylist() == [f"n{i}" for i in range(5)] * 3


@pytest.fixture(params=["a.parquet", "a.jsonl"])
def rows_with_nulls(request, tmp_path: Path) -> Path:
    """Of five, the second and the last two have a text."""
    texts = [None, "the bank", None, "money", ""]
    rows = [{"text": x, "n": None if i == 3 else f"n{i}"} for i, x in enumerate(texts)]
    path = tmp_path / request.param
    if path.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_nulls(rows_with_nulls: Path, pipeline: Path, tmp_path: Path):
    """An error at first. Then the same run continues with null vectors."""
    out = tmp_path / "out.parquet"
    command = ("embed", rows_with_nulls, out, "-m", pipeline, "--id", "n", "--rows", 1)
    message = fail(*command)
    assert rows_with_nulls.name in message and "'text' is null: remove it, or choose" in message
    for earlier in (False, True):
        output = " ".join(succeed(*command, "-q", "--nulls", "empty").split())
        assert "2 of the texts are null, with null vectors" in output
        assert ("5 of them by an earlier run" in output) == earlier
    vectors = EmbedColumns(pipeline).embed(["the bank", "money", ""])
    table = parquet.read_table(out)
    assert table.column("n").to_pylist() == ["n0", "n1", "n2", None, "n4"]
    assert table.column("vector").is_valid().to_pylist() == [False, True, False, True, True]
    filled = table.column("vector").drop_null().to_pylist()
    assert numpy.array_equal(numpy.array(filled, "float16"), vectors)
    assert [x["nulls"] for x in check_manifest(out)["parts"].values()] == [1, 0, 1, 0, 0]


def test_rows_are_counted_from_the_start_of_the_file(pipeline: Path, tmp_path: Path):
    texts = ["money"] * 9
    texts[7] = None
    parquet.write_table(arrow.table({"text": texts}), tmp_path / "in.parquet")
    message = fail(
        "embed", tmp_path / "in.parquet", tmp_path / "out.parquet", "-m", pipeline, "--rows", 3
    )
    assert "in.parquet, row 8: 'text' is null" in message


def test_tables_are_what_pandas_reads(pipeline: Path, tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    texts = ['Great, "really"', "Two\nlines, in one field", "", " a,b ", '"', "\r\n", "bank"]
    frame = pandas.DataFrame({"id": [f"n{i}" for i in range(7)], "n": range(7), "text": texts})
    for name in ("reviews.csv", "reviews.csv.gz", "reviews.tsv"):
        path, out = tmp_path / name, tmp_path / f"{name}.parquet"
        separator = "\t" if name.endswith("tsv") else ","
        frame.to_csv(path, index=False, sep=separator, encoding="utf-8-sig")
        embed(path, out, "-m", pipeline, "--text", "text", "--id", "id", "--id", "text")
        expected = pandas.read_csv(path, sep=separator, keep_default_na=False, lineterminator=None)
        rows = parquet.read_table(out).to_pylist()
        assert [row["id"] for row in rows] == expected["id"].to_list()
        assert [row["text"] for row in rows] == expected["text"].to_list() == texts
        vectors = numpy.array([row["vector"] for row in rows])
        assert numpy.array_equal(vectors, EmbedColumns(pipeline).embed(texts))


def test_without_arrow(text: Path, pipeline: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = fail("embed", text, tmp_path / "out.parquet", "-m", pipeline)
    assert 'pip install "spacy-elmo[arrow]"' in message
    assert not (tmp_path / "out.parquet").exists()


def make_lines(path: Path, n: int) -> None:
    chance = random.Random(0)
    words = ["the", "bank", "river", "money", "of"]
    lines = (" ".join(chance.choices(words, k=chance.randint(0, 30))) for _ in range(n))
    path.write_text("\n".join(lines))
