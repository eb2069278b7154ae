"""Probes of the layers."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin

from spacy_elmo.inference import current_session

from ..conftest import elmo_pipeline

sys.path.insert(0, str(Path(__file__).parents[2] / "project" / "scripts"))
probe = import_module("probe")

SENTENCES = [
    (["The", "bank", " ", "flows", "."], ["DET", "NOUN", "SPACE", "VERB", "PUNCT"]),
    (["Money", "flows", "."], ["NOUN", "VERB", "PUNCT"]),
    (["They", "bank"], ["PRON", ""]),
]


@pytest.fixture
def corpus(tmp_path):
    """Docs with UPOS; the last token has none."""
    vocab = spacy.blank("xx").vocab
    docs = [Doc(vocab, words=words, pos=pos) for words, pos in SENTENCES * 5]
    path = tmp_path / "docs.spacy"
    DocBin(docs=docs).to_disk(path)
    return path


def test_probe_finds_the_layer_that_knows():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 2, 8, generator=generator).half() * 5 + 3
    labels = torch.arange(600) % 3
    rows[:, 1, :3] = torch.nn.functional.one_hot(labels, 3).half()
    train, test = rows[:400].clone(), rows[400:].clone()
    probe.standardize(train, test)
    accuracies = {}
    for layer in probe.all_layers(rows):
        linear = probe.fit(probe.pick(train, layer), labels[:400], 3)
        accuracies[layer] = probe.accuracy(linear, probe.pick(test, layer), labels[400:])
    assert accuracies[0] < 0.5
    assert accuracies[1] == accuracies["all"] == 1


def test_untrained_is_another_network_of_the_same_shape(bilm):
    state = torch.get_rng_state()
    first, second = probe.untrained(bilm), probe.untrained(bilm)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.config == bilm.config
    vectors = [current_session(model).embed([["bank"]])[0] for model in (first, second, bilm)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0], vectors[2])


def test_command(corpus, tmp_path, weights_folder, monkeypatch):
    model = tmp_path / "pipeline"
    elmo_pipeline(weights_folder).to_disk(model)
    senses = tmp_path / "senses.jsonl"
    record = {"tokens": ["the", "bank"], "index": 1, "lemma": "bank", "sense": "river"}
    senses.write_text(json.dumps(record) + "\n" + json.dumps(record))
    out = tmp_path / "probe" / "tiny.json"
    run(monkeypatch, model, corpus, corpus, out, "--senses", senses, senses)
    result = json.loads(out.read_text())
    assert (result["name"], result["probe"]) == ("tiny", "pos")
    assert (result["n_train_tokens"], result["n_test_tokens"]) == (40, 40)
    assert [row["layer"] for row in result["layers"]] == [0, 1, 2, "all"]
    assert [row["layer"] for row in result["untrained"]] == [0, 1, 2, "all"]
    # Train and test are the same five words with one tag each.
    assert result["layers"][-1]["accuracy"] == result["most_frequent"] == 1
    assert result["senses"]["first_sense"] == 1
    assert [row["f1"] for row in result["senses"]["layers"]] == [1, 1, 1, 1]
    monkeypatch.setattr(probe, "probe", None)
    run(monkeypatch, model, corpus, corpus, out, "--senses", senses, senses)  # Done already.
    with pytest.raises(TypeError):
        run(monkeypatch, model, corpus, corpus, out)


def run(monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["probe.py", *map(str, arguments)])
    probe.main()
