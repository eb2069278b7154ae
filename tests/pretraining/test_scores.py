"""Log probabilities of single tokens."""

import json

import numpy
import pytest
from safetensors.numpy import load_file

from spacy_elmo import ScoreTokens
from spacy_elmo.weights import DEFAULT, FOLDER, load_bilm

from ..cli.conftest import fail, succeed
from ..families import bilm_tf
from ..families.network import random_model
from ..reference import encode_token, float64_weights, run_lstm

SENTENCES = [["He", "sat", "by", "the", "Zzrq", "river", "."], [], ["seldom"], ["<UNK>", "of"]]


def reference_scores(bilm, head, tokens):
    """Each direction of one sentence by the formulas of Peters et al. (2018, section 3.1) and Grave
    et al. (2017, section 4), from the stored arrays: of the tokens, then of the boundary."""
    config, weights = bilm.config.lstm, float64_weights(bilm)
    stored = {k: v.astype(float) for k, v in load_file(head / "head.safetensors").items()}
    scales = {k.removesuffix(".scales"): v[0][:, None] for k, v in stored.items() if "scales" in k}
    layer = {k: v * scales.get(k, 1) for k, v in stored.items() if "scales" not in k}
    words = (head / "vocab.txt").read_text(encoding="utf8").splitlines()
    (cutoff,) = [x for x in json.loads((head / "head.json").read_text())["loss"]["cutoffs"]
                 if x < len(words)]  # fmt: skip
    results = []
    for name, step in (("forward", 1), ("backward", -1)):
        framed = ["<S>", *tokens, "</S>"][::step]
        x = numpy.stack([encode_token(bilm, weights, token) for token in framed[:-1]])
        for number in range(config.n_layers):
            y, _ = run_lstm(config, weights, f"lstm.{name}_layers.{number}.", x)
            x = x + y if number and config.use_skip_connections else y
        scores = []
        for h, token in zip(x, framed[1:]):
            word = words.index(token) if token in words else words.index("<UNK>")
            head_scores = log_softmax(layer["softmax.head.weight"] @ h + layer["softmax.head.bias"])
            if word < cutoff:
                scores.append(head_scores[word])
                continue
            narrow = layer["softmax.tail.0.0.weight"] @ h
            inside = log_softmax(layer["softmax.tail.0.1.weight"] @ narrow)
            scores.append(head_scores[cutoff] + inside[word - cutoff])
        results.append([*scores[:-1][::step], scores[-1]])
    return results


def log_softmax(x):
    return x - x.max() - numpy.log(numpy.exp(x - x.max()).sum())


def test_the_bundled_weights_give_what_the_formulas_give():
    bilm, head = load_bilm(DEFAULT), FOLDER / f"{DEFAULT}.head"
    words = (head / "vocab.txt").read_text(encoding="utf8").splitlines()
    assert words.index("seldom") > 4000  # It is in the second cluster.
    for tokens, scores in zip(SENTENCES, ScoreTokens()(SENTENCES), strict=True):
        forward, backward = reference_scores(bilm, head, tokens)
        assert [*scores.forward, scores.end] == pytest.approx(forward, abs=1e-4)
        assert [*scores.backward, scores.begin] == pytest.approx(backward, abs=1e-4)
        assert scores.unknown.tolist() == [x not in words[3:] for x in tokens]
        assert scores.tokens == tokens


@pytest.mark.parametrize("characters", [True, False])
def test_tensorflow_checkpoints(tmp_path, characters):
    architecture, weights, sentences = random_model(bilm_tf, 5, {"characters": characters})
    bilm_tf.write(tmp_path / "run", architecture, weights)
    expected = bilm_tf.reference_losses(architecture, weights, sentences)
    found = ScoreTokens(tmp_path / "run", unit="bits")(sentences)
    for (forward, backward), scores in zip(expected, found, strict=True):
        ours = [*scores.forward, scores.end], [scores.begin, *scores.backward]
        assert ours[0] == pytest.approx(-forward / numpy.log(2), abs=1e-4)
        assert ours[1] == pytest.approx(-backward / numpy.log(2), abs=1e-4)


def test_the_command_writes_what_the_class_returns(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "words.jsonl"
    text.write_text("He sat by the Zzrq river. The rest is silence.\n\nA longer line\n")
    command = ("perplexity", DEFAULT, text, "--json", "--words", out)
    scores = json.loads(succeed(*command))
    lines = [json.loads(line) for line in out.read_text(encoding="utf8").splitlines()]
    assert [x["tokens"][0] for x in lines] == ["He", "The", "A"]
    for line, ours in zip(lines, ScoreTokens()([x["tokens"] for x in lines]), strict=True):
        for name, value in ours._asdict().items():
            assert line[name] == (value if name == "tokens" else pytest.approx(value, abs=1e-5))
    n = sum(len(x["tokens"]) + 1 for x in lines)
    for name, boundary in (("forward", "end"), ("backward", "begin")):
        total = sum(sum(x[name]) + x[boundary] for x in lines)
        assert numpy.exp(-total / n) == pytest.approx(scores[name], rel=1e-6)
    n_unknown = sum(sum(x["unknown"]) for x in lines)
    assert scores["unknown"] == pytest.approx(n_unknown / (n - 3))
    assert f"{out} exists already" in " ".join(fail(*command).split())
    same = ("--out", out, "--force")
    assert "the same file" in fail(*command, *same)
    before = text.read_text()
    assert "exists already" in fail("perplexity", DEFAULT, text, "--out", text)
    assert text.read_text() == before
    succeed(*command, "--force")
    assert "leave out --carry-state" in fail(*command, "--force", "--carry-state")
    text.write_text("\n \n")
    assert "no sentence to evaluate on" in fail(*command, "--force")


@pytest.mark.parametrize(
    "sentences, problem",
    [
        ("A bank", "'A bank' is a str"),
        (["A bank", "The bank"], "sentence 0: 'A bank' is a str.*list of lists of tokens"),
        ([["A", 1]], "sentence 0 has a token that is no string: 1"),
    ],
)
def test_what_is_no_list_of_lists(sentences, problem):
    with pytest.raises(ValueError, match=problem):
        ScoreTokens()(sentences)


def test_weights_without_an_output_layer(weights_folder):
    with pytest.raises(ValueError, match=r"no output layer in .*en_elmo_sm.* have it"):
        ScoreTokens(weights_folder)
    with pytest.raises(ValueError, match="unknown unit 'bit': choose one of nats, bits"):
        ScoreTokens(unit="bit")


def test_its_repr_says_what_it_is():
    expected = "parameters, 3 layers of width 512, cpu, float32, 20,000 words, bits)"
    shown = repr(ScoreTokens(unit="bits"))
    assert shown.startswith("ScoreTokens('en_elmo_sm': ") and shown.endswith(expected)
