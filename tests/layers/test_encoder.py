"""Docs in, arrays out; and in training, the gradients of plain PyTorch."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import spacy
import torch
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Adam

from spacy_elmo.inference import Settings, current_session
from spacy_elmo.layers.encoder import (
    ElmoEncoder,
    ElmoShim,
    encode,
)
from spacy_elmo.layers.mixes import ConcatLayers, FrozenMix
from spacy_elmo.segmenters import docs as whole_docs
from spacy_elmo.segmenters import sentences

from ..conftest import TINY, assert_close, elmo_pipeline, max_difference, random_bilm

N_LAYERS, WIDTH = TINY.n_activations, TINY.output_dim
WORDS = [["The", "bank", "flows"], [], ["river"], ["Money", "\n", "bank", " ", "The", "."], ["\n"]]


def make_docs(words=WORDS, vocab=None):
    vocab = vocab or spacy.blank("en").vocab
    return [Doc(vocab, words=tokens) for tokens in words]


def split(batch):
    """The layers of each doc."""
    return [part.layers for part in batch.split()]


@pytest.fixture
def encoder(bilm):
    return ElmoEncoder(ElmoShim(lambda: bilm, Settings()), sentences())


def test_layers_and_mix(encoder, bilm):
    docs = make_docs()
    batch = encode(encoder, docs, FrozenMix())
    assert max_difference(batch.mixed, batch.layers.mean(axis=0)) < 1e-6
    for layers, tokens in zip(split(batch), WORDS, strict=True):
        assert type(layers) is numpy.ndarray and layers.dtype == numpy.float32
        kept = [i for i, token in enumerate(tokens) if not token.isspace()]
        expected = numpy.zeros((N_LAYERS, len(tokens), WIDTH))
        expected[:, kept] = current_session(bilm).embed([[tokens[i] for i in kept]])[0]
        assert max_difference(layers, expected) < 1e-5
    slim = encode(encoder, docs, ConcatLayers(), keep_layers=False)
    assert slim.layers is None
    assert slim.mixed.shape == (sum(map(len, docs)), N_LAYERS * WIDTH)


def test_no_docs(encoder):
    assert split(encoder.predict([])) == []
    assert encode(encoder, [], FrozenMix()).mixed.shape == (0, WIDTH)


def test_docs_of_different_vocabs(encoder):
    """Each doc's text is looked up in its own string store."""
    separate = [make_docs([tokens], Vocab())[0] for tokens in WORDS]
    assert len({id(doc.vocab) for doc in separate}) == len(WORDS)
    together = split(encoder.predict(make_docs()))
    assert_close(split(encoder.predict(separate)), together, 1e-6)


def gradients(bilm):
    return {name: parameter.grad for name, parameter in bilm.named_parameters()}


def test_backprop_is_that_of_plain_pytorch(encoder, bilm):
    """Two docs in one batch with windows, so that some vectors are computed but not kept."""
    encoder.attrs["segmenter"] = whole_docs(window=4, overlap=2)
    words = [["The", "bank", "of", "the", "river", "flows"], [], ["Money", "flows"]]
    docs = make_docs(words)
    outputs, backprop = encoder.begin_update(docs)
    generator = numpy.random.default_rng(0)
    d_layers = generator.normal(size=outputs.layers.shape).astype("float32")
    d_outputs = split(outputs._replace(layers=d_layers))
    assert backprop(d_layers) == docs
    actual = gradients(bilm)

    plain = random_bilm()
    loss = torch.zeros(())
    for doc, d_output in zip(docs, d_outputs):
        d_output = torch.from_numpy(d_output)
        for tokens, kept_slice in encoder.attrs["segmenter"](doc):
            types = [doc[i].text for i in tokens.tolist()]
            distinct = sorted(set(types))
            index = numpy.array([distinct.index(text) for text in types])
            layers = plain(distinct, index, [len(types)])
            kept = torch.from_numpy(tokens[kept_slice])
            loss = loss + (layers[:, kept_slice] * d_output[:, kept]).sum()
    loss.backward()
    expected = gradients(plain)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        assert max_difference(actual[name], gradient) < 1e-4 * gradient.abs().max(), name


@pytest.mark.parametrize("words", [[[]], [["\n"], []]])
def test_training_on_nothing_to_read(encoder, bilm, words):
    outputs, backprop = encoder.begin_update(make_docs(words))
    assert [Y.shape for Y in split(outputs)] == [(N_LAYERS, len(tokens), WIDTH) for tokens in words]
    backprop(numpy.ones_like(outputs.layers))
    assert all(g is None or not g.any() for g in gradients(bilm).values())


def test_a_prediction_within_a_training_step_does_not_change_later_ones(encoder, bilm):
    """As that of a component that annotates, before the weights are updated."""
    docs = make_docs()
    outputs, backprop = encoder.begin_update(docs)
    before = encoder.predict(docs).layers
    backprop(numpy.ones_like(outputs.layers))
    encoder.finish_update(Adam(0.01))
    after = encoder.predict(docs).layers
    assert max_difference(before, after) > 1e-3
    bilm.invalidate()
    assert max_difference(encoder.predict(docs).layers, after) < 1e-6


def test_threads_that_are_first_move_the_weights_once(weights_folder, monkeypatch):
    """Not while another thread packs them: PyTorch has a lock for both, and waits for the GIL."""
    nlp, moved, n_threads = elmo_pipeline(weights_folder), [], 4
    barrier, move = threading.Barrier(n_threads), ElmoShim.set_bilm

    def slowly(self, bilm):
        time.sleep(0.2)  # The others wait for this one.
        moved.append(bilm)
        move(self, bilm)

    def call(text):
        barrier.wait()
        return nlp(text)._.elmo_tokens

    monkeypatch.setattr(ElmoShim, "set_bilm", slowly)
    with ThreadPoolExecutor(n_threads) as threads:
        first, *others = threads.map(call, ["The bank of the river."] * n_threads)
    assert len(moved) == 1 and all(max_difference(first, x) < 1e-6 for x in others)
