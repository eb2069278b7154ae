"""The memory a training needs, estimated."""

from __future__ import annotations

import pytest

from spacy_elmo.pretraining import memory
from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.corpus import open_corpus, prepare
from spacy_elmo.pretraining.tokenize import TokenizationConfig

from ..project.conftest import PROJECT


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory") / "corpus"
    texts = [f"the bank number {i} flows to the river" for i in range(60)]
    prepare(texts, folder, TokenizationConfig("en", True), dev_fraction=0.1)
    return open_corpus(folder)


def config(size, corpus, **overrides):
    path = PROJECT / "configs" / "pretraining" / f"{size}.cfg"
    settings = {"paths.corpus": str(corpus.folder), "pretraining.loss.name": "full"}
    return read_config(path, {**settings, **overrides})


def estimate(size, corpus, **overrides):
    return memory.estimate_memory(config(size, corpus, **overrides), corpus)


def test_estimates_grow_with_model_and_batch(corpus):
    sizes = [estimate(name, corpus) for name in ("tiny", "small", "medium", "original")]
    assert sizes == sorted(sizes)
    # 93.6 million parameters, with gradients and two more numbers for AdamW.
    assert 93.6e6 * 16 < sizes[-1][0] < 95e6 * 16
    parameters, activations = estimate("small", corpus, **{"pretraining.batch_words": 2048})
    assert (parameters, 2 * activations) == sizes[1]


def test_rows_of_the_output_layer_need_no_gradient_of_all(corpus):
    """With Adagrad; AdamW changes every row in every step."""
    settings = {"pretraining.loss.name": "sampled", "pretraining.loss.n_samples": 3}
    full, sampled, adamw = (
        estimate("paper", corpus, **overrides)[0]
        for overrides in ({}, settings, {**settings, "pretraining.optimizer.name": "adamw"})
    )
    assert full - sampled == len(corpus.words) * (512 + 1) * 4
    assert adamw == full / 3 * 4


def test_a_sentence_longer_than_a_batch(corpus, tmp_path):
    texts = [" ".join([f"word{i}"] * 9000) for i in range(20)]
    tokenization = TokenizationConfig(whitespace=True, one_per_line=True, max_length=9000)
    prepare(texts, tmp_path / "long", tokenization, dev_fraction=0.2)
    short, long = (estimate("small", x) for x in (corpus, open_corpus(tmp_path / "long")))
    assert long[1] > 2 * short[1]


def test_what_does_not_fit_is_an_error(corpus, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2 * 10**9)
    memory.check_memory(config("tiny", corpus), corpus, "cpu")
    message = r"needs about \d\.\d GB: .* batch of 4096 words .* 2\.0 GB are free\. Lower"
    with pytest.raises(ValueError, match=message):
        memory.check_memory(config("original", corpus), corpus, "cpu")
    with pytest.raises(ValueError, match=r"2\.0 GB are free"):
        memory.check_memory(config("small", corpus), corpus, "cpu", n_processes=2)
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    memory.check_memory(config("original", corpus), corpus, "cpu")


def test_free_memory():
    assert memory.free_memory("cpu") > 10**7
