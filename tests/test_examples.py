"""The examples run, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import spacy
import srsly

from .conftest import elmo_pipeline, run_script

EXAMPLES = Path(__file__).parents[1] / "examples"


def search(*arguments: object, fails: bool = False) -> str:
    return run_script(EXAMPLES / "semantic_search.py", *arguments, fails=fails)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = ["The bank of the river. Money flows!", "", "A play  about rain. Zoë likes 銀行."]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n".join(lines), encoding="utf8")
    return tmp_path / "texts"


@pytest.fixture
def pipeline(tmp_path: Path, weights_folder: Path) -> Path:
    elmo_pipeline(weights_folder).to_disk(tmp_path / "pipeline")
    return tmp_path / "pipeline"


def test_semantic_search(texts: Path, pipeline: Path, tmp_path: Path):
    index = tmp_path / "index"
    assert "4 sentences" in search("index", texts, index, "--pipeline", pipeline)
    assert srsly.read_json(index / "manifest.json")["pipeline"] == str(pipeline)
    stored = numpy.load(index / "vectors.npy")
    assert stored.dtype == numpy.float16

    nlp = spacy.load(pipeline)
    sentences = (index / "sentences.txt").read_text(encoding="utf8").splitlines()
    assert sentences[2] == "A play about rain."
    *vectors, query = (nlp(text)._.elmo for text in (*sentences, "Money flows."))
    norms = numpy.linalg.norm(vectors, axis=1) * numpy.linalg.norm(query)
    expected = numpy.stack(vectors) @ query / norms

    output = search("search", index, "Money flows.", "-n", 3)
    results = [line.split(maxsplit=1) for line in output.splitlines()]
    best = numpy.argsort(-expected)[:3]
    assert [text for _, text in results] == [sentences[i] for i in best]
    assert [float(value) for value, _ in results] == pytest.approx(expected[best], abs=0.005)


def test_semantic_search_keeps_to_its_pipeline(texts: Path, tmp_path: Path, monkeypatch):
    """The weights of the package when the index was made, although there is a folder of the same
    name where the search starts."""
    index = tmp_path / "index"
    search("index", texts, index)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    spacy.blank("en").to_disk(elsewhere / "en_elmo_sm")
    monkeypatch.chdir(elsewhere)
    assert search("search", index, "Money flows!", "-n", 1).endswith("Money flows!\n")


def test_semantic_search_says_what_is_wrong(texts: Path, pipeline: Path, tmp_path: Path):
    index = tmp_path / "index"
    spacy.blank("en").to_disk(tmp_path / "blank")
    problems = {
        ("index", texts / "nowhere", index, "--pipeline", pipeline): "nowhere",
        ("index", texts, index, "--pipeline", tmp_path / "blank"): "no component 'elmo'",
        ("index", texts, texts, "--pipeline", pipeline): "is not an index",
        ("search", index, "query"): "manifest.json",
    }
    for arguments, problem in problems.items():
        assert problem in search(*arguments, fails=True)
        assert not index.exists() and (texts / "a.txt").is_file()
