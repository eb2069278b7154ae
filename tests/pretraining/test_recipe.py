"""Recipes written out with NumPy: bilm-tf's training.py, and Muon."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from spacy_elmo.pretraining.batches import make_epoch
from spacy_elmo.pretraining.config import LossConfig, OptimizerConfig, read_config
from spacy_elmo.pretraining.optimizer import build_muon
from spacy_elmo.pretraining.updater import Updater

from ..conftest import max_difference
from .conftest import new_model, run_config

PAPER = Path(__file__).parents[2] / "spacy_elmo/configs/pretraining/paper.cfg"
UNROLL_STEPS = 20


def record_gradients(model):
    """RETURNS (dict): Takes the gradients of each step, by name."""
    gradients: dict[str, numpy.ndarray] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients.update({name: p.grad.double().numpy().copy()})
        )
    return gradients


def test_updates_are_those_of_bilm_tf(corpus):
    """bilm-tf multiplies the loss by unroll_steps, clips the global norm of the gradient at 10, and
    gives it to an Adagrad of rate 0.2 whose accumulators begin at 1. The gradients of the mean loss
    are recorded when autograd gives them to the parameters."""
    optimizer = read_config(PAPER).pretraining.optimizer
    config = run_config(corpus, loss=LossConfig("full"), optimizer=optimizer, dropout=0.0)
    model = new_model(config, corpus)
    updater = Updater(model, config.pretraining, 0)
    named = dict(model.named_parameters())
    weights = {name: p.detach().double().numpy().copy() for name, p in named.items()}
    accumulators = {name: numpy.ones_like(value) for name, value in weights.items()}
    gradients = record_gradients(model)
    norms = []
    epoch = make_epoch(corpus.train, config.pretraining, 0, 0)
    for step in range(10):
        updater.update(epoch, [step], step)
        scaled = {name: UNROLL_STEPS * gradients.get(name, 0 * weights[name]) for name in named}
        norm = numpy.sqrt(sum((g**2).sum() for g in scaled.values()))
        norms.append(norm)
        for name, g in scaled.items():
            g = g * min(1.0, 10.0 / norm)
            accumulators[name] += g**2
            weights[name] -= 0.2 * g / numpy.sqrt(accumulators[name])
        for name, parameter in named.items():
            assert max_difference(parameter.detach(), weights[name]) < 1e-4, name
        gradients.clear()
    assert max(norms) > 10 > min(norms)


def newton_schulz(gradient):
    """Keller Jordan's post "Muon: An optimizer for hidden layers in neural networks" (2024)."""
    x = gradient / numpy.linalg.norm(gradient)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon(corpus):
    """Matrices of LSTMs, highways and the projection by Muon, all else by AdamW (Loshchilov and
    Hutter 2019, algorithm 2), in 20 steps. Biases and embeddings do not decay."""
    optimizer = OptimizerConfig(
        "muon", learn_rate=0.01, muon_rate=0.02, weight_decay=0.1, grad_clip=0
    )
    config = run_config(corpus, loss=LossConfig("full"), optimizer=optimizer, dropout=0.0)
    # In float32 the Gram matrix loses the smallest singular values: 1e-3 of an update.
    model = new_model(config, corpus).double()
    updater = Updater(model, config.pretraining, 0)
    named = dict(model.named_parameters())
    weights = {name: p.detach().double().numpy().copy() for name, p in named.items()}
    first, second = ({n: numpy.zeros_like(w) for n, w in weights.items()} for _ in range(2))
    gradients = record_gradients(model)
    epoch = make_epoch(corpus.train, config.pretraining, 0, 0)
    for step in range(20):
        updater.update(epoch, [step % len(epoch)], step)
        for name, w in weights.items():
            g = gradients.get(name, numpy.zeros_like(w))
            is_matrix = ("lstm" in name or "highway" in name or "encoder.projection" in name) and (
                w.ndim == 2
            )
            if is_matrix:
                first[name] = 0.95 * first[name] + 0.05 * g
                update = newton_schulz(0.05 * g + 0.95 * first[name])
                w *= 1 - 0.02 * 0.1
                w -= 0.02 * max(1, w.shape[0] / w.shape[1]) ** 0.5 * update
                continue
            if w.ndim > 1 and "embedding" not in name:
                w *= 1 - 0.01 * 0.1
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.98 * second[name] + 0.02 * g**2
            mean, square = (
                first[name] / (1 - 0.9 ** (step + 1)),
                second[name] / (1 - 0.98 ** (step + 1)),
            )
            w -= 0.01 * mean / (numpy.sqrt(square) + 1e-8)
        for name, parameter in named.items():
            assert max_difference(parameter.detach(), weights[name]) < 1e-5, (step, name)
        gradients.clear()


def test_muon_with_bfloat16_products_is_that_of_torch():
    """Bit for bit, beside AdamW."""

    def train(make_optimizers):
        generator = torch.Generator().manual_seed(0)
        shapes = (12, 5), (5, 12), (8, 8), (7,)
        weights = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
        optimizers = make_optimizers(weights[:3], weights[3:])
        for _ in range(20):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            for optimizer in optimizers:
                optimizer.step()
        return weights

    def theirs(matrices, others):
        adamw = torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1)
        return torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1), adamw

    def ours(matrices, others):
        groups = [
            {"params": matrices, "lr": 0.02, "weight_decay": 0.1, "momentum": 0.95},
            {"params": others, "weight_decay": 0.1},
        ]
        return (build_muon(groups, torch.bfloat16, lr=0.01, betas=(0.9, 0.98)),)

    assert all(torch.equal(a, b) for a, b in zip(train(ours), train(theirs)))
