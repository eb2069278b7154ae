"""The extension attributes on their own, without a biLM."""

from __future__ import annotations

import numpy
import pytest
import spacy
from spacy.tokens import Doc, Span, Token

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


def test_the_attributes_of_the_table_exist():
    stored = {name for name in ("elmo_layers", "elmo_tokens") if Doc.has_extension(name)}
    assert stored == {"elmo_layers", "elmo_tokens"}
    for name in stored:
        assert Doc.get_extension(name) == (None, None, None, None)
    for kind in (Doc, Span, Token):
        default, method, getter, setter = kind.get_extension("elmo")
        assert default is None and method is None and setter is None
        assert getter is not None


def test_without_a_component_all_are_none(doc):
    assert doc._.elmo_layers is None
    assert doc._.elmo_tokens is None
    assert doc._.elmo is None
    assert doc[1:3]._.elmo is None
    assert doc[0]._.elmo is None


def test_a_token_has_its_row(doc):
    vectors = give_vectors(doc)
    for token in doc:
        assert numpy.array_equal(token._.elmo, vectors[token.i])


def test_means_leave_whitespace_out(doc):
    vectors = give_vectors(doc)
    assert numpy.allclose(doc._.elmo, vectors[[0, 1, 3]].mean(axis=0))
    assert numpy.allclose(doc[:]._.elmo, doc._.elmo)
    assert numpy.allclose(doc[1:3]._.elmo, vectors[1])
    assert numpy.allclose(doc[1:4]._.elmo, vectors[[1, 3]].mean(axis=0))


def test_whitespace_and_nothing_are_zero(doc):
    give_vectors(doc)
    for span in (doc[2:3], doc[1:1]):
        assert span._.elmo.shape == (3,)
        assert not span._.elmo.any()
    empty = Doc(doc.vocab)
    empty._.elmo_tokens = numpy.zeros((0, 3), dtype="float32")
    assert empty._.elmo.shape == (3,)
    assert not empty._.elmo.any()


def test_means_keep_the_type(doc):
    give_vectors(doc)
    assert doc._.elmo.dtype == doc[:2]._.elmo.dtype == doc[0]._.elmo.dtype == numpy.float32


def test_registering_again_changes_nothing(doc):
    give_vectors(doc)
    before = [kind.get_extension("elmo") for kind in (Doc, Span, Token)]
    extensions.register()
    assert [kind.get_extension("elmo") for kind in (Doc, Span, Token)] == before


def test_registering_leaves_an_attribute_of_the_user_alone():
    mine = Doc.get_extension("elmo")
    Doc.set_extension("elmo", default="mine", force=True)
    try:
        extensions.register()
        assert Doc.get_extension("elmo")[0] == "mine"
    finally:
        Doc.set_extension("elmo", getter=mine[2], force=True)


def test_installed_vectors_come_from_the_attributes(doc):
    vectors = give_vectors(doc)
    extensions.install_vectors(doc)
    assert numpy.allclose(doc.vector, vectors[[0, 1, 3]].mean(axis=0))
    assert numpy.array_equal(doc[1].vector, vectors[1])
    assert numpy.allclose(doc[1:4].vector, vectors[[1, 3]].mean(axis=0))
    assert doc[1].vector_norm == pytest.approx(numpy.linalg.norm(vectors[1]))
    assert doc[1].has_vector and not doc[2].has_vector


def test_installed_vectors_say_when_the_arrays_are_gone(doc):
    give_vectors(doc)
    extensions.install_vectors(doc)
    doc._.elmo_tokens = None
    for obj in (doc, doc[:2], doc[0]):
        with pytest.raises(ValueError, match="vectors are gone"):
            obj.vector  # noqa: B018
        assert not obj.has_vector


def test_vectors_of_another_width_cannot_be_compared(doc):
    give_vectors(doc)
    extensions.install_vectors(doc)
    other = Doc(doc.vocab, ["a"])
    for obj in (doc, doc[:2], doc[0]):
        with pytest.raises(ValueError, match="cannot be compared with one of 0"):
            obj.similarity(other)
