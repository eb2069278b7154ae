"""Training steps on PyTorch's meta device, of tensors without contents. Like a GPU it refuses
tensors of another device, and where a GPU would be waited for, it raises an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spacy_elmo.bilm import BiLMConfig
from spacy_elmo.pretraining.batches import make_epoch
from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.corpus import open_corpus, prepare
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.updater import Updater

from ..conftest import needs_triton
from ..project.conftest import CONFIG_FOLDER
from .conftest import SENTENCE_PER_LINE, sentences

PAPER = CONFIG_FOLDER / "pretraining" / "paper.cfg"
N_WORDS = 793_471


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One text as a corpus with the published number of words, and with a few."""
    folder = tmp_path_factory.mktemp("meta")
    for name, size in (("many", N_WORDS), ("few", 99)):
        words = ["<S>", "</S>", "<UNK>", "Anna", "sees", "the", "river", "."]
        words += [f"unseen{i}" for i in range(size - len(words))]
        prepare(sentences(), folder / name, SENTENCE_PER_LINE, vocabulary=words, dev_fraction=0.1)
    return folder


@pytest.mark.parametrize(
    "loss, characters, settings",
    [
        ("sampled", True, {}),
        pytest.param("sampled", True, {"kernel": "triton"}, marks=needs_triton),
        pytest.param("full", False, {"kernel": "triton"}, marks=needs_triton),
        ("adaptive", True, {"carry_state": False}),
        ("sampled", False, {"carry_state": False}),
        ("sampled", False, {"optimizer.name": "adamw"}),
        ("sampled", True, {"optimizer.name": "muon"}),
        ("sampled", False, {"loss.tied": True}),
        ("adaptive", False, {}),
        ("full", False, {"carry_state": False}),
    ],
    ids=str,
)
def test_nothing_waits_for_the_device(folders, loss, characters, settings):
    overrides = {
        "batch_words": 200,
        "accumulate_gradient": 2,
        "loss.name": loss,
        "loss.n_samples": 8192 if characters else 50,
        "loss.cutoffs": [2000, 10000] if characters else [20, 50],
        **settings,
    }
    kernel = overrides.pop("kernel", "auto")
    config = read_config(PAPER, {f"pretraining.{name}": v for name, v in overrides.items()})
    corpus = open_corpus(folders / ("many" if characters else "few"))
    if not characters:
        config = replace(config, bilm=BiLMConfig(config.bilm.lstm, n_tokens_vocab=3))
    with torch.device("meta"):
        model, _ = build_model(config, corpus)
    # Outside: PyTorch's optimizers count their steps in main memory.
    model.bilm.lstm.kernel = model.output.kernel = kernel
    updater = Updater(model, config.pretraining, 0)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert model.bilm.config.lstm.dim == 4096
    assert model.output.n_words == (N_WORDS if characters else 99)
    epoch = make_epoch(corpus.train, config.pretraining, 0, 0)
    rows = config.pretraining.batch_words // config.pretraining.unroll_steps
    states = model.new_states(rows) if config.pretraining.carry_state else None
    tf32 = []
    model.bilm.lstm.register_forward_pre_hook(
        lambda *_: tf32.append(torch.backends.cuda.matmul.allow_tf32)
    )
    for step in range(2):
        loss_value, _ = updater.update(epoch, [2 * step, 2 * step + 1], step, states)
        assert loss_value.device.type == "meta" and loss_value.shape == ()
    # For the products of forward and backward passes only.
    assert len(tf32) == 4 and all(tf32) and not torch.backends.cuda.matmul.allow_tf32
