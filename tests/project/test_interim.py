"""An unfinished training goes on from what the repository keeps of it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from spacy_elmo.pretraining.config import LossConfig, OptimizerConfig
from spacy_elmo.pretraining.trainer import pretrain

from ..pretraining.conftest import corpus, run_config  # noqa: F401
from .conftest import PROJECT

sys.path.insert(0, str(PROJECT / "en_elmo_sm"))
import interim


def test_kept_training_goes_on(corpus, tmp_path):  # noqa: F811
    # At this rate the weights hardly change, and so their gradients.
    optimizer = OptimizerConfig("adamw", learn_rate=1e-4, grad_clip=1.0)
    loss = LossConfig("adaptive", cutoffs=(8,))
    config = run_config(corpus, loss=loss, optimizer=optimizer)
    run, folder, restored = (tmp_path / name for name in ("run", "interim", "restored"))
    pretrain(config, run)
    interim.keep(run, folder)
    interim.restore(folder, restored, corpus.folder)
    for part, least in (("model", 0.9999), ("optimizer", 0.8)):
        first, second = (
            load_file(x / f"step-00000020/{part}.safetensors") for x in (run, restored)
        )
        assert first.keys() == second.keys()
        for name, value in first.items():
            # One is left out: gradients of a few words hardly agree from step to step.
            if value.numel() > 1 and not name.endswith("/exp_avg"):
                other = second[name].flatten()
                cosine = value.flatten() / value.norm() @ other / other.norm()
                assert cosine > least, name
    longer = replace(config, pretraining=replace(config.pretraining, max_steps=40))
    [here, there] = [pretrain(longer, x, resume=True).state for x in (run, restored)]
    assert (here.n_words, here.epoch, here.batch) == (there.n_words, there.epoch, there.batch)
    assert there.history[-1]["average"] == pytest.approx(here.history[-1]["average"], rel=0.05)
    with pytest.raises(ValueError, match="has checkpoints already"):
        interim.restore(folder, restored, corpus.folder)
