"""spacy elmo visualize."""

from __future__ import annotations

from pathlib import Path

import pytest
import spacy

from spacy_elmo import render

from ..conftest import add_tagger, elmo_pipeline
from ..test_visualize import Page
from .conftest import fail, run, succeed


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "pages" / "page.html"


def test_texts_and_files(pipeline: Path, tmp_path: Path, out: Path):
    (tmp_path / "texts.txt").write_text("The bank\n\nA bank\n", encoding="utf8")
    texts = (tmp_path / "texts.txt", "Of e.g. a.txt <b>", "-")
    succeed("visualize", pipeline, *texts, "-o", out, "--style", "layers", stdin="last\n")
    nlp = spacy.load(pipeline)
    docs = [*nlp.pipe(["The bank", "A bank", "Of e.g. a.txt <b>", "last"])]
    assert out.read_text(encoding="utf8") == render(docs, "layers", page=True)


def test_senses_with_labels(pipeline: Path, tmp_path: Path, out: Path):
    text = "text,sense\nA bank,river\n'The bank, bank',money\nbank\n"
    (tmp_path / "texts.csv").write_text(text.replace("'", '"'), encoding="utf8")
    command = ("visualize", pipeline, tmp_path / "texts.csv", "a bank", "-o", out)
    command = (*command, "--style", "senses", "--word", "bank", "--label", "sense")
    assert "has 1 fields" in fail(*command)
    result = run(*command, "--errors", "ignore", "--layer", 0)
    assert result.exit_code == 0 and "1 bad line(s)" in result.stderr
    page = Page(out.read_text(encoding="utf8"))
    assert sorted(word.note for word in page.words) == ["money", "money", "no label", "river"]
    assert "layer 0" in page.text


def test_mixes_and_surprisal(tmp_path: Path, weights_folder: Path, out: Path):
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp)
    nlp.to_disk(tmp_path / "pipeline")
    succeed("visualize", tmp_path / "pipeline", "--style", "mix", "-o", out)
    assert out.read_text(encoding="utf8") == render(nlp, "mix", page=True)
    succeed("visualize", "en_elmo_sm", "A bank", "--style", "surprisal", "-o", out)
    doc = nlp.make_doc("A bank")
    assert out.read_text(encoding="utf8") == render(doc, "surprisal", page=True)
    command = ("visualize", tmp_path / "pipeline", "A bank", "-o", out, "--style")
    assert "no output layer" in fail(*command, "surprisal")
    assert "takes no text" in fail(*command, "mix")


def test_bad_arguments(pipeline: Path, tmp_path: Path, out: Path):
    (tmp_path / "texts.txt").write_text("The bank", encoding="utf8")

    def check(problem: str, *arguments: object, output: Path = out):
        assert problem in fail("visualize", pipeline, *arguments, "-o", output)
        assert not output.exists()

    check("give it a text or file")
    check("no file or folder", tmp_path / "missing.txt")
    check("must end in .html", "bank", output=tmp_path / "page.png")
    check("no layer 3", "bank", "--layer", 3)
    of_word = ("--style", "senses", "--word", "bank")
    check("no columns", tmp_path / "texts.txt", *of_word, "--label", "sense")
    check("label: it has no meaning", tmp_path / "texts.txt", "--label", "sense")
    check("layer: it has no meaning", "bank", "--style", "layers", "--layer", 0)
    for missing in ("my texts.txt", tmp_path / "none" / "notes"):
        check("no file or folder", missing)
    (tmp_path / "other").mkdir()
    check("no text in", tmp_path / "oth*")
    check("nope", "bank", "--name", "nope")
