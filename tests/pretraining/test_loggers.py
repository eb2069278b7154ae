"""Loggers of a training."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from spacy.util import registry

from spacy_elmo.pretraining.config import read_config
from spacy_elmo.pretraining.loggers import resolve_logger

from .conftest import run_config, train


def run(tmp_path, corpus, logger):
    return train(run_config(corpus, logger=logger), tmp_path / "run")


@registry.loggers("test.Recorder.v1")
def recorder(record: Callable):
    def setup(nlp, stdout, stderr):
        record(nlp.config["pretraining"]["batch_words"])
        return record, lambda: record("end")

    return setup


def test_what_loggers_get(tmp_path, corpus):
    records = []
    trainer = run(tmp_path, corpus, {"@loggers": "test.Recorder.v1", "record": records.append})
    first, *steps, last = records
    assert first == 100 and last == "end" and len(steps) == 20
    assert [number for number, info in enumerate(steps, 1) if info] == [10, 20]
    info, history = steps[-1], trainer.state.history[-1]
    names = ("forward", "backward", "average", "unigram", "unknown")
    names += ("learn_rate", "gradient_norm", "clipped", "skipped")
    assert info["other_scores"] == {name: history[name] for name in names}
    assert info["score"] == history["average"] and info["losses"] == {"elmo": history["loss"]}
    assert info["words"] == trainer.state.n_words and info["words_per_second"] > 0
    assert info["seconds_left"] == 0
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20]


def test_a_logger_that_fails_costs_no_step(tmp_path, corpus):
    """Such as one that needs a network: the checkpoint and the evaluation are written before."""

    def fail(info):
        raise OSError("no network")

    whole = train(run_config(corpus), tmp_path / "whole")
    with pytest.raises(OSError, match="no network"):
        train(run_config(corpus), tmp_path / "run", on_evaluation=fail)
    again = train(run_config(corpus), tmp_path / "run", resume=True)
    assert again.start.step == 10
    assert [record["step"] for record in again.state.history] == [10, 20]
    for name, value in whole.model.named_parameters():
        assert value.equal(again.model.get_parameter(name))


def test_the_console(tmp_path, corpus, capsys):
    run(tmp_path, corpus, {"@loggers": "spacy-elmo.PretrainConsoleLogger.v1"})
    _description, header, _rule, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["E", "#", "Loss", "Forward", "Backward", "Average", "Words/s", "ETA"]
    assert [row.split()[1] for row in rows] == ["10", "20"]
    assert rows[-1].endswith(" 0:00:00") and len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("name", ["spacy.ConsoleLogger.v3", "spacy-elmo.PretrainConsoleLogger.v1"])
def test_a_chain_of_loggers(tmp_path, corpus, name):
    """Through spacy-loggers, whose others take the same arguments; also with spaCy's console."""
    path = tmp_path / "c.cfg"
    path.write_text(
        f"""
        [pretraining]
        [pretraining.logger]
        @loggers = "spacy.ChainLogger.v1"
        [pretraining.logger.logger1]
        @loggers = "{name}"
        [pretraining.logger.logger2]
        @loggers = "spacy.LookupLogger.v1"
        patterns = ["other_scores"]
        """
    )
    run(tmp_path, corpus, read_config(path).pretraining.logger)


def test_a_logger_that_is_not_there():
    with pytest.raises(ValueError, match=r"\[pretraining.logger\] is wrong"):
        resolve_logger({"@loggers": "spacy.NoLogger.v1"})
