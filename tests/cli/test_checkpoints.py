"""TensorFlow checkpoints of bilm-tf as the model of commands."""

import json
from pathlib import Path

import numpy
import pytest

from spacy_elmo.formats import load
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.head import find_head
from spacy_elmo.weights import load_bilm

from ..conftest import assert_close
from ..families import bilm_tf as family
from ..families.network import random_model
from .conftest import fail, succeed


class Checkpoint:
    """A random one, with text.

    characters (bool): Whether characters are its input.
    """

    def __init__(self, folder: Path, characters: bool) -> None:
        rng = numpy.random.default_rng(2)
        self.folder, self.text = folder / "run", folder / "text.txt"
        self.architecture, self.weights, _ = random_model(family, 2, {"characters": characters})
        family.write(self.folder, self.architecture, self.weights)
        sentences = [x for _ in range(12) for x in family.random_sentences(self.architecture, rng)]
        # The text is split at spaces.
        sentences = [[word for word in x if word.split() == [word]] for x in sentences]
        self.sentences = [sentence for sentence in sentences if sentence]
        lines = [" ".join(sentence) + "\n" for sentence in self.sentences]
        self.text.write_text("".join(lines), encoding="utf8")

    def perplexity(self, sentences: list[list[str]]) -> dict[str, float]:
        """By the reference."""
        scores = family.reference_perplexity(self.architecture, self.weights, sentences)
        scores["average"] = scores.pop("both")
        return {name: pytest.approx(score, rel=1e-5) for name, score in scores.items()}


@pytest.fixture(params=[True, False], ids=["characters", "words"])
def checkpoint(request, tmp_path) -> Checkpoint:
    return Checkpoint(tmp_path, request.param)


def measure(model: Path, text: Path) -> dict[str, float]:
    scores = json.loads(succeed("perplexity", model, text, "--json"))
    return {name: scores[name] for name in ("forward", "backward", "average")}


def test_perplexity(checkpoint, tmp_path):
    """Of the checkpoint, of the pipeline that it is converted to, and at the start of a training
    that goes on from either."""
    expected = checkpoint.perplexity(checkpoint.sentences)
    assert measure(checkpoint.folder, checkpoint.text) == expected
    pipeline = tmp_path / "pipeline"
    succeed("convert", checkpoint.folder / "options.json", checkpoint.folder, pipeline)
    assert measure(pipeline, checkpoint.text) == expected
    tokens = checkpoint.sentences[:5]
    vectors = current_session(load(checkpoint.folder)).embed(tokens)
    assert_close(current_session(load_bilm(pipeline)).embed(tokens), vectors, bound=0)

    options = ("--whitespace", "--sentence-per-line", "--dev-fraction", 0.3)
    vocabulary = ("--vocab", checkpoint.folder / "vocab.txt")
    succeed("prepare", checkpoint.text, tmp_path / "corpus", *options, *vocabulary)
    dev = open_corpus(tmp_path / "corpus").dev
    sentences = [[dev.types[i] for i in ids] for ids in numpy.split(dev.ids, dev.ends[:-1])]
    expected = checkpoint.perplexity(sentences)
    (tmp_path / "config.cfg").write_text("[paths]\n[pretraining]\n[pretraining.optimizer]\n")
    for number, model in enumerate((checkpoint.folder, pipeline)):
        settings = {
            "paths.corpus": tmp_path / "corpus",
            "paths.init_from": model,
            "pretraining.max_steps": 1,
            "pretraining.optimizer.learn_rate": 1e-30,
        }
        arguments = [x for name, value in settings.items() for x in (f"--{name}", value)]
        out = tmp_path / f"out{number}"
        output = succeed("pretrain", tmp_path / "config.cfg", out, *arguments)
        assert "and its output layer" in " ".join(output.split())
        record = json.loads((out / "log.jsonl").read_text())
        assert {name: record[name] for name in expected} == expected


def test_convert_without_a_vocabulary(tmp_path):
    """The network is of use without its output layer. That of another pipeline does not stay."""
    checkpoint, pipeline = Checkpoint(tmp_path, True), tmp_path / "pipeline"
    command = ("convert", checkpoint.folder / "options.json", checkpoint.folder, pipeline)
    succeed(*command)
    assert find_head(pipeline).words == checkpoint.architecture["words"]
    (checkpoint.folder / "vocab.txt").unlink()
    assert "--force" in fail(*command)
    output = " ".join(succeed(*command, "--force").split())
    assert "without its output layer" in output and "vocab.txt" in output
    assert "no output layer" in fail("perplexity", pipeline, checkpoint.text)
    assert not pipeline.with_name("pipeline.head").exists()
