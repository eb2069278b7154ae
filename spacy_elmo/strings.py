"""Bounds the strings that a process keeps when it reads texts without end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from spacy.language import Language

# About 400 bytes each, with what the tokenizer remembers of them.
MAX_STRINGS = 300_000

# One for all pipelines: they may share a vocab.
_turn = threading.RLock()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context, or a decorator of functions, for one thread at a time, as often as it likes. Enter
    `no_fork` within it, not around it."""
    with _turn:
        yield


@contextlib.contextmanager
def bounded_strings(nlp: Language) -> Iterator[None]:
    """A context for a batch of texts, for one thread at a time. Once the vocab has `MAX_STRINGS`
    strings it is a memory zone, which frees the strings of the batch: its docs must not be used
    after it. Tokenising takes twice as long then, as the tokenizer remembers no word of a zone."""
    # The end of a zone frees the strings of all threads, and of the zones around it. So threads
    # take turns, and within a zone of the caller there is no other one.
    with one_thread():
        is_zone = nlp.vocab.in_memory_zone  # type: ignore[attr-defined]
        is_full = len(nlp.vocab.strings) >= MAX_STRINGS and not is_zone
        with nlp.memory_zone() if is_full else contextlib.nullcontext():
            yield


def _after_fork_in_child() -> None:
    """Another thread may have had its turn."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
