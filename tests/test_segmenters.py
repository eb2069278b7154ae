"""How docs are cut: nothing lost, nothing twice, nothing too long."""

from __future__ import annotations

from itertools import pairwise

import numpy
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.segmenters import Sequences, docs, sentences

VOCAB = spacy.blank("en").vocab


def make_doc(n_words, spaces=(), starts=None):
    """A doc with whitespace tokens at `spaces`, and boundaries before the tokens in `starts`."""
    words = [" " if i in spaces else f"w{i}" for i in range(n_words)]
    marks = None if starts is None else [i in starts for i in range(n_words)]
    return Doc(VOCAB, words=words, sent_starts=marks)


@st.composite
def any_doc(draw):
    n = draw(st.integers(0, 60))
    tokens = st.sets(st.integers(0, max(n - 1, 0)))
    starts = draw(st.none() | tokens) if n else None
    return make_doc(n, draw(tokens), None if starts is None else starts | {0})


@st.composite
def any_segmenter(draw):
    window = draw(st.integers(1, 20))
    make = sentences if draw(st.booleans()) else docs
    return make(window, draw(st.integers(0, window - 1)))


@settings(max_examples=200, deadline=None)
@given(doc=any_doc(), segmenter=any_segmenter())
def test_every_word_is_kept_exactly_once(doc, segmenter):
    sequences = list(segmenter(doc))
    kept = [i for tokens, kept_slice in sequences for i in tokens[kept_slice].tolist()]
    # In order, too: windows follow one another.
    assert kept == [token.i for token in doc if not token.is_space]
    for tokens, kept_slice in sequences:
        assert 0 < len(tokens) <= segmenter.keywords["window"]
        assert 0 <= kept_slice.start < kept_slice.stop <= len(tokens)
        assert (numpy.diff(tokens) > 0).all()
        assert not any(doc[i].is_space for i in tokens.tolist())
        if segmenter.keywords["by_sentence"] and doc.has_annotation("SENT_START"):
            assert not any(doc[i].is_sent_start for i in tokens[1:].tolist())


@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 100), segmenter=any_segmenter())
def test_windows_overlap_as_set(n, segmenter):
    windows = [tokens for tokens, _ in segmenter(make_doc(n))]
    for first, second in pairwise(windows):
        shared = len(numpy.intersect1d(first, second))
        # The last window is moved left, to be full: it may share more.
        overlap, window = segmenter.keywords["overlap"], segmenter.keywords["window"]
        assert shared >= overlap
        assert shared == overlap or second is windows[-1]
        assert len(first) == len(second) == window


@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 100), segmenter=any_segmenter())
def test_kept_tokens_have_context_on_both_sides(n, segmenter):
    """Half the overlap, except at the ends of the doc."""
    for tokens, kept_slice in segmenter(make_doc(n)):
        half = segmenter.keywords["overlap"] // 2
        assert kept_slice.start >= half or tokens[0] == 0
        assert len(tokens) - kept_slice.stop >= half or tokens[-1] == n - 1


def cut(segmenter, doc):
    return [tokens.tolist() for tokens, _ in segmenter(doc)]


def test_sentences_follow_the_boundaries_and_docs_do_not():
    doc = make_doc(7, spaces={2}, starts={0, 3, 5})
    assert cut(sentences(), doc) == [[0, 1], [3, 4], [5, 6]]
    assert cut(docs(), doc) == [[0, 1, 3, 4, 5, 6]]
    assert cut(docs(window=4, overlap=2), doc) == [[0, 1, 3, 4], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    "build, arguments, message",
    [
        (sentences, {"window": 0}, "window must be 1 or more"),
        (sentences, {"window": 4, "overlap": 4}, "overlap must be 0 or more and less than 4"),
    ],
)
def test_impossible_values_are_refused(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


@pytest.mark.parametrize("kept", [slice(0, 2), slice(1, 3)])
def test_a_segmenter_that_loses_tokens(kept):
    """Else they would have vectors of zeros."""
    with pytest.raises(ValueError, match="does not keep the vector of each token"):
        Sequences.cut([make_doc(3)], lambda doc: [(numpy.arange(3), kept)])
    with pytest.raises(ValueError, match="from exactly one sequence"):
        Sequences.cut([make_doc(3)], lambda doc: [(numpy.arange(3), slice(0, 3))] * 2)
