"""What the card of the bundled weights measures, at toy size."""

from __future__ import annotations

import shutil
import sys

import numpy
import pytest
import spacy
import srsly
import torch
from spacy.tokens import Doc, DocBin

from ..test_polysemy import SENSES, similarity_margin, vector
from .conftest import PROJECT

sys.path.insert(0, str(PROJECT / "en_elmo_sm"))
import bundle
import mix
import neighbors
import scores
import senses
import tasks
from sources import Source

from spacy_elmo.weights import load_bilm, load_pipeline


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


def test_mixes():
    torch.manual_seed(0)
    # The smallest variance is a thousandth of the largest: float32 would leave it four digits.
    background = (torch.randn(500, 2, 3, 4) @ torch.randn(4, 4) + 7).double()
    rows = tasks.Rows(*[background] * 4, [], [], background, background)
    weights = (0.5, 0.0, 0.5)
    plain = background[:, 1, ::2].mean(1)
    torch.testing.assert_close(mix.make_mix(weights, True, "", rows)(background), plain)
    centred = plain - plain.mean(0)
    result = mix.make_mix(weights, True, "centred", rows)(background)
    torch.testing.assert_close(result, centred)
    result = mix.make_mix(weights, True, "standardised", rows)(background)
    torch.testing.assert_close(result, centred / plain.std(0))
    result = mix.make_mix(weights, True, "half whitened", rows)(background)
    variances, whitened = (torch.linalg.eigvalsh(torch.cov(x.T)) for x in (plain, result))
    torch.testing.assert_close(whitened, variances.sqrt())


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


def test_mix_command(corpus, weights_folder, monkeypatch, capsys):
    run(monkeypatch, mix, corpus, corpus, weights_folder, weights_folder)
    out = capsys.readouterr().out
    tables = [[x for x in part.splitlines() if x[:2] == "| "] for part in out.split("\n## ")[1:]]
    assert len(tables) == 2 and tables[0] == tables[1]
    header, *rows = tables[0]
    assert header.count("|") == 10 and "| in context |" in header
    assert len(rows) == len(mix.KINDS) * 6
    assert rows[0].startswith("| mean | 0.33 0.33 0.33 |")
    # All of the token encoder's contexts are the same.
    [encoder] = [row for row in rows if row.startswith("| layer 0 |")]
    assert encoder.split(" | ")[4] == "50.0"


def test_senses(tmp_path, weights_folder, monkeypatch, capsys):
    path = tmp_path / "list.jsonl"
    srsly.write_jsonl(path, [{"word": "bank", "senses": SENSES["bank"]}])
    monkeypatch.setattr(senses, "SENSES", {"play": SENSES["play"]})
    run(monkeypatch, senses, weights_folder, weights_folder, "--list", path, "--words")
    nlp = load_pipeline(weights_folder)
    margin = similarity_margin(
        tuple(numpy.stack([vector(nlp, x) for x in texts]) for texts in SENSES["bank"])
    )
    out = capsys.readouterr().out
    assert f"| list.jsonl | bank | {margin:+.3f}, AUC" in out
    hits = int(margin > 0)
    assert f"| list.jsonl | mean, of 1 | {hits} | {hits} (+0 -0) |" in out
    assert "| test_polysemy.py | all, of 1 |" in out and "| test_polysemy.py | AUC |" in out


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


def test_bundle(tmp_path, weights_folder, monkeypatch):
    rounded, out = tmp_path / "rounded", tmp_path / "out"
    card, text = out / "README.md", "| score |\n|---|\n| 90.1 |\n"
    (tmp_path / "rounded.head").mkdir()
    (tmp_path / "model.head").mkdir()
    (tmp_path / "model.head" / "words.txt").write_text("the")
    shutil.copytree(weights_folder, tmp_path / "model")
    run(monkeypatch, bundle, tmp_path / "model", rounded, "--mix", 0, 0.5, 0.5)
    assert (tmp_path / "rounded.head" / "words.txt").read_text() == "the"
    assert sorted(x.name for x in rounded.iterdir()) == ["options.json", "weights.safetensors"]
    out.mkdir()
    card.write_text(text)
    run(monkeypatch, bundle, rounded, out, "--card", card)
    assert load_bilm(out).trained_mix == ([0, 0.5, 0.5], 1)
    assert card.read_text() == text
    assert (out / "SOURCES.md").is_file() and not (tmp_path / "out.head").exists()
    layers = load_pipeline(out)("the bank")._.elmo_layers
    numpy.testing.assert_allclose(
        load_pipeline(out)("the bank")._.elmo_tokens, layers[1:].mean(0), rtol=1e-5
    )
    for wrong in (["--mix", 1], ["--card", card]):
        card.write_text("| score |\n|---|\n| - |\n")
        with pytest.raises(SystemExit):
            run(monkeypatch, bundle, weights_folder, out, *wrong)
