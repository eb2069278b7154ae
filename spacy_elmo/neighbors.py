r"""The tokens of a corpus nearest to a token in its sentence (Peters et al. 2018, table 4).

    nlp = spacy.load("en_elmo_small")
    docs = read_corpus(nlp, find_files(["texts"]))
    found = find_neighbors(nlp, nlp.get_pipe("elmo"), ["the [play] was cancelled by rain"], docs)

A query marks one or more tokens with square brackets; `\[` and `\]` are literal ones.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy
from spacy.attrs import IS_PUNCT, IS_SPACE, LOWER
from spacy.language import Language
from spacy.tokens import Doc, Span
from thinc.api import to_numpy

from .component import Elmo, pipe_settings
from .dump import read_docs
from .pretraining.reading import read_texts

# Longer texts are cut, so that the layers of one fit in memory, and below spaCy's own limit.
_MAX_CHARACTERS = 100_000
_BRACKET = re.compile(r"(?<!\\)[\[\]]")


class Neighbor(NamedTuple):
    """A token that was found.

    similarity (float): Its cosine similarity with the query.
    before, token, after (str): Its text, and that of its sentence on both sides.
    source (str): The file that it is from.
    """

    similarity: float
    before: str
    token: str
    after: str
    source: str


def read_corpus(
    nlp: Language, files: Iterable[Path], *, max_tokens: Optional[int] = None
) -> Iterator[tuple[Doc, str]]:
    """Read docs, not yet processed. Those of .spacy files keep their tokens.

    nlp (Language): Makes the docs.
    files (Iterable[Path]): As `pretraining.reading.find_files` finds them.
    max_tokens (Optional[int]): Stop after the text in which this number is reached.
    YIELDS (tuple): A doc per line, record or doc, and the name of its file.
    RAISES (ValueError): Naming file and line, if something cannot be read.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be 1 or more, found {max_tokens}")
    n_tokens = 0
    for path in files:
        docs = read_docs(nlp, path) if path.suffix == ".spacy" else _make_docs(nlp, path)
        for doc in docs:
            yield doc, str(path)
            n_tokens += len(doc)
            if max_tokens is not None and n_tokens >= max_tokens:
                return


def _make_docs(nlp: Language, path: Path) -> Iterator[Doc]:
    for text in read_texts([path]):
        start = 0
        while start < len(text):
            end = start + _MAX_CHARACTERS
            if end < len(text):
                space = text.rfind(" ", start + 1, end)
                end = end if space == -1 else space
            yield nlp.make_doc(text[start:end].strip())
            start = end


def query_span(nlp: Language, query: str, **settings: Any) -> Span:
    """Process a query.

    nlp (Language): The pipeline.
    query (str): A text with one part in square brackets.
    settings (Any): Arguments for `nlp.pipe`.
    RETURNS (Span): The tokens in the brackets.
    RAISES (ValueError): If there is no such part, more than one, or not of whole tokens.
    """
    brackets = list(_BRACKET.finditer(query))
    if [bracket.group() for bracket in brackets] != ["[", "]"]:
        raise ValueError(
            f"query {query!r}: put square brackets around one part of it, as in 'the [play] was "
            "cancelled'; write \\[ and \\] for literal brackets"
        )
    before, marked, after = (re.sub(r"\\([\[\]])", r"\1", part) for part in _BRACKET.split(query))
    if not marked.strip():
        raise ValueError(f"query {query!r}: there is nothing in the square brackets")
    start = len(before) + len(marked) - len(marked.lstrip())
    [doc] = nlp.pipe([before + marked + after], **settings)
    span = doc.char_span(start, start + len(marked.strip()))
    if span is None:
        tokens = [token.text for token in doc]
        raise ValueError(f"query {query!r}: put the brackets around whole tokens of {tokens}")
    return span


def find_neighbors(
    nlp: Language,
    elmo: Elmo,
    queries: Sequence[str],
    docs: Iterable[tuple[Doc, str]],
    *,
    n: int = 10,
    layer: Optional[int] = None,
    same_word: bool = False,
    punctuation: bool = False,
    window: int = 12,
) -> list[list[Neighbor]]:
    """Find the tokens with the highest cosine similarity. The corpus is a stream: only the best
    are kept.

    nlp (Language): The pipeline. What comes after the elmo component does not run.
    elmo (Elmo): The component whose vectors are compared.
    queries (Sequence[str]): Texts with one part in square brackets; several tokens count as the
        mean of their vectors.
    docs (Iterable[tuple[Doc, str]]): The corpus, as `read_corpus` gives it.
    n (int): Neighbours per query.
    layer (Optional[int]): 0 for the token encoder, 1 ... L for the biLSTM layers, negative from
        the top; None for the component's own mix.
    same_word (bool): Find only tokens that differ from the query's in case at most.
    punctuation (bool): Find punctuation, too. Whitespace is never found.
    window (int): Tokens on each side that `Neighbor` shows, at most.
    RETURNS (list): For each query its neighbours, best first; equal ones in the corpus's order.
    RAISES (ValueError): If a query or a setting is impossible, or the corpus has no tokens.
    """
    if n < 1 or window < 0:
        raise ValueError(f"n must be 1 or more, window 0 or more, found {n} and {window}")
    if not queries:
        raise ValueError("there are no queries: give one or more")
    n_layers = elmo.layer_shape[0]
    if layer is not None and not -n_layers <= layer < n_layers:
        raise ValueError(f"no layer {layer}: the model has layers 0 to {n_layers - 1}")
    settings = pipe_settings(nlp, elmo, keep_layers=layer is not None)
    spans = [query_span(nlp, query, **settings) for query in queries]
    if same_word and any(len(span) > 1 for span in spans):
        raise ValueError("same_word is for queries with one token in the brackets")
    means = [_vectors(span.doc, layer)[span.start : span.end].mean(axis=0) for span in spans]
    wanted = _normalised(numpy.stack(means))
    best: list[list[tuple[float, int, Neighbor]]] = [[] for _ in spans]
    n_tokens = 0
    for doc, source in nlp.pipe(docs, as_tuples=True, **settings):
        if not len(doc):
            continue
        similarities = wanted @ _normalised(_vectors(doc, layer)).T
        findable = doc.to_array(IS_SPACE) == 0
        if not punctuation:
            findable &= doc.to_array(IS_PUNCT) == 0
        for span, row, heap in zip(spans, similarities, best):
            possible = findable & (row > (heap[0][0] if len(heap) == n else -math.inf))
            if same_word:
                possible &= doc.to_array(LOWER) == span[0].lower
            tokens = numpy.flatnonzero(possible)
            for i in tokens[numpy.argsort(-row[tokens], kind="stable")[:n]].tolist():
                neighbor = _neighbor(doc, i, float(row[i]), window, source)
                # Of equal ones, the later is the smaller, and goes first.
                entry = (neighbor.similarity, -(n_tokens + i), neighbor)
                if len(heap) < n:
                    heapq.heappush(heap, entry)
                else:
                    heapq.heappushpop(heap, entry)
        n_tokens += len(doc)
    if not n_tokens:
        raise ValueError("there are no tokens in the corpus: nothing to search")
    return [[neighbor for _, _, neighbor in sorted(heap, reverse=True)] for heap in best]


def _vectors(doc: Doc, layer: Optional[int]) -> numpy.ndarray:
    """Shape (tokens, width)."""
    return to_numpy(doc._.elmo_tokens if layer is None else doc._.elmo_layers[layer])


def _normalised(vectors: numpy.ndarray) -> numpy.ndarray:
    """Vectors of length 1; zeros, which whitespace has, stay."""
    norms = numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / numpy.where(norms > 0, norms, 1)


def _neighbor(doc: Doc, i: int, similarity: float, window: int, source: str) -> Neighbor:
    token = doc[i]
    stretch = token.sent if doc.has_annotation("SENT_START") else doc[:]
    start, end = max(stretch.start, i - window), min(stretch.end, i + window + 1)
    before, after = doc[start:i].text_with_ws, token.whitespace_ + doc[i + 1 : end].text
    before, after = (re.sub(r"\s+", " ", text) for text in (before, after))
    return Neighbor(similarity, before, token.text, after, source)
