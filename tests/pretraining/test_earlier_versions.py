"""Files of version 0.1.0 as it was before corpora lost their character ids: a corpus, a run with
carried states and one checkpoint, an output layer, and the weights 15 steps later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.head import load_head
from spacy_elmo.pretraining.tokenize import TokenizationConfig

from ..conftest import max_difference
from .conftest import sentences, train

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pretraining"
WHITESPACE = TokenizationConfig(whitespace=True, one_per_line=True)


def test_a_corpus():
    corpus = open_corpus(FIXTURES / "corpus")
    assert corpus.manifest["version"] == 1 and corpus.tokenization == WHITESPACE
    assert len(corpus.words) == 18
    words = {word for line in sentences(150) for word in line.split()}
    assert set(corpus.train.types) == {*words, "<S>", "</S>", "<UNK>"}


def test_an_output_layer():
    head = load_head(FIXTURES / "model.head")
    assert head.words == open_corpus(FIXTURES / "corpus").words
    assert head.tokenization == WHITESPACE and head.loss.cutoffs == (6, 12)


def test_a_run_is_resumed(tmp_path):
    shutil.copytree(FIXTURES / "run", tmp_path / "run")
    overrides = {"paths.corpus": str(FIXTURES / "corpus"), "pretraining.max_steps": 25}
    config = read_config(FIXTURES / "config.cfg", overrides)
    trainer = train(config, tmp_path / "run", resume=True)
    assert trainer.start.step == 10 and trainer.start.history[0]["step"] == 10
    parameters = dict(trainer.model.named_parameters())
    for name, value in load_file(FIXTURES / "step-25.safetensors").items():
        assert max_difference(parameters[name].detach(), value) < 1e-5, name


@pytest.mark.parametrize("max_characters", [5, 80])
def test_the_model_decides_the_characters_per_token(tmp_path, max_characters):
    """Whatever the corpus was prepared for."""
    name = "bilm.char_cnn.max_characters_per_token"
    overrides = {"paths.corpus": str(FIXTURES / "corpus"), name: max_characters}
    config = read_config(FIXTURES / "config.cfg", overrides)
    trainer = train(config, tmp_path / "run")
    assert trainer.state.step == 10
