"""Output layers against plain formulas in float64."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch.nn import functional as F

from spacy_elmo.pretraining.config import LossConfig
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.losses.adaptive import AdaptiveSoftmax
from spacy_elmo.pretraining.losses.softmax import Softmax, draw_log_uniform

from ..conftest import assert_close, max_difference, needs_extension, random_bilm

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


@pytest.fixture(params=[1 << 30, 1000], ids=["one piece", "several pieces"])
def pieces(request, monkeypatch):
    monkeypatch.setattr(
        "spacy_elmo.pretraining.losses.softmax._LOGIT_BYTES", {"cpu": request.param}
    )


def test_a_new_layer_predicts_the_frequencies():
    """Of a row of zeros, whatever the weights are."""
    log_p = torch.randn(N_WORDS, dtype=torch.float64).log_softmax(0)
    h, words = torch.zeros(N_WORDS, WIDTH, dtype=torch.float64), torch.arange(N_WORDS)
    for layer in (softmax(), softmax(8)):
        layer.start_from(log_p)
        assert_close([layer.log_likelihood(h, words)], [log_p], 1e-12)
    adaptive = AdaptiveSoftmax(N_WORDS, WIDTH, [10, 30]).double()
    adaptive.start_from(log_p)
    clusters = [slice(10, 30), slice(30, None)]
    # Within a cluster, all words are equal.
    expected = [
        p.logsumexp(0).expand(len(p)) - math.log(len(p)) for p in map(log_p.__getitem__, clusters)
    ]
    assert_close([adaptive.log_likelihood(h, words)], [torch.cat((log_p[:10], *expected))], 1e-12)


def test_full_softmax(pieces):
    layer, (h, targets) = softmax(), problem()
    loss = layer(h, targets)
    plain = F.cross_entropy(F.linear(h, layer.weight, layer.bias), targets, reduction="sum")
    assert_close([loss], [plain], 1e-12)
    weights = (h, layer.weight, layer.bias)
    assert_close(gradients(2.5 * loss, *weights), gradients(2.5 * plain, *weights), 1e-12)


def log_uniform_counts(words, n_words: int, n_tries: int) -> numpy.ndarray:
    """Expected counts as TensorFlow's log_uniform_candidate_sampler documents them: words are drawn
    with P(k) = (log(k + 2) - log(k + 1)) / log(range_max + 1), until so many are distinct."""
    words = numpy.asarray(words, dtype="float64")
    p = (numpy.log(words + 2) - numpy.log(words + 1)) / math.log(n_words + 1)
    return 1 - (1 - p) ** n_tries


def sampled_softmax_loss(h, weight, bias, targets, samples) -> torch.Tensor:
    """tf.nn.sampled_softmax_loss as it is documented, with remove_accidental_hits = True: the log
    of the expected count is subtracted from the logits of the true class and of the samples."""
    counts = log_uniform_counts(numpy.arange(len(bias)), len(bias), samples[1])
    log_q = torch.from_numpy(numpy.log(counts)).to(h.dtype)
    words = torch.from_numpy(samples[0])
    true = (h * weight[targets]).sum(1) + (bias - log_q)[targets]
    others = h @ weight[words].t() + (bias - log_q)[words]
    others = others.masked_fill(words == targets[:, None], -math.inf)
    logits = torch.cat((true[:, None], others), 1)
    return F.cross_entropy(logits, torch.zeros_like(targets), reduction="sum")


def test_sampled_softmax(pieces):
    layer, (h, targets) = softmax(n_samples=12), problem()
    samples = layer.draw(numpy.random.default_rng(3))
    # Accidental hits occur, not everywhere.
    assert 0 < numpy.isin(targets, samples[0]).sum() < ROWS
    weights = (h, layer.weight, layer.bias)
    plain = sampled_softmax_loss(*weights, targets, samples)
    loss = layer(h, targets, samples)
    assert_close([loss, *gradients(loss, *weights)], [plain, *gradients(plain, *weights)])


@pytest.mark.parametrize("n_samples, n_steps", [(512, 1500), (4096, 400), (None, 150)])
def test_the_minimum_is_the_true_distribution(n_samples, n_steps):
    """Only the biases are learned, as in a language model of word frequencies: two rare words are
    likely, and 30 frequent ones are not. The best possible perplexity is that of the truth."""
    n_words, frequent = 20_000, torch.arange(30)
    targets = torch.cat([torch.full((50,), 9000), torch.full((20,), 15000), frequent])
    h = torch.zeros(len(targets), 1)
    layer = Softmax(n_words, 1, n_samples)
    optimizer = torch.optim.Adam([layer.bias])
    random = numpy.random.default_rng(0)
    for step in range(n_steps):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / n_steps)
        optimizer.zero_grad()
        (layer(h, targets, layer.draw(random)) / len(targets)).backward()
        optimizer.step()
    p = layer.bias.detach().double().softmax(0)
    truth = torch.tensor([0.5, 0.2, *[0.3 / 30] * 30], dtype=torch.float64)
    learned = torch.cat((p[[9000, 15000]], p[frequent]))
    best = (-(truth * truth.log()).sum()).exp()
    assert (-(truth * learned.log()).sum()).exp() < 1.02 * best
    assert learned[0] == pytest.approx(0.5, abs=0.1)
    assert learned[2:].sum() == pytest.approx(0.3, abs=0.1)


def test_adaptive_softmax(pieces):
    torch.manual_seed(1)
    layer = AdaptiveSoftmax(N_WORDS, WIDTH, (10, 30, 500)).double()
    h, targets = problem()
    everything = layer.softmax.log_prob(h)
    assert max_difference(everything.exp().sum(1), torch.ones(ROWS)) < 1e-12
    plain = -everything[torch.arange(ROWS), targets].sum()
    loss = layer(h, targets)
    assert_close([loss], [plain], 1e-12)
    weights = (h, *layer.parameters())
    assert_close(gradients(loss, *weights), gradients(plain, *weights), 1e-12)
    assert_close([layer.log_likelihood(h.detach(), targets).sum()], [-plain], 1e-12)


def test_draws_are_distinct_and_follow_zipf():
    n_words, n_samples = 1000, 100
    counts = numpy.zeros(n_words)
    expected = numpy.zeros(n_words)
    for seed in range(300):
        words, n_tries = draw_log_uniform(n_words, n_samples, numpy.random.default_rng(seed))
        assert len(words) == n_samples == len(set(words.tolist()))
        assert n_tries >= n_samples
        counts[words] += 1
        expected += log_uniform_counts(numpy.arange(n_words), n_words, n_tries)
    for words_of_rank in (slice(0, 10), slice(10, 100), slice(100, 1000)):
        assert counts[words_of_rank].sum() == pytest.approx(expected[words_of_rank].sum(), rel=0.05)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: LossConfig("hierarchical"), "Input should be 'sampled', 'full' or 'adaptive'"),
        (lambda: LossConfig(n_samples=0), "n_samples\n.*greater than or equal to 1"),
        (lambda: LanguageModel(random_bilm(), 9, LossConfig(tied=True)), "tied needs word input"),
        (lambda: AdaptiveSoftmax(50, 4, (100,)), "within the vocabulary of 50"),
        (lambda: AdaptiveSoftmax(50, 4, (30, 10)), "must rise"),
        (lambda: AdaptiveSoftmax(50, 15, (10, 30)), r"divides the width \(15\)"),
    ],
)
def test_impossible_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@needs_extension
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_samples", [None, 25], ids=["full", "sampled"])
@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["small logits", "huge logits"])
def test_the_compiled_loss(n_samples, n_threads, scale, pieces, set_num_threads):
    """In float32 and bfloat16 against PyTorch in float64."""
    layer, (h, targets) = softmax(n_samples), problem()
    with torch.no_grad():
        layer.weight.mul_(scale)
    results = []
    set_num_threads(n_threads)
    for dtype, kernel in (
        (torch.float64, "torch"),
        (torch.float32, "auto"),
        (torch.bfloat16, "auto"),
    ):
        layer.kernel = kernel
        layer, low = layer.to(torch.promote_types(dtype, torch.float32)), h.detach().to(dtype)
        x = low.to(layer.weight.dtype).requires_grad_()
        samples = layer.draw(numpy.random.default_rng(0))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = layer(x, targets, samples)
        results.append([loss.detach(), *gradients(loss, x, layer.weight, layer.bias)])
    exact, single, low = results
    for reference, result in zip(exact, single):
        assert (result - reference).norm() <= 1e-5 * reference.norm()
    if scale == 1:  # Else rounded logits decide for another word.
        for reference, result in zip(exact, low):
            assert 0 < (result - reference).norm() <= 0.02 * reference.norm()


@needs_extension
def test_the_compiled_loss_reads_no_other_memory():
    """Targets with gaps, of another type, and words that there are not."""
    layer, (h, targets) = softmax().float(), problem()
    h = h.detach().float()
    expected = layer(h, targets)
    for same in (targets.to(torch.int32), targets.repeat_interleave(2)[::2]):
        assert torch.equal(layer(h, same), expected)
    for word in (-1, N_WORDS, 2**40):
        with pytest.raises(IndexError, match=f"{word}.*, of {N_WORDS} words"):
            layer(h, targets.index_fill(0, torch.tensor(3), word))
