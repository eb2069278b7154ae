"""Words with two senses: do the vectors of one sense stand together?

The sentences were written once, before any model had seen them. The biLM is the bundled one, or
that of the pipeline that the environment variable SPACY_ELMO_PIPELINE names.
"""

from __future__ import annotations

import os
import re
from itertools import combinations, product
from pathlib import Path

import numpy
import pytest
import spacy
from spacy.language import Language

from spacy_elmo.extensions import get_layers
from spacy_elmo.tools.neighbors import query_span
from spacy_elmo.weights import bundled_names

BUNDLED = "en_elmo_sm"
# A coin gives ten.
LEAST_HITS = 11


def read_senses() -> dict[str, tuple[list[str], list[str]]]:
    """RETURNS (dict): For each word, the sentences of its two senses."""
    senses: dict[str, tuple[list[str], list[str]]] = {}
    path = Path(__file__).parent / "data" / "senses.tsv"
    for line in path.read_text(encoding="utf8").splitlines():
        word, sense, sentence = line.split("\t")
        senses.setdefault(word, ([], []))[int(sense)].append(sentence)
    return senses


SENSES = read_senses()


def test_sentences_are_well_formed():
    assert len(SENSES) == 20
    for word, senses in SENSES.items():
        assert [len(set(sentences)) for sentences in senses] == [3, 3]
        for sentence in senses[0] + senses[1]:
            # One form of the word: the token encoder has nothing to tell the senses by.
            assert re.findall(r"\[(.*?)\]", sentence) == [word]


def similarity_margin(senses: tuple[numpy.ndarray, numpy.ndarray]) -> float:
    """The mean cosine of pairs of one sense, minus that of pairs of two senses.

    senses (tuple): A vector per sentence, shapes (sentences, width).
    """
    first, second = (array / numpy.linalg.norm(array, axis=1, keepdims=True) for array in senses)
    same = [a @ b for sense in (first, second) for a, b in combinations(sense, 2)]
    cross = [a @ b for a, b in product(first, second)]
    return float(numpy.mean(same) - numpy.mean(cross))


def test_similarity_margin():
    first, second = numpy.array([[1.0, 0], [2, 0], [1, 0]]), numpy.array([[0, 3.0], [0, 1], [0, 1]])
    assert similarity_margin((first, second)) == pytest.approx(1)
    mixed = numpy.array([[1.0, 0], [0, 1], [1, 0]])
    assert similarity_margin((mixed, mixed)) < 0


@pytest.fixture
def nlp() -> Language:
    pipeline = os.environ.get("SPACY_ELMO_PIPELINE")
    if pipeline:
        return spacy.load(pipeline)
    if BUNDLED not in bundled_names():
        pytest.skip(f"no bundled weights {BUNDLED!r}: set SPACY_ELMO_PIPELINE to a pipeline")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": BUNDLED}})
    return nlp


def vector(nlp: Language, sentence: str) -> numpy.ndarray:
    """The mean of the biLSTM layers. The token encoder's layer is left out: it does not know the
    sentence, so it is the same for all, and only brings all cosines nearer to 1."""
    span = query_span(nlp, sentence)
    return get_layers(span.doc)[1:, span.start].mean(axis=0)


def test_vectors_of_one_sense_stand_together(nlp: Language):
    margins = {
        word: similarity_margin(
            tuple(numpy.stack([vector(nlp, text) for text in texts]) for texts in senses)
        )
        for word, senses in SENSES.items()
    }
    for word, margin in margins.items():
        print(f"{word:8} {margin:+.3f} {'hit' if margin > 0 else 'miss'}")
    hits = sum(margin > 0 for margin in margins.values())
    print(f"{hits} of {len(margins)}")
    assert hits >= LEAST_HITS
