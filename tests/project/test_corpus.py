"""The corpus of the bundled weights, at toy size."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy
import pytest

from spacy_elmo.pretraining.corpus import open_corpus

from .conftest import PROJECT

sys.path.insert(0, str(PROJECT / "en_elmo_sm"))
import corpus
import sources
from cleaning import NGRAM, Filter, Words, clean, fingerprint, split_sentences


@pytest.mark.parametrize(
    "text, expected",
    {
        "a\u00a0 b\tc": "a b c",
        "caf\u0065\u0301 \u200bnow\ufeff": "café now",
        "Tom &amp; Ann": "Tom & Ann",
        "the town of , Germany ( ), and (; born 1950)": "the town of, Germany, and (born 1950)",
        "He was - - - - yes": "He was - yes",
        "to something @ I mean": "to something I mean",
        ": Election Day": "Election Day",
        "• A bullet": "A bullet",
        "-5 degrees :) - a dash": "-5 degrees :) - a dash",
        "me@x.org, $5 ... (a)": "me@x.org, $5 ... (a)",
    }.items(),
)
def test_clean(text, expected):
    assert clean(text) == expected


def test_split_sentences():
    text = 'He left. "Mr. J. Smith, no?" she said. Then (oh!) it ended... It did.'
    assert [x.strip() for x in split_sentences(text)] == [
        "He left.",
        '"Mr. J. Smith, no?" she said.',
        "Then (oh!) it ended...",
        "It did.",
    ]


def select(paragraphs: list[str], **benchmarks: str) -> tuple[list[str], Filter]:
    words = Words()
    hashes = {name: fingerprint([text], words) for name, text in benchmarks.items()}
    chosen = Filter(hashes, set(), words)
    return [text for text, _ in chosen((x, False) for x in paragraphs)], chosen


STORY = "one two three four five six seven eight nine ten"


def test_benchmarks_are_left_out():
    grams = STORY.split()[1 : 1 + NGRAM]
    shared = f"Well, {' '.join(grams).upper()}! It goes on here."
    short = f"So {' '.join(grams[:-1])} it is."
    across = f"{' '.join(grams[:4])}. {' '.join(grams[4:]).capitalize()} ends."
    text, chosen = select([shared, short, across], EWT=STORY, IMDB="He was not at home then. Yes.")
    assert text == ["It goes on here.", short, across]
    assert chosen.dropped["EWT"] == 1 and not chosen.dropped["IMDB"]
    # A sentence that is too short for NGRAM words, but is a sentence of a benchmark.
    text, chosen = select(
        ["He was not - at home then? No.", "Yes."], IMDB="He was not at home then."
    )
    assert text == ["No.", "Yes."] and chosen.dropped["IMDB"] == 1


# The command


def text(name: str, n: int) -> list[str]:
    return [f"{name.title()} paragraph {i} says {i * 7} new things. Fine!" for i in range(n)]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of texts: two modern sources and the benchmarks."""
    folder = tmp_path / "data"
    for name in ("modern_text", "ud_en_ewt", "ag_news", "imdb"):
        (folder / name).mkdir(parents=True)
    (folder / "ud_en_ewt" / "a.conllu").write_text(f"# text = {STORY}\n")
    (folder / "ag_news" / "test.csv").write_text(
        '"3","A title","Bank #39;s profits &lt;up&gt; today"\n'
    )
    (folder / "imdb" / "a.jsonl.gz").write_bytes(b"")
    monkeypatch.setitem(corpus.BENCHMARKS, "IMDB", ("imdb", lambda path: iter([STORY])))
    index = []
    for name in ("news", "talk"):
        lines = [*text(name, 2000), f"I say {STORY} again.", "The first of them all has it here."]
        (folder / "modern_text" / f"{name}.txt").write_text("\n".join(lines), encoding="utf8")
        index.append({"file": f"{name}.txt", "words": 16_000})
    (folder / "modern_text" / "index.jsonl").write_text("\n".join(map(json.dumps, index)))
    return folder


def source(name: str, kind: str, times: int) -> sources.Source:
    return sources.Source(name, kind, times, f"modern_text/{name}.txt", sources.modern)


MIX = [source("news", "news", 1), source("talk", "conversation", 1)]


def build(data: Path, out: Path, mix: list[sources.Source]) -> list[dict]:
    records = corpus.build(data, out, mix)
    corpus.prepare_corpus(out, records, 50, 1)
    return records


def contents(folder: Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_corpus(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "MAX_SHARE", 0.7)
    monkeypatch.setattr(corpus, "DEV_FRACTION", 0.1)
    first, second = build(data, tmp_path / "out", MIX)
    assert first["dropped"]["UD EWT"] == 1 and second["dropped"]["in another source"] == 1
    assert first["held_out"] == 8 * 25 * 4
    out = capsys.readouterr().out
    assert "| news | news |" in out and "| 50.0% |" in out and "| conversation | " in out
    everything = contents(tmp_path / "out")
    trained = everything["text/news.txt"].decode().splitlines()
    held_out = everything["held_out/news.txt"].decode().splitlines()
    assert len(trained) + len(held_out) == 2001 and not {*trained} & {*held_out}
    assert b"seven eight" not in b"".join(v for k, v in everything.items() if k.endswith(".txt"))
    assert len(open_corpus(tmp_path / "out" / "prepared").words) == 53
    assert everything["vocab.txt"].decode().split()[:3] == ["<S>", "</S>", "<UNK>"]
    # Elsewhere, the same bytes; run again, nothing is written.
    build(data, tmp_path / "other", MIX)
    assert contents(tmp_path / "other") == everything
    times = {x: x.stat().st_mtime_ns for x in (tmp_path / "out").rglob("*") if x.is_file()}
    build(data, tmp_path / "out", MIX)
    assert times == {x: x.stat().st_mtime_ns for x in (tmp_path / "out").rglob("*") if x.is_file()}


def test_the_mix_is_what_the_card_says():
    """Every source has its licence in SOURCES.md."""
    table = (PROJECT / "en_elmo_sm" / "SOURCES.md").read_text(encoding="utf8")
    assert not [x.name for x in sources.SOURCES if f"| {x.name} |" not in table]
    assert numpy.all([x.times >= 1 for x in sources.SOURCES])
