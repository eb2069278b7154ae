"""The extension attributes on their own, without a biLM."""

from __future__ import annotations

import importlib
import warnings

import numpy
import pytest
import spacy
from spacy.tokens import Doc, Token

from spacy_elmo import extensions


@pytest.fixture
def doc():
    return Doc(spacy.blank("en").vocab, words=["The", "bank", "\n", "flows", " "])


def give_vectors(doc, width=3):
    """Rows like the component's: zero for whitespace."""
    vectors = numpy.arange(1, len(doc) * width + 1, dtype="float32").reshape(len(doc), width)
    vectors[[token.i for token in doc if token.is_space]] = 0
    doc._.elmo_tokens = vectors
    return vectors


def test_means_leave_whitespace_out(doc):
    vectors = give_vectors(doc)
    for token in doc:
        assert numpy.array_equal(token._.elmo, vectors[token.i])
    for whole in (doc, doc[:]):
        assert numpy.allclose(whole._.elmo, vectors[[0, 1, 3]].mean(axis=0))
    assert numpy.allclose(doc[1:4]._.elmo, vectors[[1, 3]].mean(axis=0))
    empty = Doc(doc.vocab)
    empty._.elmo_tokens = numpy.zeros((0, 3), dtype="float32")
    for span in (doc[2:3], doc[1:1], empty):
        assert span._.elmo.shape == (3,) and not span._.elmo.any()


def test_reloading_the_module(doc):
    """As notebooks do (`%autoreload`): the attributes are those of the new code."""
    vectors = give_vectors(doc)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(extensions)
    assert Token.get_extension("elmo")[2] is extensions.token_vector
    assert numpy.array_equal(doc[1]._.elmo, vectors[1])


def merged_and_split(doc):
    """As many tokens as before, but other ones."""
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
        retokenizer.split(doc[3], ["flo", "ws"], heads=[(doc[3], 1), (doc[3], 1)])


def test_tokens_changed_to_as_many(doc):
    vectors = give_vectors(doc)
    extensions.install_vectors(doc)
    n_tokens = len(doc)
    merged_and_split(doc)
    assert len(doc) == n_tokens
    for obj in (doc[0], doc[1], doc[2], doc[3], doc[:2], doc):
        with pytest.raises(ValueError, match="retokenised after the elmo component"):
            obj._.elmo  # noqa: B018
        assert not obj.has_vector
    # The last token has not changed.
    assert numpy.array_equal(doc[4]._.elmo, vectors[4])
    with pytest.raises(ValueError, match="retokenised after the elmo component"):
        doc._.elmo_tokens  # noqa: B018


def test_vectors_of_a_part_as_a_doc(doc):
    """spaCy copies the hooks, but not the arrays."""
    give_vectors(doc)
    doc._.elmo_layers = numpy.zeros((3, len(doc), 4), dtype="float32")
    extensions.install_vectors(doc)
    for copies in (False, True):
        excerpt = doc[:2].as_doc(copy_user_data=copies)
        assert excerpt._.elmo_layers is None and excerpt._.elmo is None
        assert not excerpt.has_vector and not excerpt[0].has_vector and not excerpt[:1].has_vector


def test_an_attribute_of_the_user_is_not_replaced():
    mine = Token.get_extension("elmo")
    Token.set_extension("elmo", default="mine", force=True)
    try:
        with pytest.raises(ValueError, match=r"E090.*elmo"):
            extensions.register()
    finally:
        Token.set_extension("elmo", getter=mine[2], force=True)
