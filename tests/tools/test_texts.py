"""Reading texts from files of all kinds."""

import bz2
import gzip
import io
import json
import lzma
import os
import sys

import pytest
import spacy
from spacy.tokens import Doc, DocBin

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


def test_every_kind_of_file(files):
    folder, texts = files
    for path in find_files([folder]):
        assert list(read_texts([path])) == texts, path
    assert [path.name for path in find_files([folder])] == [
        "a.txt", "b.jsonl", "c.txt.gz", "d.jsonl.gz", "e.spacy",
    ]  # fmt: skip
    assert find_files([folder / "*.gz"]) == [folder / "c.txt.gz", folder / "d.jsonl.gz"]


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
    (tmp_path / "a.txt").write_text("It's here.\n\n")
    records = [{"text": "It's", "tokens": ["It's"]}, {"tokens": ["a", "b c"]}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    files = find_files([tmp_path])
    assert list(read_texts(files)) == ["It's here.", "It's", "a b c"]
    docs = [[token.text for token in doc] for doc in read_docs(nlp, files)]
    assert docs == [["It", "'s", "here", "."], [], ["It's"], ["a", "b c"]]
    docs = [[token.text for token in doc] for doc in read_docs(nlp, files, whitespace=True)]
    assert docs == [["It's", "here."], [], ["It's"], ["a", "b c"]]


def test_zst(tmp_path):
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = pytest.importorskip(name)
    frames = [zstd.compress(text) for text in (b"one line\n", b"another\n" * 99)]
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"".join(frames))
    assert list(read_texts([path])) == ["one line"] + ["another"] * 99
    path.write_bytes(b"".join(frames)[:-5])
    with pytest.raises(ValueError, match=r"a.txt.zst, after line .*ended before the end"):
        list(read_texts([path]))


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.txt", b"good\nb\xe4d\n", r"a.txt, line 2: not utf8 .* --encoding"),
        ("a.txt", b"good\n\0\1\n", r"a.txt, line 2: .*NUL"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a.jsonl, line 2"),
        ("a.jsonl", b'{"txt": "a"}\n', r'a.jsonl, line 1: .*string "text"'),
        ("a.jsonl", b'["text"]\n', r"a.jsonl, line 1"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl, line 1: .*too deep"),
        ("a.txt.gz", b"not gzip", r"a.txt.gz, line 0|a.txt.gz, after line 0"),
        ("a.txt.gz", gzip.compress(b"text\n" * 99, mtime=0)[:-9], r"a.txt.gz, after line"),
        (
            "a.txt.gz",
            gzip.compress(bytes(range(256)) * 9, mtime=0)[:20] + b"\xff" * 40,
            "a.txt.gz, after",
        ),
        ("a.txt.zst", b"not zst", r"a.txt.zst, (after line 0|line 0: to read .zst)"),
        ("a.spacy", b"not docs", r"a.spacy: not a complete .spacy file"),
    ],
)
def test_bad_files(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        list(read_texts([tmp_path / name]))


def test_other_encodings(tmp_path):
    (tmp_path / "a.txt").write_bytes("Bär\n".encode("latin1"))
    assert list(read_texts([tmp_path / "a.txt"], "latin1")) == ["Bär"]
    assert list(read_texts([tmp_path / "a.txt"], errors="replace")) == ["B\ufffdr"]
    (tmp_path / "b.txt").write_bytes("Bär\u2028\nčau\n".encode("utf-16"))
    assert list(read_texts([tmp_path / "b.txt"], "utf-16")) == ["Bär", "čau"]
    (tmp_path / "c.txt").write_bytes("\ufeffBär\n".encode())
    assert list(read_texts([tmp_path / "c.txt"])) == ["Bär"]
    for arguments, message in (
        ({"encoding": "utf9"}, "give another --encoding"),
        ({"encoding": "rot13"}, "give another --encoding"),
        ({"errors": "xmlcharrefreplace"}, "--errors must be one of strict, replace, ignore"),
    ):
        with pytest.raises(ValueError, match=message):
            list(read_texts([tmp_path / "c.txt"], **arguments))


def test_docs_without_their_strings(tmp_path):
    docs = DocBin(docs=[spacy.blank("en")("An unheard-of wordling")])
    docs.strings = set()
    docs.to_disk(tmp_path / "a.spacy")
    with pytest.raises(ValueError, match=r"a.spacy: not a complete .spacy file"):
        list(read_texts([tmp_path / "a.spacy"]))


def test_kinds_of_files_in_a_folder(tmp_path):
    """A name that only looks like JSON, and what a killed command left."""
    (tmp_path / "a.jsonl.copy.txt").write_text("plain text\n")
    (tmp_path / ".corpus.1234" / "new").mkdir(parents=True)
    (tmp_path / ".corpus.1234" / "new" / "types.txt").write_text("types\n")
    assert list(read_texts(find_files([tmp_path]))) == ["plain text"]


def test_half_a_surrogate_pair(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "so \ud83d \U0001f600"}))
    assert list(read_texts([tmp_path / "a.jsonl"])) == ["so ? \U0001f600"]


@pytest.mark.parametrize("name", ["absent", "absent/*.txt", "empty"])
def test_no_files(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no text in"):
        find_files([tmp_path / name])


def test_unknown_kind_of_file(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"a\.pdf: cannot read this kind"):
        find_files([tmp_path / "a.pdf"])


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
def test_links_to_folders_are_not_followed(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("inside\n")
    (tmp_path / "other" / "b.txt").write_text("outside\n")
    (tmp_path / "texts" / "loop").symlink_to(".")
    (tmp_path / "texts" / "linked").symlink_to("../other")
    assert find_files([tmp_path / "texts"]) == [tmp_path / "texts" / "a.txt"]
    assert find_files([tmp_path / "texts" / "linked"]) == [tmp_path / "texts" / "linked" / "b.txt"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links on this system")
@pytest.mark.parametrize(
    "pattern, names",
    [
        ("texts/**/*.txt", ["a.txt", "deep/c.txt", "linked/b.txt"]),
        ("texts/**.txt", ["a.txt"]),
        ("texts/**/c*", ["deep/c.txt"]),
        ("texts/.*.txt", [".h.txt"]),
        ("texts/.h*/*.txt", [".hidden/d.txt"]),
        ("texts/.hidden/*.txt", [".hidden/d.txt"]),
        ("texts/l*/*.txt", ["linked/b.txt"]),
        ("texts/*/../a.txt", ["deep/../a.txt", "linked/../a.txt"]),
        ("texts/deep/../*.txt", ["deep/../a.txt"]),
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


def test_folders_that_are_skipped_are_not_listed(tmp_path, monkeypatch):
    """They may have many files."""
    for name in (".git/objects", "corpus/train", "texts"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text("text\n")
    for name in ("manifest.json", "types.txt"):
        (tmp_path / "corpus" / name).write_text("{}")
    listed = []
    scandir = os.scandir

    def scan(path):
        listed.append(os.path.relpath(path, tmp_path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert find_files([tmp_path]) == [tmp_path / "texts" / "a.txt"]
    assert "texts" in listed
    assert not {".git", os.path.join(".git", "objects"), os.path.join("corpus", "train")} & {
        *listed
    }
