"""Adagrad on sparse gradients of a sampled softmax, against an ordinary loop: gradients of all
rows, `torch.optim.Adagrad` and `clip_grad_norm_`."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from spacy_elmo.pretraining.batches import SentenceBatches, plan_epoch
from spacy_elmo.pretraining.config import LossConfig, OptimizerConfig
from spacy_elmo.pretraining.corpus import open_corpus, prepare

from ..conftest import max_difference
from .conftest import CHARACTERS, SENTENCE_PER_LINE, WORDS, new_model, run_config, train
from .test_trainer import weights

N_STEPS, N_WORDS = 20, 503


@pytest.fixture(scope="module")
def many_words(tmp_path_factory):
    """A corpus of which a batch has a small part of the vocabulary."""
    draw = random.Random(0).choices
    words = [f"w{i}" for i in range(N_WORDS - 3)]
    frequencies = [1 / (i + 1) for i in range(len(words))]
    lines = [" ".join(draw(words, frequencies, k=4 + i % 9)) for i in range(600)]
    folder = tmp_path_factory.mktemp("rows") / "corpus"
    vocabulary = ["<S>", "</S>", "<UNK>", *words]
    prepare(lines, folder, SENTENCE_PER_LINE, vocabulary=vocabulary, dev_fraction=0.05)
    return open_corpus(folder)


def config_of(corpus, bilm=CHARACTERS, tied=False, **settings):
    return run_config(
        corpus,
        bilm,
        loss=LossConfig("sampled", n_samples=20, tied=tied),
        # A small accumulator makes large steps of gradients that are nothing but rounding.
        optimizer=OptimizerConfig(grad_clip=0.3, initial_accumulator=1.0),
        max_steps=N_STEPS,
        batch_words=60,
        dropout=0.0,
        eval_words=50,
        **settings,
    )


def ordinary_training(config, corpus):
    model = new_model(config, corpus)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2, initial_accumulator_value=1.0)
    epoch = SentenceBatches(corpus.train, plan_epoch(corpus.train.lengths, 60, 0, 0))
    size = config.pretraining.accumulate_gradient
    for step in range(N_STEPS):
        samples = model.output.draw(numpy.random.default_rng((0, step)))
        numbers = range(size * step, size * (step + 1))
        n_targets = sum(epoch.size(number)[1] for number in numbers)
        optimizer.zero_grad()
        for number in numbers:
            (model(epoch.read(number), samples) / (2 * n_targets)).backward()
        assert model.output.weight.grad.layout == torch.strided
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize(
    "bilm, tied, accumulate_gradient", [(CHARACTERS, False, 2), (WORDS, False, 1), (WORDS, True, 1)]
)
def test_equals_dense_updates(tmp_path, many_words, bilm, tied, accumulate_gradient):
    """Nearly, as the norm is summed in another order; also of tied weights, which are read as word
    embeddings, too."""
    config = config_of(many_words, bilm, tied, accumulate_gradient=accumulate_gradient)
    before = weights(type("", (), {"model": new_model(config, many_words)}))
    trainer = train(config, tmp_path / "run")
    expected = ordinary_training(config, many_words)
    for name, value in weights(trainer).items():
        assert max_difference(value, expected[name].detach()) < 1e-6, name
        assert not torch.equal(value, before[name]), name
    is_sparse = trainer.model.output.weight.grad.layout == torch.sparse_coo
    assert is_sparse != tied
