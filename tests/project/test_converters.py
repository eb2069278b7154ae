"""From the data sets' files to .spacy files."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import srsly
from spacy.tokens import DocBin
from spacy.vocab import Vocab

from ..conftest import run_spacy
from .conftest import PROJECT, script

sys.path.insert(0, str(PROJECT / "scripts"))
from checksums import check_assets


def read(path: Path) -> list[tuple[str, str]]:
    """The text and the class of each doc."""
    pairs = []
    for doc in DocBin().from_disk(path).get_docs(Vocab()):
        assert sorted(doc.cats.values())[-2:] == [0.0, 1.0]
        pairs.append((doc.text, max(doc.cats, key=lambda label: doc.cats[label])))
    return pairs


# AG News


GOOD = [f'"{1 + i % 4}","Title {i}","The story number {i}."' for i in range(16)]


def agnews(folder: Path, *more: bytes) -> Path:
    train = [*GOOD, '"3","","Joined Bank #39;s profits &lt;up&gt;\\here"']
    (folder / "train.csv").write_bytes(b"\n".join([*(s.encode() for s in train), *more]) + b"\n")
    (folder / "test.csv").write_text("\n".join(GOOD[:4]), encoding="utf8")
    return folder


def test_agnews(tmp_path):
    script("convert_agnews", agnews(tmp_path), tmp_path / "out", "--n-dev", 4)
    parts = {name: read(tmp_path / "out" / f"{name}.spacy") for name in ("train", "dev", "test")}
    assert len(parts["dev"]) == 4 and len(parts["train"]) == 13
    assert parts["test"][:2] == [
        ("Title 0 The story number 0.", "World"),
        ("Title 1 The story number 1.", "Sports"),
    ]
    assert ("Joined Bank's profits <up> here", "Business") in parts["train"] + parts["dev"]
    lines = (tmp_path / "out" / "train.txt").read_text(encoding="utf8").splitlines()
    assert lines == [text for text, _ in parts["train"]]


# UD


UD = """# text = The bank
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tbank\tbank\tNOUN\tNN\tNumber=Sing\t0\troot\t_\t_

1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\tSpaceAfter=No
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

"""


def treebank(folder: Path, more: bytes = b"") -> Path:
    for split in ("train", "dev", "test"):
        content = UD.encode() * 12 + (more if split == "train" else b"")
        (folder / f"x-ud-{split}.conllu").write_bytes(content)
    return folder


def test_ud(tmp_path):
    """As `spacy convert`, but for the names of the files."""
    script("convert_ud", treebank(tmp_path), tmp_path / "out")
    for split in ("train", "dev", "test"):
        options = ["--converter", "conllu", "--n-sents", "10"]
        if split == "train":
            run_spacy("convert", tmp_path / f"x-ud-{split}.conllu", tmp_path, *options)
            expected = (tmp_path / "x-ud-train.spacy").read_bytes()
        assert (tmp_path / "out" / f"{split}.spacy").read_bytes() == expected
    docs = list(DocBin().from_bytes(expected).get_docs(Vocab()))
    assert [len(list(doc.sents)) for doc in docs] == [10, 10, 4]
    assert [token.text for token in docs[0]][:4] == ["The", "bank", "Do", "n't"]


def test_checksums(tmp_path):
    """Files of the folder that `spacy project assets` fills must be the official ones."""
    text = b"a,b"
    asset = {"dest": "assets/ag_news/train.csv", "checksum": hashlib.md5(text).hexdigest()}
    srsly.write_yaml(tmp_path / "project.yml", {"assets": [asset]})
    for folder in ("assets/ag_news", "mirror/ag_news"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.csv").write_bytes(text)
        check_assets(tmp_path / folder, tmp_path)
        (tmp_path / folder / "train.csv").write_bytes(text[:-1])
    check_assets(tmp_path / "mirror/ag_news", tmp_path)
    with pytest.raises(ValueError, match=r"train\.csv has the checksum .* instead of"):
        check_assets(tmp_path / "assets/ag_news", tmp_path)
