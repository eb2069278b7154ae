"""From texts to sentences of tokens, in worker processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy

CHUNK_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Tokenization:
    """How texts become sentences.

    lang (str): The spaCy language whose tokenizer is used.
    whitespace (bool): The text is tokenised already, by spaces.
    one_per_line (bool): Every text is one sentence; else spaCy's sentencizer splits it.
    max_length (int): Longer sentences are cut.
    """

    lang: str = "en"
    whitespace: bool = False
    one_per_line: bool = False
    max_length: int = 200


class Chunk(NamedTuple):
    """Some texts' sentences.

    words (list[str]): Word types in the order in which they occur first.
    ids (ndarray): Tokens as indices into words.
    lengths (ndarray): Tokens per sentence.
    texts (ndarray): The text of each sentence, by number.
    """

    words: list[str]
    ids: numpy.ndarray
    lengths: numpy.ndarray
    texts: numpy.ndarray


def tokenize(
    texts: Iterable[str], settings: Tokenization, n_process: int = 1
) -> Iterator[tuple[list[str], Chunk]]:
    """Tokenise a stream. What comes out does not depend on the number of processes.

    YIELDS (tuple): Some texts and their sentences, in order.
    RAISES (ValueError): If spaCy does not know the language, or a process dies.
    """
    work = partial(_tokenize_chunk, settings)
    if n_process == 1:
        for chunk in _chunks(texts):
            yield chunk, work(chunk)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_process, mp_context=context)
    try:
        # Not `map`: it would read the whole stream at once.
        pending: deque[tuple[list[str], Future[Chunk]]] = deque()
        for chunk in _chunks(texts):
            pending.append((chunk, pool.submit(work, chunk)))
            if len(pending) > 2 * n_process:
                done, result = pending.popleft()
                yield done, result.result()
        for done, result in pending:
            yield done, result.result()
    except BrokenProcessPool as error:
        raise ValueError(
            "a process that tokenises has died, perhaps for want of memory: use fewer (--n-process)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


_pipelines: dict[Tokenization, Any] = {}


def _tokenize_chunk(settings: Tokenization, texts: list[str]) -> Chunk:
    words: dict[str, int] = {}
    ids: list[int] = []
    lengths: list[int] = []
    numbers: list[int] = []
    for number, sentence in _sentences(settings, texts):
        tokens = iter(sentence)
        while part := list(islice(tokens, settings.max_length)):
            ids += (words.setdefault(word, len(words)) for word in part)
            lengths.append(len(part))
            numbers.append(number)
    return Chunk(
        list(words),
        numpy.array(ids, dtype=numpy.int64),
        numpy.array(lengths, dtype=numpy.int64),
        numpy.array(numbers, dtype=numpy.int64),
    )


def _sentences(settings: Tokenization, texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    if settings.whitespace and settings.one_per_line:
        for number, text in enumerate(texts):
            yield number, text.split()
        return
    from spacy.tokens import Doc

    if settings not in _pipelines:
        nlp = make_pipeline(settings)
        if not settings.one_per_line:
            nlp.add_pipe("sentencizer")
        _pipelines[settings] = nlp
    nlp = _pipelines[settings]
    # The zone frees what the texts added to the vocabulary: it must not grow with the corpus.
    with nlp.memory_zone():
        docs = (
            (Doc(nlp.vocab, words=text.split()) for text in texts)
            if settings.whitespace
            else (nlp.make_doc(text) for text in texts)
        )
        for number, doc in enumerate(docs):
            for _, component in nlp.pipeline:
                doc = component(doc)
            sentences = [doc] if settings.one_per_line else doc.sents
            for sentence in sentences:
                if tokens := [token.text for token in sentence if not token.is_space]:
                    yield number, tokens


def make_pipeline(settings: Tokenization) -> Any:
    """RETURNS (Language): A blank pipeline. RAISES (ValueError): If the language is unknown."""
    import spacy

    try:
        nlp = spacy.blank(settings.lang)
    except ImportError as error:
        raise ValueError(
            f"cannot tokenise {settings.lang!r}: {error}. Give one of spaCy's language codes, or "
            "tokenise the text yourself and use --whitespace"
        ) from error
    nlp.max_length = 10**9
    return nlp
