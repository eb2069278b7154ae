"""spacy elmo prepare, pretrain and perplexity, one after the other."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from pathlib import Path

import numpy
import pytest
import spacy
import torch

from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.weights import DEFAULT

from ..pretraining.conftest import sentences
from ..pretraining.test_trainer import CONFIG
from .conftest import fail, succeed
from .conftest import run as main


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A folder with text, a corpus, and a short training."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("\n".join(sentences()) + "\n", encoding="utf8")
    options = ["--vocab-size", "15", "--dev-fraction", "0.1", "--whitespace", "--sentence-per-line"]
    output = succeed("prepare", folder / "text.txt", folder / "corpus", *options)
    assert "vocabulary of 18" in " ".join(output.split())
    (folder / "config.cfg").write_text(CONFIG.format(corpus=folder / "corpus", max_steps=1000))
    settings = ["--pretraining.max_steps", "30", "--pretraining.eval_frequency", "15"]
    output = succeed("pretrain", folder / "config.cfg", folder / "out", *settings)
    assert "Best average perplexity" in output
    return folder


def test_the_folder_of_a_run(run):
    names = {path.name for path in (run / "out").iterdir()}
    assert names >= {"model-best", "model-last", "model-best.head", "log.jsonl", "step-00000030.pt"}
    records = [json.loads(line) for line in (run / "out" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [15, 30]
    assert records[1]["average"] < records[0]["average"]
    average = math.sqrt(records[1]["forward"] * records[1]["backward"])
    assert records[1]["average"] == pytest.approx(average)
    assert spacy.load(run / "out" / "model-best")("The bank")._.elmo is not None


def test_the_curves(run):
    pytest.importorskip("matplotlib")
    data = (run / "out" / "curves.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 5000


def test_perplexity(run, monkeypatch):
    model = run / "out" / "model-last"
    out = run / "perplexity.json"
    scores = json.loads(succeed("perplexity", model, run / "text.txt", "--json", "--out", out))
    assert json.loads(out.read_text(encoding="utf8")) == scores
    assert scores["n_words"] == sum(len(line.split()) for line in sentences())
    record = json.loads((run / "out" / "log.jsonl").read_text().splitlines()[-1])
    assert scores["average"] == pytest.approx(record["average"], rel=0.2)
    assert "predicted as <UNK>" in succeed("perplexity", model, run / "text.txt")
    # What it writes itself is no text.
    folder = run / "texts"
    folder.mkdir()
    shutil.copy(run / "text.txt", folder)
    for _ in range(2):
        command = ("perplexity", model, folder, "--json", "--words", folder / "words.jsonl", "-F")
        assert json.loads(succeed(*command))["n_words"] == scores["n_words"]
    text = folder / "text.txt"
    assert "no text besides the output" in fail("perplexity", model, text, "--out", text, "-F")
    assert text.read_bytes() == (run / "text.txt").read_bytes()
    carried = json.loads(succeed("perplexity", model, run / "text.txt", "--json", "--carry-state"))
    assert carried["average"] != pytest.approx(scores["average"], rel=1e-4)
    assert scores["n_words"] - carried["n_words"] < 5 and carried["unknown"] > 0
    monkeypatch.chdir(model)
    assert json.loads(succeed("perplexity", ".", run / "text.txt", "--json")) == scores


def test_perplexity_with_an_output_layer_from_elsewhere(run, tmp_path):
    text, model, head = run / "text.txt", run / "out" / "model-last", tmp_path / "layer"
    scores = json.loads(succeed("perplexity", model, text, "--json"))
    alone = shutil.copytree(model, tmp_path / "alone")
    shutil.copytree(run / "out" / "model-last.head", head)
    assert f"no output layer in {tmp_path}" in fail("perplexity", alone, text)
    assert json.loads(succeed("perplexity", alone, text, "--head", head, "--json")) == scores
    assert f"no output layer in {alone}" in fail("perplexity", alone, text, "--head", alone)
    assert f"in {head} is another model's" in fail("perplexity", DEFAULT, text, "--head", head)


def test_an_interrupted_run_is_no_success(run, monkeypatch):
    """Or a workflow would continue with half a training."""
    monkeypatch.setattr(
        "spacy_elmo.pretraining.trainer.write_model",
        lambda *_: signal.raise_signal(signal.SIGTERM),
    )
    command = ("pretrain", run / "config.cfg", run / "killed", "--pretraining.eval_frequency", "5")
    result = main(*command)
    assert result.exit_code == 130, result.output
    assert "continue with --resume" in result.output
    assert len(list((run / "killed").glob("step-*"))) == 2  # The first one and that of the signal.
    monkeypatch.undo()
    succeed(*command, "--resume", "--pretraining.max_steps", "10")


def test_messages(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    command = ("pretrain", run / "config.cfg", tmp_path / "out", "--pretraining.max_steps", 4)
    output = " ".join(succeed(*command).split())
    assert "on cpu, 1 process; new weights" in output
    assert "curves.png needs matplotlib" in output and "already" not in output
    output = " ".join(succeed(*command, "--resume").split())
    assert "1 process; resumed at step 4" in output
    assert "Step 4 was the last one already" in output and "Best average perplexity" in output
    shutil.rmtree(tmp_path / "out" / "model-best")
    assert "model-best was removed" in " ".join(succeed(*command, "--resume").split())


def test_the_gpu_that_is_named_is_the_current_one(run, tmp_path, monkeypatch):
    """And no other GPU is made current."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    # It ends with the config, which is read after the device was chosen.
    fail("pretrain", tmp_path / "absent.cfg", tmp_path / "out", "--gpu-id", 1)
    assert {torch.device("cuda", gpu) if isinstance(gpu, int) else torch.device(gpu)
            for gpu in chosen} == {torch.device("cuda", 1)}  # fmt: skip


@pytest.mark.parametrize("n_process", [1, 2])
def test_prepare_with_held_out_text_of_ones_own(tmp_path, n_process):
    """All of it, and nothing else, is held out, and it decides no word of the vocabulary."""
    lines = sentences(60)
    parts = {
        "train.txt": lines[:40],
        "a.txt": lines[30:50],
        "dev/b.txt": ["unseen words .", *lines],
    }
    (tmp_path / "dev").mkdir()
    for name, part in parts.items():
        (tmp_path / name).write_text("\n".join(part) + "\n", encoding="utf8")
    command = ["prepare", tmp_path / "train.txt", tmp_path / "corpus", "--whitespace"]
    command += ["--sentence-per-line", "--dev", tmp_path / "a.txt", "--dev", tmp_path / "dev"]
    succeed(*command, "--n-process", n_process)
    corpus = open_corpus(tmp_path / "corpus")

    def texts(sentences):
        cuts = numpy.split(numpy.array(sentences.types)[sentences.ids], sentences.ends[:-1])
        return [" ".join(words) for words in cuts]

    assert texts(corpus.train) == parts["train.txt"]
    assert texts(corpus.dev) == parts["a.txt"] + parts["dev/b.txt"]
    expected = {word for line in parts["train.txt"] for word in line.split()}
    assert set(corpus.words) == {"<S>", "</S>", "<UNK>", *expected}
    assert corpus.manifest["dev_fraction"] is None
    message = fail(*command, "--force", "--dev", tmp_path / "train.txt")
    assert "train.txt is both a text and held out" in message


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["prepare", "{run}/text.txt", "{run}/out", "-F"], "was not written by this command alone"),
        (["prepare", "{run}/text.txt", "{run}/new", "--lang", "qqq"], "cannot tokenise 'qqq'"),
        (["prepare", "{run}/text.txt", "{run}/new", "--dev-fraction", "2"], "between 0 and 1"),
        (["pretrain", "{run}/absent.cfg", "{run}/new"], "absent.cfg is wrong"),
        (["pretrain", "{run}/config.cfg", "{run}/out"], "holds a run already"),
        (["pretrain", "{run}/config.cfg", "{run}/new", "--paths.corpus", "no"], "no corpus in no"),
        (
            ["pretrain", "{run}/config.cfg", "{run}/new", "--max_steps", "9"],
            "no option --max_steps",
        ),
    ],
)
def test_bad_input(run, arguments, message):
    assert message in fail(*(argument.format(run=run) for argument in arguments))
    assert not (run / "new").exists()


def test_a_vocabulary_of_all_words(run, tmp_path):
    """Nothing trains the vector of unknown words."""
    command = ("prepare", run / "text.txt", tmp_path / "corpus", "--whitespace", "--force")
    assert "No word is unknown" in " ".join(succeed(*command).split())
    assert "No word is unknown" not in succeed(*command, "--vocab-size", 15)


def test_a_vocabulary_of_another_text(run, tmp_path):
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nder\n")
    command = ("prepare", run / "text.txt", tmp_path / "corpus", "--whitespace")
    output = " ".join(succeed(*command, "--vocab", tmp_path / "vocab.txt").split())
    assert " 100% of the words are not in --vocab: is it of this language" in output
    vocabulary = run / "out" / "model-best.head" / "vocab.txt"
    assert "not in --vocab" not in succeed(*command, "--vocab", vocabulary, "--force")


def test_a_corpus_of_few_words(tmp_path):
    text, line = tmp_path / "text.txt", "the bank of the river and of the mill " * 100
    for n_lines, is_few in ((1100, True), (1200, False)):
        text.write_text("".join(f"{line}{i}\n" for i in range(n_lines)))
        options = ("--whitespace", "--sentence-per-line", "--force")
        output = " ".join(succeed("prepare", text, tmp_path / "corpus", *options).split())
        assert ("words are too few to learn much from" in output) == is_few


@pytest.mark.parametrize(
    "line, is_split",
    [
        ("我今天早上去北京的天安门广场看升旗，然后回家吃饭。", False),
        ("我 今天 早上 去 北京 的 天安门 广场 看 升旗 ， 然后 回家 吃饭 。", True),
        (" ".join(["the bank of the river"] * 20) + " 我今天早上去北京的天安门广场看升旗", True),
    ],
)
def test_text_that_the_tokenizer_does_not_split(line, is_split, tmp_path):
    lines = "".join(f"{line[:-1]}{chr(0x4E00 + i)}{line[-1]}\n" for i in range(400))
    (tmp_path / "text.txt").write_text(lines, encoding="utf8")
    command = ("prepare", tmp_path / "text.txt", tmp_path / "corpus")
    if is_split:
        succeed(*command)
        return
    with pytest.warns(UserWarning, match=r"\d words of a script without .* \d\d characters .*zh"):
        succeed(*command)
