"""Bounds the strings that a process keeps when it reads texts without end."""

from __future__ import annotations

import contextlib

from spacy.language import Language

# About 400 bytes each, with what the tokenizer remembers of them.
MAX_STRINGS = 300_000


def bounded_strings(nlp: Language) -> contextlib.AbstractContextManager[object]:
    """RETURNS (ContextManager): For a batch of texts. Below `MAX_STRINGS` it does nothing: the
    vocab keeps the strings, and the tokenizer what it found out about them. From then on it is a
    memory zone: it frees the strings of the batch, and its docs must not be used after it. The
    tokenizer remembers no word of a zone, so that tokenising takes twice as long."""
    if len(nlp.vocab.strings) < MAX_STRINGS:
        return contextlib.nullcontext()
    return nlp.memory_zone()
