"""The published recipe against bilm-tf's training.py, written out with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy

from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.losses import LossConfig
from spacy_elmo.pretraining.trainer import Trainer

from ..conftest import max_difference
from .conftest import run_config

PAPER = Path(__file__).parents[2] / "project/configs/pretraining/paper.cfg"
UNROLL_STEPS = 20


def test_updates_are_those_of_bilm_tf(corpus, tmp_path):
    """bilm-tf multiplies the loss by unroll_steps, clips the global norm of the gradient at 10, and
    gives it to an Adagrad of rate 0.2 whose accumulators begin at 1. The gradients of the mean loss
    are noted as autograd hands them to the parameters."""
    optimizer = read_config(PAPER).pretraining.optimizer
    config = run_config(
        corpus, loss=LossConfig("full"), optimizer=optimizer, max_steps=10, dropout=0.0
    )
    trainer = Trainer(config, tmp_path / "run")
    named = dict(trainer.model.named_parameters())
    weights = {name: p.detach().double().numpy().copy() for name, p in named.items()}
    accumulators = {name: numpy.ones_like(value) for name, value in weights.items()}
    gradients: dict[str, numpy.ndarray] = {}
    for name, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients.update({name: p.grad.double().numpy().copy()})
        )
    norms = []

    def after_step(progress, loss, found):
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

    trainer.train(after_step)
    assert len(norms) == 10
    assert max(norms) > 10 > min(norms)
