"""Output layers against plain formulas in float64."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch.nn import functional as F

from spacy_elmo.pretraining.losses import (
    AdaptiveSoftmax,
    LossConfig,
    Softmax,
    build_output_layer,
    draw_log_uniform,
    log_expected_counts,
)

from ..conftest import max_difference

N_WORDS, WIDTH, ROWS = 60, 16, 17


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, N_WORDS, (ROWS,), generator=generator)
    return h.requires_grad_(), targets


def softmax(n_samples=None):
    torch.manual_seed(1)
    layer = Softmax(N_WORDS, WIDTH, n_samples).double()
    with torch.no_grad():
        layer.bias.normal_()
    return layer


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


def assert_equal(found, expected):
    for first, second in zip(found, expected, strict=True):
        assert max_difference(first.detach(), second.detach()) < 1e-12


@pytest.fixture(params=[1 << 30, 1000], ids=["one piece", "several pieces"])
def pieces(request, monkeypatch):
    monkeypatch.setattr("spacy_elmo.pretraining.losses._LOGIT_BYTES", {"cpu": request.param})


def test_full_softmax(pieces):
    layer, (h, targets) = softmax(), problem()
    loss = layer(h, targets)
    plain = F.cross_entropy(F.linear(h, layer.weight, layer.bias), targets, reduction="sum")
    assert_equal([loss], [plain])
    weights = (h, layer.weight, layer.bias)
    assert_equal(gradients(2.5 * loss, *weights), gradients(2.5 * plain, *weights))


def test_sampled_softmax(pieces):
    """Against one row at a time, with the words written out."""
    layer, (h, targets) = softmax(n_samples=12), problem()
    samples, n_tries = layer.draw(numpy.random.default_rng(3))
    loss = layer(h, targets, (samples, n_tries))
    correction = log_expected_counts(numpy.arange(N_WORDS), N_WORDS, n_tries).double()
    plain = torch.zeros((), dtype=torch.float64)
    n_hits = 0
    for row, target in zip(h, targets.tolist()):
        others = [word for word in samples.tolist() if word != target]
        n_hits += len(others) < len(samples)
        words = torch.tensor([target, *others])
        logits = layer.weight[words] @ row + layer.bias[words] - correction[words]
        logits[0] += correction[target]  # The target is there for certain.
        plain = plain + logits.logsumexp(0) - logits[0]
    assert 0 < n_hits < ROWS  # Accidental hits occur, and not everywhere.
    assert_equal([loss], [plain])
    weights = (h, layer.weight, layer.bias)
    assert_equal(gradients(loss, *weights), gradients(plain, *weights))


def test_sampled_softmax_estimates_the_full_one():
    """The mean over many draws, near a model that knows something, comes close to the loss of the
    full softmax; its gradient points the same way."""
    sampled, full = softmax(n_samples=30), softmax()
    h, targets = problem()
    h = (0.3 * h).detach().requires_grad_()
    losses, total = [], torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for seed in range(400):
        loss = sampled(h, targets, sampled.draw(numpy.random.default_rng(seed)))
        losses.append(loss.item())
        total += gradients(loss, h)[0]
    expected = full(h, targets)
    assert numpy.mean(losses) == pytest.approx(expected.item(), rel=0.03)
    direction = gradients(expected, h)[0]
    assert F.cosine_similarity(total.flatten(), direction.flatten(), dim=0) > 0.98


def test_as_many_samples_as_words_is_the_full_softmax():
    h, targets = problem()
    layer = softmax(n_samples=N_WORDS)
    samples = layer.draw(numpy.random.default_rng(0))
    assert_equal([layer(h, targets, samples)], [softmax()(h, targets)])


@pytest.mark.parametrize("n_samples", [None, 12])
def test_log_likelihood_is_exact(n_samples, pieces):
    """Also of a softmax that was trained with samples."""
    layer, (h, targets) = softmax(n_samples), problem()
    found = layer.log_likelihood(h.detach(), targets)
    logits = F.linear(h, layer.weight, layer.bias)
    assert_equal([found], [logits.log_softmax(1)[torch.arange(ROWS), targets]])


def test_adaptive_softmax(pieces):
    torch.manual_seed(1)
    layer = AdaptiveSoftmax(N_WORDS, WIDTH, (10, 30, 500)).double()
    h, targets = problem()
    everything = layer.softmax.log_prob(h)
    assert max_difference(everything.exp().sum(1).detach(), torch.ones(ROWS)) < 1e-12
    plain = -everything[torch.arange(ROWS), targets].sum()
    loss = layer(h, targets)
    assert_equal([loss], [plain])
    weights = (h, *layer.parameters())
    assert_equal(gradients(loss, *weights), gradients(plain, *weights))
    assert_equal([layer.log_likelihood(h.detach(), targets).sum()], [-plain])


def test_draws_are_distinct_and_follow_zipf():
    n_words, n_samples = 1000, 100
    seen = numpy.zeros(n_words)
    expected = numpy.zeros(n_words)
    for seed in range(300):
        words, n_tries = draw_log_uniform(n_words, n_samples, numpy.random.default_rng(seed))
        assert len(words) == n_samples == len(set(words.tolist()))
        assert n_tries >= n_samples
        seen[words] += 1
        expected += (
            log_expected_counts(numpy.arange(n_words), n_words, n_tries).double().exp().numpy()
        )
    for part in (slice(0, 10), slice(10, 100), slice(100, 1000)):
        assert seen[part].sum() == pytest.approx(expected[part].sum(), rel=0.05)


def test_expected_counts():
    p = [math.log((k + 2) / (k + 1)) / math.log(11) for k in range(10)]
    assert sum(p) == pytest.approx(1)
    expected = [math.log(1 - (1 - q) ** 7) for q in p]
    assert max_difference(log_expected_counts(numpy.arange(10), 10, 7), expected) < 1e-6


def test_tied_weights():
    embedding = torch.nn.Parameter(torch.randn(N_WORDS, WIDTH))
    layer = build_output_layer(LossConfig("full", tied=True), N_WORDS, WIDTH, embedding)
    assert layer.weight is embedding


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: LossConfig("hierarchical"), "name must be sampled, full or adaptive"),
        (lambda: LossConfig(n_samples=0), "n_samples must be 1 or more"),
        (lambda: LossConfig("adaptive", tied=True), "cannot be tied"),
        (lambda: build_output_layer(LossConfig(tied=True), 9, 4), "tied needs word input"),
        (lambda: AdaptiveSoftmax(50, 4, (100,)), "must be within the vocabulary of 50"),
        (lambda: AdaptiveSoftmax(50, 4, (30, 10)), "must rise"),
        (lambda: AdaptiveSoftmax(50, 15, (10, 30)), "leave nothing of a projection_dim of 15"),
    ],
)
def test_impossible_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()
