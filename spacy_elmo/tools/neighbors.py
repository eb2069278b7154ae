r"""Find the tokens of a corpus nearest to a token in its sentence (Peters et al. 2018, table 4).

    nlp = load_pipeline("en_elmo_sm")
    docs = read_corpus(nlp, find_files(["texts"]))
    neighbors = find_neighbors(nlp, nlp.get_pipe("elmo"), ["the [play] was cancelled"], docs)

A query marks one or more tokens with square brackets; `\[` and `\]` are literal ones.
"""

from __future__ import annotations

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

from ..bilm.validation import check_batch
from ..component import Elmo, pipe_settings
from .records import Reader
from .texts import read_docs

# Tokens of a doc, because the layers of a whole doc are in memory at once.
_MAX_DOC_LENGTH = 20_000
# Characters that are tokenised at once.
_MAX_CHARACTERS = 100_000
_BRACKET = re.compile(r"(?<!\\)[\[\]]")


class Neighbor(NamedTuple):
    """A token of the corpus.

    similarity (float): Its cosine similarity with the query.
    before, token, after (str): Its text, and the text of its sentence on both sides.
    source (str): The name of its file.
    """

    similarity: float
    before: str
    token: str
    after: str
    source: str


def read_corpus(
    nlp: Language,
    files: Iterable[Path],
    reader: Optional[Reader] = None,
    *,
    max_tokens: Optional[int] = None,
) -> Iterator[tuple[Doc, str]]:
    """Read docs that are not empty, tokenised but not processed. Long ones are split.

    nlp (Language): The pipeline whose tokenizer is used.
    files (Iterable[Path]): The files, see `texts.find_files`.
    reader (Optional[Reader]): How to read them, see `texts.read_texts`.
    max_tokens (Optional[int]): Stop after about this many tokens (whole docs).
    YIELDS (tuple): A doc and the name of its file.
    RAISES (ValueError): If something cannot be read. The message names file and line.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be 1 or more, found {max_tokens}")
    check_batch(files, "files", "give a list of paths, such as that of find_files")
    n_tokens = 0
    reader = reader or Reader()
    for path in files:
        for doc in read_docs(nlp, [path], reader, max_characters=_MAX_CHARACTERS):
            for start in range(0, len(doc), _MAX_DOC_LENGTH):
                is_long = len(doc) > _MAX_DOC_LENGTH
                piece = doc[start : start + _MAX_DOC_LENGTH].as_doc() if is_long else doc
                yield piece, str(path)
                n_tokens += len(piece)
                if max_tokens is not None and n_tokens >= max_tokens:
                    return


def query_span(nlp: Language, query: str, **settings: Any) -> Span:
    """Process a query.

    nlp (Language): The pipeline.
    query (str): A text with one span in square brackets.
    settings (Any): Arguments for `nlp.pipe`.
    RETURNS (Span): The tokens in the brackets.
    RAISES (ValueError): If there is no such span, more than one, or if it splits a token.
    """
    brackets = list(_BRACKET.finditer(query))
    if [bracket.group() for bracket in brackets] != ["[", "]"]:
        raise ValueError(
            f"query {query!r}: put square brackets around one part of it, as in 'the [play] was "
            "cancelled'; write \\[ and \\] for literal brackets"
        )
    before, marked, after = (re.sub(r"\\([\[\]])", r"\1", x) for x in _BRACKET.split(query))
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
    """Find the tokens with the highest cosine similarity. The corpus is read as a stream.

    nlp (Language): The pipeline. Components after elmo do not run.
    elmo (Elmo): The component whose vectors are compared.
    queries (Sequence[str]): Texts with one span in square brackets. The vector of several tokens
        is their mean.
    docs (Iterable[tuple[Doc, str]]): Docs and their sources, as `read_corpus` yields them.
    n (int): Neighbours per query.
    layer (Optional[int]): 0 for the token encoder, 1 ... L for the biLSTM layers, negative from
        the top; None for the component's own mix.
    same_word (bool): Only tokens that equal the query's, except for case.
    punctuation (bool): Include punctuation. Whitespace is never included.
    window (int): Maximum number of tokens on each side in a `Neighbor`.
    RETURNS (list): The neighbours of each query, best first; equal ones in the corpus's order.
    RAISES (ValueError): If a query or a setting is impossible, or the corpus has no tokens.
    """
    if n < 1 or window < 0:
        raise ValueError(f"n must be 1 or more, window 0 or more, found {n} and {window}")
    check_batch(queries, "queries", "give a list of texts")
    if not queries:
        raise ValueError("there are no queries: give one or more")
    n_layers = elmo.layer_shape[0]
    if layer is not None and not -n_layers <= layer < n_layers:
        raise ValueError(f"no layer {layer}: the model has layers 0 to {n_layers - 1}")
    settings = pipe_settings(nlp, elmo, keep_layers=layer is not None)
    spans = [query_span(nlp, query, **settings) for query in queries]
    if same_word and any(len(span) > 1 for span in spans):
        raise ValueError("same_word is for queries with one token in the brackets")
    means = [_get_vectors(span.doc, layer)[span.start : span.end].mean(axis=0) for span in spans]
    query_vectors = _normalize(numpy.stack(means))
    best: list[list[Neighbor]] = [[] for _ in spans]
    is_empty = True  # Apart from whitespace.
    for doc, source in nlp.pipe(docs, as_tuples=True, **settings):
        is_candidate = doc.to_array(IS_SPACE) == 0
        is_empty &= not is_candidate.any()
        if not punctuation:
            is_candidate &= doc.to_array(IS_PUNCT) == 0
        similarities = query_vectors @ _normalize(_get_vectors(doc, layer)).T
        for i, (span, row) in enumerate(zip(spans, similarities)):
            threshold = best[i][-1].similarity if len(best[i]) == n else -math.inf
            is_better = is_candidate & (row > threshold)
            if same_word:
                is_better &= doc.to_array(LOWER) == span[0].lower
            new = _best_tokens(doc, source, row, numpy.flatnonzero(is_better), n, window)
            # The sort keeps the first of equal ones.
            best[i] = sorted(best[i] + new, key=lambda x: x.similarity, reverse=True)[:n]
    if is_empty:
        raise ValueError("there are no tokens in the corpus: nothing to search")
    return best


def _get_vectors(doc: Doc, layer: Optional[int]) -> numpy.ndarray:
    """RETURNS (ndarray): Shape (tokens, width)."""
    return to_numpy(doc._.elmo_tokens if layer is None else doc._.elmo_layers[layer])


def _normalize(vectors: numpy.ndarray) -> numpy.ndarray:
    """Scale vectors to length 1. The zero vectors of whitespace stay."""
    norms = numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / numpy.where(norms > 0, norms, 1)


def _best_tokens(
    doc: Doc, source: str, similarities: numpy.ndarray, tokens: numpy.ndarray, n: int, window: int
) -> list[Neighbor]:
    """RETURNS (list): The n most similar of some tokens of a doc, best first."""
    neighbors = []
    for i in tokens[numpy.argsort(-similarities[tokens], kind="stable")[:n]].tolist():
        token = doc[i]
        context = token.sent if doc.has_annotation("SENT_START") else doc[:]
        start, end = max(context.start, i - window), min(context.end, i + window + 1)
        before, after = doc[start:i].text_with_ws, token.whitespace_ + doc[i + 1 : end].text
        before, after = (re.sub(r"\s+", " ", text) for text in (before, after))
        neighbors.append(Neighbor(float(similarities[i]), before, token.text, after, source))
    return neighbors
