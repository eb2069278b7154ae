"""The published recipe against bilm-tf's training.py, written out with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy

from spacy_elmo.pretraining.batches import make_epoch
from spacy_elmo.pretraining.config import LossConfig, read_config
from spacy_elmo.pretraining.updater import Updater

from ..conftest import max_difference
from .conftest import new_model, run_config

PAPER = Path(__file__).parents[2] / "project/configs/pretraining/paper.cfg"
UNROLL_STEPS = 20


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
    gradients: dict[str, numpy.ndarray] = {}
    for name, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients.update({name: p.grad.double().numpy().copy()})
        )
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
