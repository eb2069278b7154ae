"""What a run of days meets: signals, minutes, steps that go wrong, and other settings when it goes
on."""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import replace

import numpy
import pytest
import torch

from spacy_elmo.pretraining import checkpoint as checkpoints
from spacy_elmo.pretraining.batches import make_epoch
from spacy_elmo.pretraining.config import OptimizerConfig
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.updater import Updater

from .conftest import change, run_config, train, train_in_two_processes
from .test_trainer import equal, weights

ADAMW = OptimizerConfig("adamw", learn_rate=0.02, grad_clip=1.0)
NEVER = {"eval_frequency": 0, "eval_minutes": 0, "checkpoint_frequency": 0, "checkpoint_minutes": 0}


def steps_of_checkpoints(output):
    return [checkpoints.get_step(path) for path in checkpoints.all_checkpoints(output)]


def log(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


# Signals


@pytest.fixture
def raise_signal(monkeypatch):
    """As in a process that was not started to ignore any."""
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    yield lambda name: signal.raise_signal(getattr(signal, name))
    for number, handler in before.items():
        signal.signal(number, handler)


def at(steps, call):
    """RETURNS (Callable): Calls a function after some steps."""
    return lambda updater, step: call() if step in steps else None


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_save_first(tmp_path, corpus, raise_signal, name):
    if not hasattr(signal, name):
        pytest.skip(f"no {name} on this system")
    stop = at([7], lambda: raise_signal(name))
    trainer = train(run_config(corpus), tmp_path / "run", after_update=stop)
    assert trainer.interrupted and steps_of_checkpoints(tmp_path / "run")[-1] == 7


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs SIGHUP")
def test_a_run_under_nohup_goes_on(tmp_path, corpus, raise_signal):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = at([7], lambda: raise_signal("SIGHUP"))
    trainer = train(run_config(corpus), tmp_path / "run", after_update=stop)
    assert not trainer.interrupted and trainer.state.step == 20


# Minutes


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def tick(seconds):
        now[0] += seconds

    return tick


def test_evaluations_by_minutes(tmp_path, corpus, clock):
    """Of a training of 20 seconds per step, also over runs; those by steps come in between."""
    config = run_config(corpus, max_steps=10, **{**NEVER, "eval_minutes": 1})
    tick = at(range(100), lambda: clock(20))
    train(change(config, max_steps=4), tmp_path / "run", after_update=tick)
    train(config, tmp_path / "run", resume=True, after_update=tick)
    assert [record["step"] for record in log(tmp_path / "run")] == [3, 4, 7, 10]
    assert [record["seconds"] for record in log(tmp_path / "run")] == [60, 80, 140, 200]
    both = change(config, eval_frequency=4)
    train(both, tmp_path / "both", after_update=tick)
    assert [record["step"] for record in log(tmp_path / "both")] == [3, 4, 7, 8, 10]


def test_checkpoints_by_minutes(tmp_path, corpus, clock):
    config = run_config(corpus, max_steps=10, keep_checkpoints=99)
    config = change(config, **{**NEVER, "checkpoint_minutes": 1, "checkpoint_frequency": 4})
    train(config, tmp_path / "run", after_update=at(range(100), lambda: clock(20)))
    assert steps_of_checkpoints(tmp_path / "run") == [0, 3, 4, 7, 8, 10]


def test_lines_by_minutes(tmp_path, corpus, clock, capsys):
    """Every half minute from the start."""
    config = run_config(corpus, max_steps=10, **NEVER)
    train(config, tmp_path / "run", after_update=at(range(100), lambda: clock(20)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines] == [f"step {n} of 10" for n in (2, 4, 6, 8)]
    for line in lines:
        assert "loss" in line and "rate 0.02" in line
    epoch = make_epoch(corpus.train, config.pretraining, 0, 0)
    sizes = [epoch.size(number)[0] for number in range(4)]
    for line, part, left in zip(lines, (sizes[:2], sizes), ("0:02:40", "0:02:00")):
        speed = sum(part) / (20 * len(part))
        assert line.endswith(f", {speed:,.0f} words/s, {left} left")


def test_lines_of_an_evaluation(tmp_path, corpus, clock, capsys, monkeypatch):
    real = LanguageModel.log_likelihood

    def slow(*args):
        clock(20)
        return real(*args)

    monkeypatch.setattr(LanguageModel, "log_likelihood", slow)
    train(run_config(corpus, max_steps=1, batch_words=20), tmp_path / "run")
    lines = [line for line in capsys.readouterr().out.splitlines() if "evaluated" in line]
    n_words = len(corpus.dev.ids)
    done = [int(line.split()[3]) for line in lines]
    assert len(done) >= 2 and done == sorted({*done}) and done[-1] <= n_words
    assert lines == [f"step 1: evaluated {n} of {n_words} words" for n in done]


# What is logged


@pytest.mark.parametrize("grad_clip", [0.0, 0.7])
def test_means_since_the_last_evaluation(tmp_path, corpus, monkeypatch, grad_clip):
    """Of losses, norms of gradients and what was clipped, also over runs."""
    losses, norms, real = [], [], Updater.update

    def update(updater, *args):
        share, n_words = real(updater, *args)
        losses.append(float(share))
        gradients = [p.grad for p in updater.model.parameters() if p.grad is not None]
        norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in gradients)))
        return share, n_words

    monkeypatch.setattr(Updater, "update", update)
    optimizer = replace(ADAMW, grad_clip=grad_clip, warmup_steps=4)
    config = run_config(corpus, optimizer=optimizer, eval_frequency=8)
    for limit in (5, 11, 20):
        config = change(config, max_steps=limit)
        trainer = train(config, tmp_path / "run", resume=True)
    start = 0
    for record in log(tmp_path / "run"):
        step = record["step"]
        assert record["loss"] == pytest.approx(numpy.mean(losses[start:step]), rel=1e-6)
        assert record["learn_rate"] == pytest.approx(0.02 * min(step / 4, 1))
        assert record["skipped"] == 0
        if grad_clip:
            was_clipped = [norm == pytest.approx(0.7, rel=1e-4) for norm in norms[start:step]]
            assert record["clipped"] == pytest.approx(numpy.mean(was_clipped))
        else:
            assert record["gradient_norm"] == pytest.approx(numpy.mean(norms[start:step]))
            assert record["clipped"] == 0
        start = step
    assert [record["step"] for record in log(tmp_path / "run")] == [5, 8, 11, 16, 20]
    assert trainer.state.history == log(tmp_path / "run")


# Gradients that are not finite


def spoil_gradients(steps, value=torch.nan):
    """RETURNS (Callable): Puts a value into the gradients of these steps, and keeps what they
    leave in `states`."""
    states: dict = {}

    def after(updater, step):
        optimizer = updater.optimizer
        states[step] = {
            f"{name}/{key}": x.clone()
            for name, p in updater.model.named_parameters()
            for key, x in {"": p.detach(), **optimizer.state[p]}.items()
            # Adagrad counts its steps, and does not use the number.
            if key != "step" or not isinstance(optimizer, torch.optim.Adagrad)
        }
        if hooks:
            hooks.pop().remove()
        if step + 1 in steps:
            [parameter, *_] = updater.model.bilm.lstm.parameters()
            hooks.append(parameter.register_hook(lambda gradient: gradient * value))

    hooks: list = []
    after.states = states
    return after


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "name, carry_state", [("adagrad", False), ("adagrad", True), ("adamw", False), ("muon", True)]
)
def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path, corpus, name, carry_state, value):
    """No weight, and nothing that the optimizer knows."""
    config = run_config(
        corpus, optimizer=OptimizerConfig(name, learn_rate=0.02), carry_state=carry_state,
        unroll_steps=5,
    )  # fmt: skip
    spoil = spoil_gradients((6, 7, 13), value)
    trainer = train(config, tmp_path / "run", after_update=spoil)
    for step in range(2, 21):
        assert equal(spoil.states[step - 1], spoil.states[step]) == (step in (6, 7, 13)), step
    assert [record["skipped"] for record in log(tmp_path / "run")] == [2, 1]
    assert all(math.isfinite(x) for r in log(tmp_path / "run") for x in r.values())
    assert trainer.state.step == 20


def test_no_gradient_is_finite_any_more(tmp_path, corpus):
    """The run ends, and goes on from its last checkpoint with a lower rate."""
    config = run_config(corpus, max_steps=300, eval_frequency=300, checkpoint_frequency=40)
    with pytest.raises(ValueError) as error:
        train(config, tmp_path / "run", after_update=spoil_gradients(range(50, 1000)))
    message = str(error.value)
    assert "step 149: for 100 steps, the gradient was NaN or infinite" in message
    assert "step-00000120.pt is the last good checkpoint: continue from it with --resume" in message
    assert "again" not in message
    lower = change(config, max_steps=130, optimizer=replace(ADAMW, learn_rate=0.002))
    trainer = train(lower, tmp_path / "run", resume=True)
    assert trainer.start.step == 120 and trainer.state.history[-1]["skipped"] == 71


# Other settings on resuming


def test_a_cool_down_of_a_constant_rate_is_that_of_one_run(tmp_path, corpus):
    """Muon and wsd: bit for bit, from the step on where the rate begins to fall."""
    muon = OptimizerConfig("muon", learn_rate=0.01, warmup_steps=3, total_steps=0)
    wsd = replace(muon, schedule="wsd", decay_steps=8)
    whole = train(run_config(corpus, optimizer=wsd), tmp_path / "whole")
    train(run_config(corpus, optimizer=muon, max_steps=12), tmp_path / "run")
    cooled = train(run_config(corpus, optimizer=wsd), tmp_path / "run", resume=True)
    assert equal(weights(whole), weights(cooled))
    assert (
        cooled.updater.settings.optimizer.total_steps == 20
        and log(tmp_path / "run")[-1]["learn_rate"] == 0
    )


def test_settings_that_may_change(tmp_path, corpus, capsys):
    """They hold from the next step on, and the first lines name them."""
    settings = {"learn_rate": 0.005, "grad_clip": 0.3, "weight_decay": 0.5}
    config = run_config(corpus, optimizer=ADAMW, accumulate_gradient=1)

    def set_settings(updater, step):
        if step == 10:
            optimizer = replace(ADAMW, **settings)
            updater.settings = replace(updater.settings, optimizer=optimizer)
            updater.optimizer.param_groups[0]["weight_decay"] = 0.5

    whole = train(config, tmp_path / "whole", after_update=set_settings)
    train(change(config, max_steps=10), tmp_path / "run")
    other = change(config, optimizer=replace(ADAMW, **settings))
    capsys.readouterr()
    again = train(other, tmp_path / "run", resume=True)
    assert equal(weights(whole), weights(again))
    output = " ".join(capsys.readouterr().out.split())
    assert "resumed at step 10 with pretraining.max_steps: 10 -> 20; " in output
    assert "pretraining.optimizer.grad_clip: 1.0 -> 0.3; " in output
    assert "pretraining.optimizer.learn_rate: 0.02 -> 0.005" in output
    first, second = log(tmp_path / "run")
    changed = {"max_steps", *(f"optimizer.{name}" for name in settings)}
    assert set(second["changed"]) == {f"pretraining.{name}" for name in changed}
    assert "changed" not in first


# Several machines


@pytest.mark.slow
def test_machines_without_a_shared_disk(tmp_path, corpus, capfd):
    """Each has a folder of its own; only that of rank 0 has checkpoints."""
    config = run_config(corpus, max_steps=4)
    folders = tmp_path / "first", tmp_path / "second"
    train_in_two_processes(config, folders)
    assert steps_of_checkpoints(folders[0]) == [0, 4] and not steps_of_checkpoints(folders[1])
    # A fork server of earlier tests has their output.
    train_in_two_processes(config, folders, method="spawn", exitcode=1)
    assert "second/step-00000004.pt" in capfd.readouterr().err
