"""Equality with the activations that the published software computed from the same weights."""

import json

import h5py
import numpy
import pytest

from spacy_elmo.formats import load
from spacy_elmo.inference import Session, Settings

from ..conftest import max_difference


@pytest.fixture
def rows(published):
    """Three rows of ten sentences: row i of a batch goes on from row i of the batch before."""
    lists = json.loads((published / "sentences.json").read_text(encoding="utf8"))
    return [[sentence.split() for sentence in sentences] for sentences in lists]


@pytest.fixture
def top_layers(published):
    """For each row its sentences' top layers, shape (tokens, 2P)."""
    rows = []
    for row in range(3):
        with h5py.File(published / f"lm_embeddings_{row}.hdf5") as file:
            rows.append([numpy.concatenate(file[str(i)][()], axis=1) for i in range(10)])
    return rows


def token_encodings(published):
    with h5py.File(published / "elmo_token_embeddings.hdf5") as file:
        vectors = file["embedding"][()]
    words = (published / "vocab_test.txt").read_text(encoding="utf8").split("\n")
    assert vectors.shape == (len(words), 16) == (458, 16)
    return words, vectors


def test_top_layer_of_the_stateful_model(published, rows, top_layers):
    session = Session(load(published / "lm_weights.hdf5"), Settings(stateful=True))
    for i in range(10):
        result = session.embed([sentences[i] for sentences in rows])
        for row in range(3):
            assert max_difference(result[row][-1], top_layers[row][i]) <= 1e-5


def test_token_encoder_equals_the_published_encodings(published):
    words, vectors = token_encodings(published)
    bilm = load(published / "lm_weights.hdf5")
    assert max_difference(bilm.token_encoder(words).detach(), vectors) <= 1e-5
