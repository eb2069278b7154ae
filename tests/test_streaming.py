"""A stream of any length in the same memory."""

from __future__ import annotations

import gc
import os

import numpy
import psutil
import pytest
from spacy.tokens import Doc

from .test_component import elmo_pipeline

MEGABYTE = 2**20
TOKENS_PER_DOC = 20


def stream(nlp, n_tokens, seed=0):
    """Docs of about 20 tokens, made one at a time."""
    rng = numpy.random.default_rng(seed)
    shares = 1 / numpy.arange(1, 20_001)  # As Zipf's law has it.
    words, shares = [f"w{i}" for i in range(len(shares))], shares / shares.sum()
    while n_tokens > 0:
        length = int(rng.integers(1, 2 * TOKENS_PER_DOC))
        chosen = rng.choice(len(words), min(length, n_tokens), p=shares)
        n_tokens -= length
        yield Doc(nlp.vocab, words=[words[i] for i in chosen])


def growth(nlp, n_tokens, n_warm, **kwargs):
    """Resident memory in bytes: the most above what stood after `n_warm` tokens."""
    process = psutil.Process(os.getpid())
    seen, measured, before, most = 0, 0, None, 0
    for doc in nlp.pipe(stream(nlp, n_tokens), **kwargs):
        assert len(doc._.elmo_tokens) == len(doc)
        seen += len(doc)
        if before is None and seen >= n_warm:
            gc.collect()
            before = process.memory_info().rss
        # Now and then: reading it takes longer than a doc.
        if before is not None and seen - measured > n_tokens // 100:
            measured = seen
            most = max(most, process.memory_info().rss - before)
    assert seen == n_tokens
    assert before is not None
    return most


@pytest.fixture
def nlp(weights_folder):
    return elmo_pipeline(weights_folder, keep_layers=False)


@pytest.mark.parametrize("n_tokens", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_stream(nlp, n_tokens):
    assert growth(nlp, n_tokens, n_warm=max(20_000, n_tokens // 10)) < 50 * MEGABYTE
