"""Reading texts from files of all kinds."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from spacy_elmo.tools.records import Reader
from spacy_elmo.tools.texts import find_files, read_docs, read_texts


@pytest.fixture
def files(tmp_path):
    """The same two texts in every kind of file."""
    texts = ["The bank .", "Zoë sees 李"]
    lines = "\n".join([texts[0], "", "  ", texts[1]]) + "\n"
    records = "".join(json.dumps({"text": text, "label": 1}) + "\n" for text in texts)
    (tmp_path / "a.txt").write_text(lines, encoding="utf8")
    (tmp_path / "b.jsonl").write_text(records, encoding="utf8")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    nlp = spacy.blank("en")
    docs = [Doc(nlp.vocab, words=text.split()) for text in texts]
    DocBin(docs=docs).to_disk(tmp_path / "e.spacy")
    (tmp_path / "readme.md").write_text("not a text")
    return tmp_path, texts


@pytest.mark.parametrize("module", [bz2, gzip, lzma])
def test_compressed_files(module, tmp_path):
    suffix = {bz2: ".bz2", gzip: ".gz", lzma: ".xz"}[module]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(module.compress("one line\nčau\n".encode()))
    assert list(read_texts(find_files([tmp_path]))) == ["one line", "čau"]


def test_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one line\n\nanother\n")))
    assert list(read_texts(find_files(["-"]))) == ["one line", "another"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\nb\xe4d\n")))
    with pytest.raises(ValueError, match="stdin, line 2: not utf8"):
        list(read_texts(find_files(["-"])))


def test_docs_and_texts(tmp_path):
    """Docs keep empty lines and lists of tokens; texts are strings that are not empty."""
    nlp = spacy.blank("en")
    (tmp_path / "a.txt").write_text("It's here.\n\n" + "word " * 3000)
    records = [{"text": "It's", "tokens": ["It's"]}, {"tokens": ["a", "b c"]}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    files = find_files([tmp_path])
    (first, _, *others) = read_texts(files)
    assert [first, *others] == ["It's here.", "It's", "a b c"]
    docs = [[token.text for token in doc] for doc, _ in read_docs(nlp, files)]
    long = ["word"]
    assert docs[:2] + docs[4:] == [["It", "'s", "here", "."], [], ["It's"], ["a", "b c"]]
    assert docs[2:4] == [long * 2000, long * 1000]  # It is cut.


def test_zst(tmp_path):
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = pytest.importorskip(name)
    frames = [zstd.compress(text) for text in (b"one line\n", b"another\n" * 99)]
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"".join(frames))
    assert list(read_texts([path])) == ["one line"] + ["another"] * 99
    path.write_bytes(b"".join(frames)[:-5])
    with pytest.raises(ValueError, match=r"a.txt.zst.*ended before the end"):
        list(read_texts([path]))


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.txt", b"good\nb\xe4d\n", r"a.txt, line 2: not utf8 text: .* --encoding"),
        ("a.txt", b"good\n\0\1\n", r"a.txt, line 2: .*NUL"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"txt": "a"}\n', r"a.jsonl, line 1: no 'text', only .'txt'.$"),
        ("a.jsonl", b'{"text": 3}\n', r"a.jsonl, line 1: 'text' is neither a string nor"),
        ("a.jsonl", b'["text"]\n', r"a.jsonl, line 1: no object"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl, line 1: not JSON: .*recursion"),
        ("a.txt.gz", b"not gzip", r"a.txt.gz: "),
        ("a.txt.gz", gzip.compress(b"text\n" * 99, mtime=0)[:-9], r"a.txt.gz: .*ended before"),
        ("a.txt.zst", b"not zst", r"a.txt.zst: "),
        ("a.spacy", b"not docs", r"a.spacy: "),
        (
            "a.csv",
            b"id,body\n1,a\n",
            r"a.csv: .* one column 'text', found .*: .*--text",
        ),
        ("a.csv", b"text,text\na,b\n", r"a.csv: there must be one column 'text', found"),
        ("a.csv", b"", r"a.csv: there must be one column 'text', found \[\]"),
        ("a.csv", b'text\na\n\nb\n"c\nd\n', r"a.csv, after row 2: a quote in the next row is not"),
        ("a.csv", b'"text\na', r"a.csv: there must be one column"),
        ("a.csv", b'id,text\n1,"a\nb"\n\n2\n', r"a.csv, row 2: has 1 fields, but the header 2"),
        ("a.csv", b"id,text\n1,a\n2,\xff\n", r"a.csv, row 2: not utf8"),
    ],
)
def test_bad_files(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        list(read_texts([tmp_path / name]))


def test_other_encodings(tmp_path):
    (tmp_path / "a.txt").write_bytes("Bär\n".encode("latin1"))
    assert list(read_texts([tmp_path / "a.txt"], Reader(encoding="latin1"))) == ["Bär"]
    assert list(read_texts([tmp_path / "a.txt"], Reader(errors="replace"))) == ["B\ufffdr"]
    (tmp_path / "b.txt").write_bytes("Bär\u2028\nčau\n".encode("utf-16"))
    assert list(read_texts([tmp_path / "b.txt"], Reader(encoding="utf-16"))) == ["Bär", "čau"]
    (tmp_path / "c.txt").write_bytes("\ufeffBär\n".encode())
    assert list(read_texts([tmp_path / "c.txt"])) == ["Bär"]
    for arguments, message in (
        ({"encoding": "rot13"}, "give an --encoding of text"),
        ({"errors": "xmlcharrefreplace"}, "--errors strict, replace, ignore"),
    ):
        with pytest.raises(ValueError, match=message):
            Reader(**arguments)


@pytest.mark.parametrize("name", ["a.pdf", "a.JSON.gz", "a.iob.part1", "a.tar.gz"])
def test_formats_that_are_not_read(name, tmp_path):
    (tmp_path / name).write_text("text")
    for source in (tmp_path / name, tmp_path / "a*"):
        with pytest.raises(ValueError, match=r"is not read: write .txt.*`python -m spacy convert"):
            find_files([source])


def test_columns_of_what_has_none(files):
    folder, _ = files
    for name, kind in (("c.txt.gz", "lines"), ("e.spacy", "docs")):
        with pytest.raises(ValueError, match=f"{name}: its {kind} have no columns: leave out"):
            find_files([folder / name], columns=True)
    assert find_files([folder / "b.jsonl"], columns=True)


def test_parquet(tmp_path):
    """Values of other columns keep their types."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["a", None, "b"], "n": pyarrow.array([1, None, 3], "int16")})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    (path,) = find_files([tmp_path])
    records = list(Reader(nulls="empty").read(path, ["n"]))
    assert [text for _, text, _ in records] == ["a", None, "b"]
    assert [values for *_, values in records] == [[x] for x in table.column("n")]
    with pytest.raises(ValueError, match=r"a.parquet, row 2: 'text' is null: remove it, or choose"):
        list(read_texts([path]))
    with pytest.raises(ValueError, match=r"a.parquet: there must be one column 'body'"):
        list(Reader("body").read(path))


TABLES = [
    pytest.param('id,text\n1,"Great, ""really"""\n2,"Two\nlines"\n', id="quotes"),
    pytest.param('text,id\r\n"a\r\nb",1\r\n\r\n"",2\r\n"\r",3\r\n', id="crlf"),
    pytest.param('\ufeff"text",id\na,1\n\n\n" b ",2', id="bom"),
    pytest.param("id,text\r1,a\r2,b\r", id="cr"),
    pytest.param('id,text\n1,a"b"c\n2,"a"b\n3,\u2028\x0b\x85\n', id="odd"),
    pytest.param("id,text\n", id="header"),
    pytest.param('id,text\n1,"' + "word " * 40_000 + '"\n', id="long"),
]


@pytest.mark.parametrize("suffix", [".tsv", ".CSV.bz2"])
@pytest.mark.parametrize("content", TABLES)
def test_tables_are_what_the_csv_module_reads(content, suffix, tmp_path):
    if suffix == ".tsv":
        content = content.replace(",", "\t")
    pack = {"z": gzip.compress, "2": bz2.compress}.get(suffix[-1], bytes)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(content.encode()))
    monkey = csv.field_size_limit(10**9)
    lines = io.StringIO(content.removeprefix("\ufeff"), newline="")
    rows = list(csv.DictReader(lines, delimiter="\t" if suffix == ".tsv" else ","))
    csv.field_size_limit(monkey)
    records = list(Reader().read(path, ["id"]))
    expected = [(n, row["text"], [row["id"]]) for n, row in enumerate(rows, start=1)]
    assert records == expected
    assert find_files([tmp_path]) == [path]


BAD = {
    "a.txt": (b"good\nb\xe4d\nnu\0l\nend\n", ["good", "b\ufffdd", "nu\ufffdl", "end"]),
    "a.jsonl": (
        b'{"text": "good"}\n{"text": \n[1]\n{"text": 3}\n{"txt": "a"}\n{"text": "b\xe4"}\n'
        b'{"tokens": ["a", ""]}\n{"text": null}\n' + b"[" * 100_000 + b"\n{\"text\": \"end\"}\n",
        ["good", "", "", "", "", "b\ufffd", "", "", "", "end"],
    ),
    "a.csv": (
        b'id,text\n1,good\n2\n3,"b\xe4\n\xe4",x\n\n4,b\xe4\n5,end\n',
        ["good", "", "", "b\ufffd", "end"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_hold_for_all_that_can_be_wrong(name, tmp_path):
    """What is bad keeps its place, or is left out. Numbers are those of the file."""
    data, replaced = BAD[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}, (line|row) 2: "):
        list(Reader().read(path))
    n_bad = {"a.txt": 2, "a.jsonl": 8, "a.csv": 3}[name]
    reader = Reader(errors="replace")
    assert [text for _, text, _ in reader.read(path)] == replaced and reader.n_bad == n_bad
    reader = Reader(errors="ignore")
    left = [(n, x.replace("\ufffd", ""), []) for n, x in enumerate(replaced, start=1) if x]
    assert list(reader.read(path)) == left and reader.n_bad == n_bad


def test_errors_of_other_encodings(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("good\nb".encode("utf-16-le") + b"\x00\xdc" + "d\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"a\.txt, line 2: not utf-16-le"):
        list(Reader(encoding="utf-16-le").read(path))
    reader = Reader(encoding="utf-16-le", errors="replace")
    assert list(read_texts([path], reader)) == ["good", "b\ufffdd"] and reader.n_bad == 1


def test_a_bad_record_keeps_its_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "text": null}\n\n{"text": "a"}\n{"id": true, "body": ["b"]}\n')
    rows = list(Reader(errors="replace").read(path, ["id"]))
    assert rows == [(1, "", ["1"]), (3, "", [""]), (4, "", ["true"])]
    reader = Reader(text="body", errors="ignore")
    assert list(reader.read(path, ["id"])) == [(4, ["b"], ["true"])]
    assert reader.n_bad == 2


def test_progress_adds_up_to_the_size(files):
    folder, _ = files
    done = []
    for path in find_files([folder]):
        texts = list(read_texts([path], progress=done.append))
        assert texts and sum(done) == path.stat().st_size
        done.clear()


def test_a_folder_that_is_named_is_read(tmp_path):
    """Even if it looks like one that this package writes; one below it is not."""
    for name in ("", "below"):
        (tmp_path / name).mkdir(exist_ok=True)
        for file in ("text.txt", "config.cfg", "meta.json"):
            (tmp_path / name / file).write_text("{}")
    skipped = []
    assert find_files([tmp_path], skipped.append) == [tmp_path / "text.txt"]
    assert skipped == [tmp_path / "below"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links on this system")
@pytest.mark.parametrize(
    "pattern, names",
    [
        ("texts/**/*.txt", ["a.txt", "deep/c.txt", "linked/b.txt"]),
        ("texts/.h*/*.txt", [".hidden/d.txt"]),
        ("texts/*/../a.txt", ["deep/../a.txt", "linked/../a.txt"]),
    ],
)
def test_patterns(pattern, names, tmp_path):
    """They match what `glob` matches."""
    for name in ("a.txt", ".h.txt", "deep/c.txt", ".hidden/d.txt", "../other/b.txt"):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "other")
    if pattern == "texts/*/../a.txt":
        (tmp_path / "a.txt").touch()  # Where `linked/..` leads.
    files = find_files([tmp_path / pattern])
    assert files == [tmp_path / "texts" / name for name in names]


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="closed"):
        find_files([tmp_path])
