"""From texts to sentences of tokens, in worker processes."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Annotated

import spacy
from pydantic import Field
from pydantic.dataclasses import dataclass
from spacy.language import Language
from spacy.tokens import Doc

from ..bilm.validation import SETTINGS, Bool, Text, Whole, check_batch
from ..strings import bounded_strings, one_thread

CHUNK_CHARACTERS = 1 << 20


@dataclass(frozen=True, config=SETTINGS)
class TokenizationConfig:
    """How texts become sentences.

    lang (str): The spaCy language whose tokenizer is used.
    whitespace (bool): The text is tokenised already, by spaces.
    one_per_line (bool): Every text is one sentence; else spaCy's sentencizer splits it.
    max_length (int): Longer sentences are cut after so many tokens.
    """

    lang: Text = "en"
    whitespace: Bool = False
    one_per_line: Bool = False
    max_length: Annotated[Whole, Field(ge=1)] = 200


def tokenize(
    texts: Iterable[str], settings: TokenizationConfig, n_process: int = 1
) -> Generator[tuple[str, list[list[str]]], None, None]:
    """YIELDS (tuple): A text and its sentences, in order."""
    check_batch(texts, "texts", "give a list of texts")
    if n_process == 1:
        for chunk in _chunks(texts):
            yield from zip(chunk, _tokenize_chunk(settings, chunk))
        return
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(n_process, context, _start_worker, (reader,))
    chunks = itertools.chain(_chunks(texts), [None] * (n_process + 1))
    pending: deque[tuple[list[str], Future[list[list[list[str]]]]]] = deque()
    try:
        for part in chunks:
            if part is not None:
                pending.append((part, pool.submit(_tokenize_in_worker, settings, part)))
            if pending and (part is None or len(pending) > n_process + 1):
                first, future = pending.popleft()
                yield from zip(first, future.result())
    except BrokenProcessPool as error:
        why = "perhaps for want of memory: use fewer (--n-process)"
        raise ValueError(f"a process that tokenises has died, {why}") from error
    finally:
        writer.close()  # Ends the workers, even within a chunk.
        pool.shutdown(cancel_futures=True)
        reader.close()


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


def _start_worker(reader: Connection) -> None:
    def end_with_parent() -> None:  # Which closes the other end of a pipe, or dies.
        reader.poll(None)
        os._exit(1)

    # At a terminal, the parent gets the signal, too, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _tokenize_in_worker(settings: TokenizationConfig, texts: list[str]) -> list[list[list[str]]]:
    return list(_tokenize_chunk(settings, texts))


def _tokenize_chunk(settings: TokenizationConfig, texts: list[str]) -> Iterable[list[list[str]]]:
    """RETURNS (Iterable): The sentences of each text."""
    nlp = make_pipeline(settings)
    if settings.whitespace and settings.one_per_line:
        # Not a list: Python's garbage collector would take longer for it than the splitting takes.
        return (_cut([text.split()], settings.max_length) for text in texts)
    with bounded_strings(nlp):
        return [_cut(_split_sentences(nlp, settings, text), settings.max_length) for text in texts]


def _cut(sentences: Iterable[list[str]], max_length: int) -> list[list[str]]:
    starts = ((x, start) for x in sentences for start in range(0, len(x), max_length))
    return [sentence[start : start + max_length] for sentence, start in starts]


def _split_sentences(nlp: Language, settings: TokenizationConfig, text: str) -> Iterator[list[str]]:
    doc = nlp(Doc(nlp.vocab, words=text.split()) if settings.whitespace else text)
    for sentence in [doc] if settings.one_per_line else doc.sents:
        yield [token.text for token in sentence if not token.is_space]


@one_thread()
@functools.cache
def make_pipeline(settings: TokenizationConfig) -> Language:
    """RETURNS (Language): A pipeline that tokenises and perhaps splits sentences."""
    try:
        nlp = spacy.blank(settings.lang)
    except ImportError as error:
        raise ValueError(f"cannot tokenise {settings.lang!r}: {error}. Give another") from error
    if not settings.one_per_line:
        nlp.add_pipe("sentencizer")
    nlp.max_length = 10**9
    return nlp
