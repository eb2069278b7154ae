"""spacy elmo neighbors, and the module behind it, next to a search over everything at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.extensions import get_layers
from spacy_elmo.tools.neighbors import find_neighbors, query_span

from ..conftest import elmo_pipeline
from .conftest import fail, run, succeed

LINES = [
    "The bank of the river. The bank gave me money!",
    "A play by Shakespeare, and no play of colours ...",
    "Let us  play \t in the rain; the children play every day.",
    "Banks lend money. BANK robbers take it.",
    "銀行 🙂 e\u0301",
]
QUERIES = ["The [play] was cancelled by rain.", "We sat on the [river bank].", "[Money]"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with every line once."""
    (tmp_path / "corpus").mkdir()
    for name, lines in (("a.txt", LINES[:2]), ("b.txt", LINES[2:])):
        text = "\n\n".join(lines)
        (tmp_path / "corpus" / name).write_text(text, encoding="utf8")
    return tmp_path / "corpus"


@pytest.fixture
def nlp(weights_folder: Path) -> Language:
    nlp = elmo_pipeline(weights_folder, keep_layers=False)
    nlp.add_pipe("sentencizer", first=True)
    return nlp


def with_source(nlp: Language, lines: list[str] = LINES) -> list[tuple[Doc, str]]:
    return [(nlp.make_doc(line), "x") for line in lines]


def brute_force(nlp: Language, query: str, lines: list[str], layer: int | None) -> list:
    """All tokens but whitespace and punctuation: similarity and text, best first."""
    nlp.get_pipe("elmo").keep_layers = True

    def vectors(doc):
        layers = get_layers(doc)
        return layers.mean(axis=0) if layer is None else layers[layer]

    span = query_span(nlp, query)
    wanted = vectors(span.doc)[span.start : span.end].mean(axis=0)
    scored = []
    for doc in map(nlp, lines):
        for token, vector in zip(doc, vectors(doc)):
            if not token.is_space and not token.is_punct:
                cosine = vector @ wanted / numpy.linalg.norm(vector) / numpy.linalg.norm(wanted)
                scored.append((cosine, token.text))
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize("layer, n", [(None, 1000), (0, 1), (-1, 7)])
def test_equals_brute_force(nlp: Language, layer: int | None, n: int):
    nearest = find_neighbors(nlp, nlp.get_pipe("elmo"), QUERIES, with_source(nlp), n=n, layer=layer)
    for query, neighbors in zip(QUERIES, nearest):
        expected = brute_force(nlp, query, LINES, layer)[:n]
        similarities = [neighbor.similarity for neighbor in neighbors]
        assert similarities == pytest.approx([cosine for cosine, _ in expected], abs=1e-5)
        if layer != 0:  # All tokens of a type are equal there, in any order.
            assert [neighbor.token for neighbor in neighbors] == [text for _, text in expected]


def test_context_is_the_sentence_within_the_window(nlp: Language):
    lines = ["Before. Let us  play \t in the rain today. After."]
    elmo = nlp.get_pipe("elmo")
    for window, before, after in [
        (50, "Let us ", " in the rain today."),
        (1, " ", " "),
        (0, "", " "),
    ]:
        docs = with_source(nlp, lines)
        nearest = find_neighbors(nlp, elmo, ["we [play]"], docs, same_word=True, window=window)
        assert nearest[0][0][1:4] == (before, "play", after)


def test_same_word(nlp: Language):
    elmo = nlp.get_pipe("elmo")
    (nearest,) = find_neighbors(nlp, elmo, ["A [Bank]"], with_source(nlp), same_word=True)
    assert sorted(neighbor.token for neighbor in nearest) == ["BANK", "bank", "bank"]


def test_literal_brackets(nlp: Language):
    span = query_span(nlp, r"a \[sic\] and [ river bank ] \[1\]")
    assert span.text == "river bank" and span.doc.text == "a [sic] and  river bank  [1]"


def test_command_reads_files(pipeline: Path, corpus: Path, nlp: Language):
    queries = [option for query in QUERIES for option in ("-q", query)]
    output = succeed("neighbors", pipeline, corpus, *queries, "-n", 1000, "--json")
    records = [json.loads(line) for line in output.splitlines()]
    # The same weights, but no sentences.
    nlp.remove_pipe("sentencizer")
    for query in QUERIES:
        matching = [record for record in records if record["query"] == query]
        expected = brute_force(nlp, query, LINES, None)
        assert [record["token"] for record in matching] == [text for _, text in expected]
        assert [record["similarity"] for record in matching] == pytest.approx(
            [cosine for cosine, _ in expected], abs=1e-5
        )
    sources = {Path(record["source"]).name for record in records}
    assert sources == {"a.txt", "b.txt"}


def test_command_reads_tables(pipeline: Path, tmp_path: Path):
    """Stdout has nothing but results."""
    (tmp_path / "a.csv").write_text('text,n\n"a play, ""they"" said",1\nbad\n', encoding="utf8")
    command = ("neighbors", pipeline, tmp_path / "a.csv", "-q", "the [play]", "--json")
    assert "a.csv, row 2: has 1 fields" in fail(*command)
    result = run(*command, "--errors", "ignore", "--text", "text")
    assert [json.loads(x)["token"] for x in result.stdout.splitlines()] != []
    assert "Of 1 bad line(s) or row(s), what cannot be read was left out" in result.stderr
    assert "no columns" in fail(*command, "-", "--text", "text")


def test_bad_arguments(pipeline: Path, corpus: Path, tmp_path: Path):
    def check(problem: str, query: str = "the [bank]", *options: object, text: Path = corpus):
        assert problem in fail("neighbors", pipeline, text, "-q", query, *options)

    check("no file or folder", text=tmp_path / "nowhere.txt")
    check("no layer 9", "the [bank]", "--layer", 9)
    check("nope", "the [bank]", "--name", "nope")
    for query in ("[two] of [them]", r"the \[play\]", "the [ \t] play", "the [pl]ay"):
        check("put square brackets around one or more whole tokens", query)
