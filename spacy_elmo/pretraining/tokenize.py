"""From texts to sentences of tokens, in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Annotated, Any, NamedTuple, Union

import numpy
from pydantic import Field
from pydantic.dataclasses import dataclass

from ..bilm.validation import SETTINGS, Bool, Text, Whole

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
    texts: Iterable[str], settings: TokenizationConfig, n_process: int = 1
) -> Iterator[tuple[list[str], Chunk]]:
    """Tokenise a stream. The result does not depend on the number of processes.

    YIELDS (tuple): Some texts and their sentences, in order.
    RAISES (ValueError): If spaCy does not know the language, or a process dies.
    """
    work = partial(_tokenize_chunk, settings)
    if n_process == 1:
        for chunk in _chunks(texts):
            yield chunk, work(chunk)
        return
    workers: list[_Worker] = []
    try:
        workers += (_Worker(work) for _ in range(n_process))
        # Each worker has one chunk; the workers take turns, so that the results are in order.
        pending: deque[tuple[_Worker, list[str]]] = deque()
        for number, chunk in enumerate(_chunks(texts)):
            worker = workers[number % n_process]
            done = None
            if len(pending) == n_process:
                done = pending.popleft()[1], worker.result()
            worker.send(chunk)
            pending.append((worker, chunk))
            if done is not None:
                yield done
        for worker, chunk in pending:
            yield chunk, worker.result()
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """A process that tokenises one chunk at a time.

    It is not one of a pool: a pool's processes outlive a parent that is killed, and finish their
    chunks when it is interrupted.
    """

    def __init__(self, work: Callable[[list[str]], Chunk]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_tokenize_chunks, args=(theirs, work), daemon=True
        )
        self._process.start()
        theirs.close()  # So that it is closed when the process dies.

    def send(self, texts: list[str]) -> None:
        """RAISES (ValueError): If the process has died."""
        try:
            self._connection.send(texts)
        except OSError as error:
            raise self._death() from error

    def result(self) -> Chunk:
        """RAISES (ValueError): If the texts cannot be tokenised, or the process has died."""
        try:
            result: Union[Chunk, Exception] = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _death(self) -> ValueError:
        return ValueError(
            "a process that tokenises has died, perhaps for want of memory: use fewer (--n-process)"
        )


def _tokenize_chunks(connection: Connection, work: Callable[[list[str]], Chunk]) -> None:
    """Tokenise chunks until the process is killed or its parent ends."""
    # At a terminal, the parent gets the signal, too, and kills its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            texts = connection.recv()
        except EOFError:
            return
        try:
            result: Union[Chunk, Exception] = work(texts)
        except Exception as error:
            result = error
        connection.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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


_pipelines: dict[TokenizationConfig, Any] = {}


def _tokenize_chunk(settings: TokenizationConfig, texts: list[str]) -> Chunk:
    words: dict[str, int] = {}
    ids: list[int] = []
    lengths: list[int] = []
    numbers: list[int] = []
    for number, sentence in _sentences(settings, texts):
        tokens = iter(sentence)
        while piece := list(islice(tokens, settings.max_length)):
            ids += (words.setdefault(word, len(words)) for word in piece)
            lengths.append(len(piece))
            numbers.append(number)
    arrays = (numpy.array(values, dtype=numpy.int64) for values in (ids, lengths, numbers))
    return Chunk(list(words), *arrays)


def _sentences(settings: TokenizationConfig, texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    if settings.whitespace and settings.one_per_line:
        for number, text in enumerate(texts):
            yield number, text.split()
        return
    from spacy.tokens import Doc

    if settings not in _pipelines:
        _pipelines[settings] = make_pipeline(settings)
    nlp = _pipelines[settings]
    # The zone frees the strings of the texts: the vocabulary must not grow with the corpus.
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


def make_pipeline(settings: TokenizationConfig) -> Any:
    """RETURNS (Language): A pipeline that tokenises, and splits sentences if the settings say so.
    RAISES (ValueError): If the language is unknown."""
    import spacy

    try:
        nlp = spacy.blank(settings.lang)
    except ImportError as error:
        raise ValueError(
            f"cannot tokenise {settings.lang!r}: {error}. Give one of spaCy's language codes, or "
            "tokenise the text yourself and use --whitespace"
        ) from error
    if not settings.one_per_line:
        nlp.add_pipe("sentencizer")
    nlp.max_length = 10**9
    return nlp
