r"""Find the tokens of a corpus nearest to a token in its sentence (Peters et al. 2018, table 4).
A query marks one or more tokens with square brackets; `\[` and `\]` are literal ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy
from spacy.attrs import IS_PUNCT, IS_SPACE, LOWER
from spacy.language import Language
from spacy.tokens import Doc, Span
from thinc.api import to_numpy

from ..component import Elmo, pipe_settings

_BRACKET = re.compile(r"(?<!\\)[\[\]]")


class Neighbor(NamedTuple):
    """A token of the corpus: its cosine with the query, its sentence on both sides, its file."""

    similarity: float
    before: str
    token: str
    after: str
    source: str


def query_span(nlp: Language, query: str, **settings: Any) -> Span:
    """RETURNS (Span): The tokens in the brackets, processed by `nlp.pipe` with these settings."""
    is_marked = _BRACKET.findall(query) == ["[", "]"]
    before, marked, after = _BRACKET.split(query) if is_marked else (query, "", "")
    before, marked, after = (re.sub(r"\\([\[\]])", r"\1", x) for x in (before, marked, after))
    start = len(before) + len(marked) - len(marked.lstrip())
    [doc] = nlp.pipe([before + marked + after], **settings)
    span = doc.char_span(start, start + len(marked.strip()))
    if not is_marked or not span:
        raise ValueError(
            f"query {query!r}: put square brackets around one or more whole tokens, as in 'the "
            f"[play] was cancelled', of {[x.text for x in doc]}; write \\[ and \\] for literal ones"
        )
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
    window: int = 12,
) -> list[list[Neighbor]]:
    """Find the tokens with the highest cosine similarity, without whitespace and punctuation.

    queries (Sequence[str]): Texts with one span in square brackets. The vector of several tokens
        is their mean.
    docs (Iterable[tuple[Doc, str]]): A stream of docs and their sources; see `read_docs`.
    layer (Optional[int]): 0 for the token encoder, -1 for the top; None for the component's mix.
    same_word (bool): Only tokens that equal the first one of the query, except for case.
    window (int): Maximum number of tokens on each side in a `Neighbor`.
    RETURNS (list): The neighbours of each query, best first; equal ones in the corpus's order.
    """
    n_layers = elmo.layer_shape[0]
    if layer is not None and not -n_layers <= layer < n_layers:
        raise ValueError(f"no layer {layer}: the model has layers 0 to {n_layers - 1}")
    settings = pipe_settings(nlp, elmo, keep_layers=layer is not None)
    spans = [query_span(nlp, query, **settings) for query in queries]
    means = [_vectors(span.doc, layer)[span.start : span.end].mean(axis=0) for span in spans]
    wanted = normalize(numpy.stack(means))
    best: list[list[Neighbor]] = [[] for _ in spans]
    for doc, source in nlp.pipe(docs, as_tuples=True, **settings):
        is_word = doc.to_array([IS_SPACE, IS_PUNCT]).sum(axis=1) == 0
        similarities = wanted @ normalize(_vectors(doc, layer)).T
        for i, (span, row) in enumerate(zip(spans, similarities)):
            chosen = is_word & (doc.to_array(LOWER) == span[0].lower) if same_word else is_word
            tokens = numpy.flatnonzero(chosen)
            tokens = tokens[numpy.argsort(-row[tokens], kind="stable")[:n]]
            new = [_neighbor(doc, source, float(row[k]), k, window) for k in tokens.tolist()]
            # The sort keeps the first of equal ones.
            best[i] = sorted(best[i] + new, key=lambda x: x.similarity, reverse=True)[:n]
    return best


def _vectors(doc: Doc, layer: Optional[int]) -> numpy.ndarray:
    return to_numpy(doc._.elmo_tokens if layer is None else doc._.elmo_layers[layer])


def normalize(vectors: numpy.ndarray) -> numpy.ndarray:
    """RETURNS (ndarray): Vectors of the length 1; those of whitespace stay 0."""
    norms = numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / numpy.where(norms > 0, norms, 1)


def _neighbor(doc: Doc, source: str, similarity: float, i: int, window: int) -> Neighbor:
    context = doc[i].sent if doc.has_annotation("SENT_START") else doc[:]
    start, end = max(context.start, i - window), min(context.end, i + window + 1)
    before, after = doc[start:i].text_with_ws, doc[i].whitespace_ + doc[i + 1 : end].text
    before, after = (re.sub(r"\s+", " ", text) for text in (before, after))
    return Neighbor(similarity, before, doc[i].text, after, source)
