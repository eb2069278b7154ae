"""Updates of the output layer's sampled rows against an ordinary loop: gradients of all rows,
`torch.optim.Adagrad` and `clip_grad_norm_`."""

from __future__ import annotations

import itertools
import random

import numpy
import pytest
import torch
from torch import nn

from spacy_elmo.pretraining.batches import SentenceBatches, plan_epoch
from spacy_elmo.pretraining.config import LossConfig, OptimizerConfig
from spacy_elmo.pretraining.corpus import open_corpus, prepare

from .conftest import (
    CHARACTERS,
    SENTENCE_PER_LINE,
    WORDS,
    change,
    new_model,
    run_config,
    train,
    train_in_two_processes,
)
from .test_trainer import equal, final_weights, weights

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


def config_of(corpus, grad_clip=0.0, bilm=CHARACTERS, **settings):
    return run_config(
        corpus,
        bilm,
        loss=settings.pop("loss", LossConfig("sampled", n_samples=20)),
        optimizer=OptimizerConfig(grad_clip=grad_clip),
        max_steps=N_STEPS,
        batch_words=60,
        dropout=0.0,
        eval_words=50,
        **settings,
    )


def ordinary_training(config, corpus, n_processes=1):
    """What processes do that take a part of each batch each, and average their gradients."""
    settings = config.pretraining
    model = new_model(config, corpus)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adagrad(
        parameters,
        lr=settings.optimizer.learn_rate,
        initial_accumulator_value=settings.optimizer.initial_accumulator,
    )
    plans = (plan_epoch(corpus.train.lengths, 60, config.system.seed, n) for n in itertools.count())
    epochs = (SentenceBatches(corpus.train, plan) for plan in plans)
    steps = itertools.chain.from_iterable(
        [(epoch, range(first, min(first + settings.accumulate_gradient, len(epoch))))]
        for epoch in epochs
        for first in range(0, len(epoch), settings.accumulate_gradient)
    )
    norms, unread = [], []
    for step, (epoch, numbers) in enumerate(itertools.islice(steps, N_STEPS)):
        samples = model.output.draw(numpy.random.default_rng((config.system.seed, step)))
        n_targets = sum(epoch.size(number)[1] for number in numbers)
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for process in range(n_processes):
            optimizer.zero_grad()
            for number in numbers:
                batch = epoch.read(number, process, n_processes)
                loss = model(batch, samples) / (2 * n_targets)
                (loss * n_processes).backward()
            for total, parameter in zip(sums, parameters):
                total += parameter.grad / n_processes
        for total, parameter in zip(sums, parameters):
            parameter.grad = total
        read = model.output.weight.grad.any(1)
        unread.append(int((~read).sum()))
        if settings.optimizer.grad_clip:
            # In float32, adding zeros changes the rounding of a norm: leave out those of the rows
            # that were not read.
            norms.append(clip_without_zeros(model, read, settings.optimizer.grad_clip))
        optimizer.step()
    assert min(unread) > N_WORDS / 2
    assert not norms or max(norms) > settings.optimizer.grad_clip
    return dict(model.named_parameters())


def clip_without_zeros(model, read, limit):
    clipped = []
    for name, parameter in model.named_parameters():
        rows = parameter.grad[read] if name.startswith("output.") else parameter.grad
        clipped.append(nn.Parameter(torch.empty_like(rows)))
        clipped[-1].grad = rows
    norm = nn.utils.clip_grad_norm_(clipped, limit)
    for (name, parameter), copy in zip(model.named_parameters(), clipped):
        if name.startswith("output."):
            parameter.grad[read] = copy.grad
    return float(norm)


@pytest.mark.parametrize(
    "bilm, accumulate_gradient, grad_clip",
    [(CHARACTERS, 1, 0.3), (WORDS, 1, 0.0), (WORDS, 2, 0.3)],
)
def test_equals_dense_updates(tmp_path, many_words, bilm, accumulate_gradient, grad_clip):
    """Bit for bit."""
    config = config_of(many_words, grad_clip, bilm, accumulate_gradient=accumulate_gradient)
    trainer = train(config, tmp_path / "run")
    assert equal(ordinary_training(config, many_words), weights(trainer))


def test_equals_dense_updates_when_resumed(tmp_path, many_words):
    config = config_of(many_words, 0.3)
    for limit in (3, 11, N_STEPS):
        trainer = train(change(config, max_steps=limit), tmp_path / "run", resume=True)
    assert equal(ordinary_training(config, many_words), weights(trainer))


def test_equals_dense_updates_of_two_processes(tmp_path, many_words):
    config = config_of(many_words, accumulate_gradient=2)
    train_in_two_processes(config, tmp_path / "two")
    expected = ordinary_training(config, many_words, n_processes=2)
    assert equal(expected, final_weights(tmp_path / "two"))


@pytest.mark.parametrize(
    "loss", [LossConfig("sampled", n_samples=20, tied=True), LossConfig("full")], ids=str
)
def test_layers_that_are_read_as_a_whole(tmp_path, many_words, loss):
    """Tied weights are read as word embeddings, too; a full softmax reads every row."""
    config = config_of(many_words, 0.3, WORDS, loss=loss)
    bias = train(config, tmp_path / "run").model.output.bias
    assert (bias != 0).sum() > 20  # It begins with zeros.
