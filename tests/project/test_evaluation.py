"""What the card of the bundled weights measures, at toy size."""

from __future__ import annotations

import sys

import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin

from spacy_elmo import ScoreTokens
from spacy_elmo.pretraining.corpus import prepare
from spacy_elmo.pretraining.head import load_head
from spacy_elmo.pretraining.tokenize import TokenizationConfig
from spacy_elmo.weights import DEFAULT

from ..test_polysemy import SENSES
from .conftest import PROJECT

sys.path.insert(0, str(PROJECT / "en_elmo_sm"))
import neighbors
import output_layer
import scores
import tasks
from sources import Source


def test_scores():
    same, other = torch.tensor([0.9, 0.5]), torch.tensor([0.5, 0.1])
    assert scores.auc(same, other) == pytest.approx(3.5 / 4)
    assert scores.auc(other, same) == pytest.approx(0.5 / 4)
    # 0.7 is the best threshold of the first, and misses half of the second's.
    first = torch.tensor([0.8, 0.9]), torch.tensor([0.1, 0.6])
    second = torch.tensor([0.65, 0.9]), torch.tensor([0.0, 0.1])
    assert scores.accuracy([first], [first]) == 1
    assert scores.accuracy([second], [first]) == 0.75
    cosines = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.1, 0.9], [0.1, 0.2, 0.3]])
    assert scores.reciprocal_rank(cosines) == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert scores.similarity(cosines, [0, 1, 0]) == 1  # The second has no other of its source.
    memory = torch.tensor([[1.0, 0], [0.9, 0.1], [0, 1]])
    assert scores.vote(memory, ["a", "a", "b"], torch.tensor([[1.0, 0], [0, 1]]), 1) == ["a", "b"]
    assert scores.vote(memory, ["a", "a", "b"], torch.tensor([[0.0, 1]]), 9) == ["a"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Held-out text, and a treebank of the same words."""
    monkeypatch.setattr(tasks, "SOURCES", [Source("news", "news", 1, "", lambda path: iter(()))])
    monkeypatch.setattr(tasks, "N_CONTEXTS", 3)
    words = ["cats", "dogs", "birds", "cows", "men"]
    lines = [" ".join(f"We saw {x} on day {i}." for x in words) for i in range(9)]
    folder = tmp_path / "corpus"
    (folder / "held_out").mkdir(parents=True)
    bank = ["The bank opened, they said.", "Its bank and the other bank."]
    (folder / "held_out" / "news.txt").write_text("\n".join(lines + bank), encoding="utf8")
    vocab = spacy.blank("en").vocab
    docs = [
        Doc(vocab, words=["The", "work", *words], tags=["DT", "NN"] + ["NNS"] * 5, pos=pos)
        for pos in [["DET", x, *["NOUN"] * 5] for x in ("NOUN", "VERB") * 3]
    ]
    for name in ("train", "dev"):
        DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
    return folder


def run(monkeypatch, module, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    module.main()


def test_neighbors(corpus, weights_folder, monkeypatch, capsys):
    monkeypatch.setattr(neighbors, "SENSES", {"bank": SENSES["bank"]})
    run(monkeypatch, neighbors, corpus, weights_folder, weights_folder, "-n", 2)
    out = capsys.readouterr().out
    assert out.count("**She asked the [bank] for a loan to buy the house.**") == 1
    rows = [line for line in out.splitlines() if line[:3] == "| 0" or line[:4] == "| -0"]
    assert len(rows) == 4
    for row in rows:
        first, second = row.strip("| ").split(" | ")
        assert first == second and "**bank**" in first and first.endswith("(news)")


@pytest.mark.slow
def test_output_layer(tmp_path, monkeypatch, capsys):
    """The words of the layer have learned the text, those that it lacks are unknown."""
    lines = [f"We saw {x} {y} cats." for x in ("big", "old", "red") for y in "abcdefgh"]
    tokenization = TokenizationConfig(one_per_line=True)
    prepare(lines, tmp_path / "prepared", tokenization, dev_texts=["We saw big cats."])
    monkeypatch.setattr(output_layer, "N_WORDS", 9)
    monkeypatch.setattr(output_layer, "BATCH_WORDS", 30)
    head = tmp_path / "new.head"
    run(monkeypatch, output_layer, tmp_path, DEFAULT, head, "--words", 3000)
    assert "in 8 bits" in capsys.readouterr().out
    words = load_head(head).words
    assert len(words) == 9 and {"We", "saw", "cats", "."} <= {*words}
    [scores] = ScoreTokens(DEFAULT, head=head)([["We", "saw", "red", "x", "cats", "."]])
    assert scores.forward[[1, 5]].min() > -1 and scores.backward[[0, 4]].min() > -1
    assert scores.unknown.tolist() == [False, False, "red" not in words, True, False, False]
