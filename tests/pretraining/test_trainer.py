"""Training: it learns, does not see what it predicts, and continues after a kill."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import spacy
import torch

import spacy_elmo
from spacy_elmo.formats import hdf5
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining import checkpoint as checkpoints
from spacy_elmo.pretraining.batches import ContiguousBatches, make_epoch, pack
from spacy_elmo.pretraining.config import LossConfig, OptimizerConfig, read_config
from spacy_elmo.pretraining.corpus import Sentences, open_corpus, prepare
from spacy_elmo.pretraining.head import head_folder, load_head, load_language_model
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.optimizer import set_learn_rate
from spacy_elmo.pretraining.perplexity import perplexity
from spacy_elmo.pretraining.run import pretrain
from spacy_elmo.pretraining.updater import Updater

from ..conftest import max_difference
from .conftest import (
    CHARACTERS,
    SENTENCE_PER_LINE,
    WORDS,
    change,
    new_model,
    run_config,
    sentences,
    start_from,
    train,
    train_in_two_processes,
)

CONFIGS = Path(spacy_elmo.__file__).parent / "configs" / "pretraining"

both_inputs = pytest.mark.parametrize("bilm", [CHARACTERS, WORDS], ids=["characters", "words"])
both_ways = pytest.mark.parametrize("carry_state", [False, True], ids=["sentences", "carried"])
LOSSES = {
    "sampled": LossConfig("sampled", n_samples=8),
    "full": LossConfig("full"),
    "adaptive": LossConfig("adaptive", cutoffs=(6, 12)),
}


def weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def evaluate(model, corpus, **settings):
    unigram = corpus.unigram_log_probabilities()
    return perplexity(model, corpus.dev, batch_words=100, unigram=unigram, **settings)


def equal(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def final_weights(output):
    return checkpoints.load(checkpoints.all_checkpoints(output)[-1])["model"]


@pytest.mark.parametrize(
    "bilm, loss",
    [(CHARACTERS, "sampled"), (WORDS, "full"), (CHARACTERS, "adaptive")],
    ids=["sampled", "full", "adaptive"],
)
def test_it_learns(tmp_path, corpus, bilm, loss):
    config = run_config(corpus, bilm, max_steps=120, eval_frequency=60, loss=LOSSES[loss])
    start = evaluate(new_model(config, corpus), corpus)
    end = evaluate(train(config, tmp_path / "run").model, corpus)
    # It predicts better than the word frequencies, in both directions.
    assert max(end["forward"], end["backward"]) < 0.6 * end["unigram"] < 0.6 * start["average"]
    assert end["unigram"] == pytest.approx(start["unigram"])


@both_inputs
def test_no_prediction_sees_its_word(corpus, bilm):
    """Another token k changes no forward prediction before k + 1, and no backward prediction after
    k - 1; and it changes the others."""
    model = new_model(run_config(corpus, bilm), corpus).eval()
    tokens = ["Anna", "likes", "the", "old", "house", "and", "Otto"]
    for k in range(len(tokens)):
        tops = []
        for word in (tokens[k], "visits"):
            changed = [*tokens[:k], word, *tokens[k + 1 :]]
            text = Sentences.from_tokens([changed], corpus.words)
            with torch.no_grad():
                tops.append(model.top(pack(text, numpy.array([0]))))
        same = (tops[0] - tops[1]).abs().amax(-1) < 1e-6
        # Row i of forward has read <S> and i words; row i of backward </S> and the last i words.
        n = len(tokens)
        assert same[0].tolist() == [i <= k for i in range(n + 1)]
        assert same[1].tolist() == [i <= n - 1 - k for i in range(n + 1)]


def test_an_evaluation_reads_a_random_sample(corpus):
    """Not the beginning of the development text, which is in the order of its files."""
    model, read = new_model(run_config(corpus), corpus).eval(), []
    easy, hard = [["Anna", "."]] * 500, [["Otto"] * 4] * 500
    for texts in (easy + hard, hard + easy):
        text = Sentences.from_tokens(texts, corpus.words)
        first, again = (perplexity(model, text, max_words=300) for _ in range(2))
        assert first == again and 300 <= first["n_words"] < 304
        read.append(first["n_sentences"])
    # 150 sentences are all easy, and 75 all hard.
    assert all(85 < count < 140 for count in read)


def test_perplexity_with_carried_states(corpus):
    """That of all sentences in a random order, one after the other, as one sequence."""
    model = new_model(run_config(corpus), corpus).eval()
    order = numpy.random.default_rng(0).permutation(len(corpus.dev))
    whole = ContiguousBatches(corpus.dev, order, 1, 10**6).read(0)
    expected = numpy.exp(-model.log_likelihood(whole).double().mean(1).numpy())
    for batch_words in (70, 4096):
        scores = perplexity(model, corpus.dev, batch_words=batch_words, carry_state=True)
        assert [scores["forward"], scores["backward"]] == pytest.approx(expected, rel=1e-5)
        assert scores["n_words"] == len(corpus.dev.ids)
    stateless = perplexity(model, corpus.dev)
    assert abs(stateless["average"] / scores["average"] - 1) > 1e-4


@both_inputs
@both_ways
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_mixed_precision(corpus, bilm, carry_state, loss, with_bfloat16):
    """Products in bfloat16, everything else in float32: the same loss and gradients, nearly."""
    results = []
    for mixed_precision in (False, True):
        config = run_config(
            corpus,
            bilm,
            loss=loss,
            dropout=0.0,
            mixed_precision=mixed_precision,
            carry_state=carry_state,
        )
        model = new_model(config, corpus)
        updater = Updater(model, config.pretraining, 0)
        epoch = make_epoch(corpus.train, config.pretraining, 0, 0)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed_precision):
            assert model.top(epoch.read(0)).dtype == torch.float32
        states = model.new_states(epoch.n_rows) if carry_state else None
        numbers = [number % len(epoch) for number in range(3)]
        losses = [updater.update(epoch, [n], i, states)[0] for i, n in enumerate(numbers)]
        assert losses[0].dtype == torch.float32
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((torch.stack(losses), gradient))
    (exact, exact_gradient), (rounded, gradient) = results
    assert 0 < max_difference(exact, rounded) < 0.03
    assert torch.cosine_similarity(exact_gradient, gradient, dim=0) > 0.99


# Resuming


@pytest.mark.parametrize("carry_state, name", [(False, "adamw"), (True, "adamw"), (False, "muon")])
def test_resuming_equals_one_run(tmp_path, corpus, carry_state, name):
    config = run_config(
        corpus,
        optimizer=OptimizerConfig(name, learn_rate=0.02, schedule="wsd"),
        max_epochs=2,
        max_steps=0,
        accumulate_gradient=2,
        carry_state=carry_state,
        unroll_steps=5,
    )
    whole = train(config, tmp_path / "whole")
    assert whole.state.epoch == 1 and whole.state.step > 20
    for limit in (3, 5, 8, 15, 0):
        resumed = train(change(config, max_steps=limit), tmp_path / "parts", resume=True)
    assert resumed.state.step == whole.state.step
    assert equal(weights(whole), weights(resumed))


CONFIG = """
[paths]
corpus = "{corpus}"
[bilm]
[bilm.lstm]
dim = 16
projection_dim = 8
n_layers = 2
[bilm.char_cnn]
filters = [[1, 4], [2, 6]]
[bilm.char_cnn.embedding]
dim = 4
[pretraining]
batch_words = 60
max_steps = {max_steps}
max_epochs = 0
eval_frequency = 10
eval_words = 100
checkpoint_frequency = 2
[pretraining.loss]
n_samples = 8
[pretraining.optimizer]
learn_rate = 0.05
"""


# Adam, Muon, or a small accumulator, make large steps of gradients that are nothing but rounding,
# unless their rate is low.
ADAGRAD = OptimizerConfig("adagrad", initial_accumulator=1.0)


@pytest.mark.parametrize(
    "loss, carry_state, optimizer",
    [
        pytest.param("sampled", False, ADAGRAD, marks=pytest.mark.slow),
        pytest.param("sampled", True, ADAGRAD, marks=pytest.mark.slow),
        pytest.param("adaptive", False, ADAGRAD, marks=pytest.mark.slow),
        ("adaptive", False, OptimizerConfig("muon", learn_rate=1e-7, muon_rate=1e-4)),
    ],
    ids=["sampled", "carried", "adaptive", "muon"],
)
def test_two_processes_equal_one(tmp_path, corpus, loss, carry_state, optimizer):
    """With the same global batches; gloo on this machine. Of an adaptive softmax, some batches have
    words of every cluster in one process only. The first process, which is not faster in bfloat16,
    decides for both."""
    config = run_config(
        corpus,
        loss=LOSSES[loss],
        carry_state=carry_state,
        unroll_steps=5,
        max_steps=30,
        dropout=0.0,
        batch_words=60,
        accumulate_gradient=2,
        optimizer=optimizer,
    )
    one = train(config, tmp_path / "one")
    train_in_two_processes(change(config, mixed_precision=True), tmp_path / "two")
    tensors = final_weights(tmp_path / "two")
    for name, value in weights(one).items():
        assert max_difference(tensors[name], value) < 1e-6, name
    [*_, last] = checkpoints.all_checkpoints(tmp_path / "two")
    history = checkpoints.load(last)["progress"]["history"]
    assert [record["step"] for record in history] == [10, 20, 30]
    for first, second in zip(one.state.history, history):
        for name in ("forward", "backward", "unigram", "n_words", "unknown"):
            assert first[name] == pytest.approx(second[name], rel=1e-5), name


def test_damaged_checkpoints(tmp_path, corpus):
    """The one before is used, with a warning, and is not removed for a damaged one."""
    config = run_config(corpus, max_steps=20)
    whole = train(config, tmp_path / "run")
    before, last = checkpoints.all_checkpoints(tmp_path / "run")
    contents = bytearray(last.read_bytes())
    contents[len(contents) // 2] ^= 1
    for damaged in (contents, contents[:-10]):
        last.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"step-00000020.pt cannot be used: .*the one before"):
            assert checkpoints.find_last(tmp_path / "run") == before
    with pytest.warns(UserWarning):
        resumed = train(
            change(config, keep_checkpoints=1, max_steps=16), tmp_path / "run", resume=True
        )
    assert [path.name for path in checkpoints.all_checkpoints(tmp_path / "run")] == [
        "step-00000016.pt"
    ]
    resumed = train(config, tmp_path / "run", resume=True)
    assert resumed.start.step == 16
    assert equal(weights(whole), weights(resumed))
    for path in checkpoints.all_checkpoints(tmp_path / "run"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"no checkpoint in .* can be"):
        train(config, tmp_path / "run", resume=True)


def stop_at(monkeypatch, batch):
    """Let a signal come while an evaluation reads this batch; the numbers count on."""
    real, n_batches = LanguageModel.log_likelihood, itertools.count(1)

    def log_likelihood(*args):
        if next(n_batches) == batch:
            signal.raise_signal(signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(LanguageModel, "log_likelihood", log_likelihood)
    return n_batches


def untimed(history):
    return [{**record, "seconds": None} for record in history]


def test_a_signal_during_an_evaluation(tmp_path, corpus, monkeypatch):
    """The checkpoint is there already; the evaluation ends at once, and no step follows. The run
    that continues makes it."""
    config = run_config(corpus)
    whole = train(config, tmp_path / "whole", export=True)
    with monkeypatch.context() as patch:
        n_batches = stop_at(patch, 2)
        trainer = train(config, tmp_path / "run", export=True)
    assert trainer.interrupted and trainer.state.step == 10 and trainer.state.history == []
    assert next(n_batches) == 3  # It read two batches.
    assert checkpoints.load(tmp_path / "run" / "step-00000010.pt")["progress"]["step"] == 10
    again = train(config, tmp_path / "run", resume=True, export=True)
    assert not again.interrupted
    assert untimed(again.state.history) == untimed(whole.state.history)
    assert equal(weights(whole), weights(again))
    for name in ("model-best", "model-last"):
        first, second = (spacy.load(tmp_path / x / name) for x in ("whole", "run"))
        layers = [nlp("Anna likes the river")._.elmo_layers for nlp in (first, second)]
        assert max_difference(*layers) == 0


@pytest.mark.slow
def test_two_processes_stop_during_an_evaluation(tmp_path, corpus):
    """A signal to one of them stops both, and the run continues as if nothing had happened."""
    config = run_config(corpus, checkpoint_frequency=10)
    train_in_two_processes(config, tmp_path / "whole")
    train_in_two_processes(config, tmp_path / "two", stops=1)
    [*_, last] = checkpoints.all_checkpoints(tmp_path / "two")
    progress = checkpoints.load(last)["progress"]
    assert progress["step"] == 10 and progress["history"] == []
    train_in_two_processes(config, tmp_path / "two")
    assert equal(*(final_weights(tmp_path / name) for name in ("whole", "two")))
    states = [checkpoints.load(checkpoints.find_last(tmp_path / x)) for x in ("whole", "two")]
    histories = [untimed(state["progress"]["history"]) for state in states]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("limit", ["max_steps", "max_minutes", "max_epochs"])
def test_resuming_at_a_limit_that_was_never_evaluated(tmp_path, corpus, limit):
    """Such as after a kill: there is a model-best then, too."""
    config = run_config(corpus, max_steps=0, eval_frequency=100, batch_words=400)

    def kill(updater, step):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", after_update=kill)
    value = {"max_steps": 10, "max_minutes": 1e-9, "max_epochs": 1}[limit]
    for _ in range(2):  # Once is enough.
        again = train(change(config, **{limit: value}), tmp_path / "run", resume=True, export=True)
        state = again.state
        assert [record["step"] for record in state.history] == [10] and state.best_step == 10
    for name in ("model-best", "model-last"):
        assert load_head(head_folder(tmp_path / "run" / name)).words == corpus.words


def test_the_log_is_that_of_the_checkpoint(tmp_path, corpus):
    """A kill may come between the two."""
    config = run_config(corpus, max_steps=10)
    history = train(config, tmp_path / "run").state.history
    log = tmp_path / "run" / "log.jsonl"
    before = log.read_text()
    assert [json.loads(line) for line in before.splitlines()] == history
    for text in ("", before + before, '{"step": 1'):
        log.write_text(text)
        train(config, tmp_path / "run", resume=True)
        assert log.read_text() == before


def test_an_infinite_perplexity(tmp_path, corpus):
    """It is reported, and what is written is JSON."""

    def diverge(updater, step):
        if step in (7, 17):
            # Weights that are finite, and predict with certainty what does not come.
            with torch.no_grad():
                for parameter in updater.model.output.parameters():
                    parameter.mul_(1e6)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    state = train(run_config(corpus), tmp_path / "run", export=True, after_update=diverge).state
    assert [record["average"] for record in state.history] == [None, None]
    assert state.best == float("inf") and state.best_step == 10
    for path in (tmp_path / "run").glob("*/meta.json"):
        meta = json.loads(path.read_text(), parse_constant=refuse)
        assert meta["performance"]["perplexity_average"] is None
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    again = train(run_config(corpus, max_steps=21), tmp_path / "run", resume=True)
    assert again.start.best == float("inf")


def test_patience_counts_no_evaluation_at_a_limit(tmp_path, corpus):
    settings = {"eval_frequency": 4, "patience": 2, "optimizer": OptimizerConfig(learn_rate=50.0)}
    ended = train(run_config(corpus, max_steps=0, **settings), tmp_path / "whole").state.step
    assert ended > 8
    for limit in (ended - 3, ended - 2, ended - 1, 0):
        config = run_config(corpus, max_steps=limit, **settings)
        state = train(config, tmp_path / "run", resume=True).state
    assert state.step == ended


# Results


@both_inputs
def test_the_result_is_a_pipeline(tmp_path, corpus, bilm):
    trainer = train(run_config(corpus, bilm), tmp_path / "run", export=True)
    for name in ("best", "last"):
        folder = tmp_path / "run" / f"model-{name}"
        nlp = spacy.load(folder)
        doc = nlp("Anna likes the river")
        assert doc._.elmo_layers.shape == (3, 4, 32)
        assert nlp.meta["performance"]["perplexity_average"] > 1
        [expected] = current_session(trainer.model.bilm).embed([["Anna", "likes", "the", "river"]])
        if name == "last":
            assert max_difference(doc._.elmo_layers, expected) < 1e-6
        model, head = load_language_model(nlp.get_pipe("elmo").bilm, folder)
        assert head.words == corpus.words
        assert head.tokenization.whitespace is True
        scores = perplexity(model, corpus.dev)
        expected = trainer.state.history[-1]["average"]
        if name == "last" or trainer.state.best_step == 20:
            assert scores["average"] == pytest.approx(expected, rel=1e-5)


def test_an_adaptive_output_layer_of_common_words(tmp_path, corpus):
    """Words keep their weights where they are in the head, or in the same cluster, again; clusters
    keep theirs in the head, and their projections. Other weights are new."""
    config = run_config(corpus, loss=LOSSES["adaptive"])
    first = train(config, tmp_path / "first", export=True).model.output.softmax
    lines = [
        line.replace("river", "lake").replace("Otto", "Oma") for line in sentences(900, seed=3)
    ]
    prepare(lines, tmp_path / "corpus", SENTENCE_PER_LINE, vocab_size=18, dev_fraction=0.1)
    other = open_corpus(tmp_path / "corpus")
    loss = LossConfig("adaptive", cutoffs=(7, 13))
    start = start_from(run_config(other, None, loss=loss), tmp_path / "first" / "model-last")
    second, origin = build_model(start, other)
    softmax = second.output.softmax

    def places(words, cutoffs):
        """The layer of each word, by definition."""
        return {w: (sum(i >= c for c in cutoffs), i) for i, w in enumerate(words)}

    old, new = places(corpus.words, (6, 12)), places(other.words, (7, 13))
    kept = {word for word, (layer, _) in new.items() if word in old and old[word][0] == layer}
    moved = {word for word in new if word in old} - kept
    assert moved and kept and len(new) > len(old.keys() & new.keys())
    assert f"output layer for {len(kept)} of {len(new)} words" in origin
    for word, (layer, number) in new.items():
        ours, theirs = ([s.head, *(up for _, up in s.tail)][layer] for s in (softmax, first))
        row = number - (0, 7, 13)[layer]
        if word in kept:
            source = old[word][1] - (0, 6, 12)[layer]
            assert torch.equal(ours.weight[row], theirs.weight[source]), word
            assert layer or ours.bias[row] == theirs.bias[source]
        else:
            assert not (ours.weight[row] == theirs.weight).all(1).any(), word
    assert torch.equal(softmax.head.weight[-2:], first.head.weight[-2:])
    assert torch.equal(softmax.head.bias[-2:], first.head.bias[-2:])
    for (down, _), (their_down, _) in zip(softmax.tail, first.tail):
        assert torch.equal(down.weight, their_down.weight)
    # With another number of clusters, too.
    build_model(change(start, loss=LossConfig("adaptive", cutoffs=(7,))), other)


def test_schedules():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)

    def rates(schedule, steps):
        config = OptimizerConfig(
            learn_rate=2.0, schedule=schedule, warmup_steps=10, total_steps=110
        )
        rates_of_steps = []
        for step in steps:
            set_learn_rate(optimizer, config, step)
            rates_of_steps.append(optimizer.param_groups[0]["lr"])
        return rates_of_steps

    for schedule in ("constant", "cosine", "wsd"):
        assert rates(schedule, [0, 4, 9]) == pytest.approx([0.2, 1.0, 2.0])
    assert rates("constant", [500]) == [2.0]
    assert rates("cosine", [59, 109, 500]) == pytest.approx([1.01, 0.02, 0.02])
    # Constant, and then 1 - sqrt(x) over the last fifth: 22 steps, a quarter of which is 5.5.
    assert rates("wsd", [50, 87, 98, 109, 500]) == pytest.approx([2, 2, 2 - 2**0.5, 0, 0])


def test_a_schedule_ends_with_the_training(tmp_path, corpus):
    optimizer = OptimizerConfig("adamw", learn_rate=1.0, schedule="cosine", total_steps=0)
    config = run_config(corpus, max_steps=0, max_epochs=2, optimizer=optimizer)
    trainer = train(config, tmp_path / "run")
    steps = trainer.state.step

    def rate(trainer):
        return trainer.updater.optimizer.param_groups[0]["lr"]

    assert rate(trainer) == pytest.approx(0.01, abs=0.02)
    other = train(change(config, max_steps=steps // 2), tmp_path / "other")
    assert rate(other) == pytest.approx(0.01)
    with pytest.raises(ValueError, match=r"needs max_steps or max_epochs"):
        train(change(config, max_epochs=0, max_minutes=1.0), tmp_path / "endless")


# Bad input


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_run_without_its_checkpoints_is_kept(tmp_path, corpus, resume):
    """A user may delete them to save space."""
    config, run = run_config(corpus, max_steps=1), tmp_path / "run"
    train(config, run, export=True)
    for path in checkpoints.all_checkpoints(run):
        path.unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds a run already: give another folder"):
        train(config, run, resume=resume)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_two_runs_in_one_folder(tmp_path, corpus):
    """The second one is refused, resumed or not, before anything else is checked."""
    config = run_config(corpus)

    def start_another(updater, step):
        for resume in (False, True):
            with pytest.raises(ValueError, match="another run is using"):
                pretrain(change(config, dropout=0.2), tmp_path / "run", resume=resume)

    train(config, tmp_path / "run", after_update=start_another)


def test_resuming_with_another_config(tmp_path, corpus):
    train(run_config(corpus, max_steps=1), tmp_path / "run")
    other = run_config(corpus, dropout=0.3, loss=LossConfig("full"), max_steps=7)
    with pytest.raises(ValueError, match=r"dropout: 0\.1 -> 0\.3; .*loss\.name: sampled -> full"):
        train(other, tmp_path / "run", resume=True)
    prepare(sentences(seed=5), tmp_path / "c", SENTENCE_PER_LINE, dev_fraction=0.1)
    other = run_config(open_corpus(tmp_path / "c"), max_steps=1)
    with pytest.raises(ValueError, match="is not the corpus the run began with"):
        train(other, tmp_path / "run", resume=True)
    # The same text, with more words to predict.
    corpora = [
        prepare(sentences(), tmp_path / str(size), SENTENCE_PER_LINE, vocab_size=size)
        and run_config(open_corpus(tmp_path / str(size)), max_steps=1)
        for size in (6, 8)
    ]
    train(corpora[0], tmp_path / "words")
    with pytest.raises(ValueError, match="is not the corpus the run began with"):
        train(corpora[1], tmp_path / "words", resume=True)


@both_inputs
def test_resuming_without_the_model_to_begin_with(tmp_path, corpus, bilm):
    """All that came from it is in the checkpoint."""
    model, _ = build_model(run_config(corpus, bilm), corpus)
    hdf5.write(model.bilm, tmp_path / "model")
    config = start_from(run_config(corpus, None), tmp_path / "model")
    whole = train(config, tmp_path / "whole")
    train(change(config, max_steps=7), tmp_path / "run")
    shutil.rmtree(tmp_path / "model")
    no_path = replace(config, paths=replace(config.paths, init_from=None))
    again = train(no_path, tmp_path / "run", resume=True, export=True)
    assert equal(weights(whole), weights(again))
    spacy.load(tmp_path / "run" / "model-last")


def test_weights_that_are_not_finite(tmp_path, corpus):
    """The checkpoint before it is kept, and holds good weights."""

    def spoil(updater, step):
        if step == 12:
            updater.model.output.bias.data[0] = float("nan")

    message = r"step 15: weights are NaN .* step-00000010.pt is the last good .* with --resume"
    with pytest.raises(ValueError, match=message):
        train(run_config(corpus), tmp_path / "run", after_update=spoil)
    assert checkpoints.load(checkpoints.find_last(tmp_path / "run"))["progress"]["step"] == 10
    assert all(torch.isfinite(value).all() for value in final_weights(tmp_path / "run").values())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("size", ["small", "medium", "original"])
def test_ready_made_configs_take_short_trainings_on_small_corpora(
    size, optimizer, corpus, tmp_path
):
    """Shorter than their warm-up, and with fewer words than the first cutoff."""
    overrides = {
        "paths.corpus": str(corpus.folder),
        "bilm.lstm.dim": 8,
        "bilm.lstm.projection_dim": 4,
        "bilm.char_cnn.filters": [[1, 4], [2, 4]],
        "pretraining.max_steps": 2,
        "pretraining.optimizer.name": optimizer,
    }
    config = read_config(CONFIGS / f"{size}.cfg", overrides)
    assert train(config, tmp_path / "run").state.step == 2


def test_all_errors_of_a_config_are_reported_at_once(tmp_path):
    (tmp_path / "c.cfg").write_text(
        "[pretraining]\nbatch_wods = 5\ndropout = 2\n"
        '[pretraining.optimizer]\nname = "sgd"\n[paths]\ncorpus = 5\n[system]\nseed = "0"\n'
        "[bilm]\ndropout = 0.1\n[bilm.lstm]\ndim = 4\nprojection_dim = 5\nn_layer = 2\n"
        "[bilm.char_cnn]\nfilters = [[60, 4]]\n"
        "[bilm.char_cnn.embedding]\ndim = 0\nwidth = 4\n"
    )
    with pytest.raises(ValueError) as error:
        read_config(tmp_path / "c.cfg")
    assert sorted(str(error.value).splitlines()) == [
        "bilm.char_cnn.embedding.dim must be 1 or more, found 0",
        "no setting 'bilm.char_cnn.embedding.width': did you mean 'embedding.dim'?",
        "no setting 'bilm.dropout', only lstm, char_cnn, n_tokens_vocab",
        "no setting 'bilm.lstm.n_layer': did you mean 'n_layers'?",
        "no setting 'pretraining.batch_wods': did you mean 'batch_words'?",
        "paths.corpus must be a path, found 5",
        "pretraining.dropout must be less than 1, found 2",
        "pretraining.optimizer.name must be 'adagrad', 'adamw' or 'muon', found 'sgd'",
        "system.seed must be a whole number, found '0'",
    ]
