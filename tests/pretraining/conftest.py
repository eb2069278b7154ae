"""A small corpus, and configs small enough to train in a second."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from spacy.util import registry

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.pretraining.config import (
    LossConfig,
    OptimizerConfig,
    PathsConfig,
    PretrainingConfig,
    RunConfig,
)
from spacy_elmo.pretraining.corpus import Corpus, open_corpus, prepare
from spacy_elmo.pretraining.init_model import build_model
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.run import pretrain
from spacy_elmo.pretraining.tokenize import TokenizationConfig
from spacy_elmo.pretraining.trainer import Trainer
from spacy_elmo.pretraining.updater import Updater

from .worker import work

SENTENCE_PER_LINE = TokenizationConfig(whitespace=True, one_per_line=True)


def sentences(count: int = 400, seed: int = 0) -> list[str]:
    """Sentences with some order in them, so that there is something to learn."""
    choose = random.Random(seed).choice
    people, verbs = ["Anna", "Otto", "Zoë", "李"], ["sees", "hears", "likes", "visits"]
    things = ["the river", "a bank", "the old house", "money", "everything"]
    lines = []
    for number in range(count):
        words = f"{choose(people)} {choose(verbs)} {choose(things)}"
        if number % 3 == 0:
            words += f" and {choose(people)} {choose(verbs)} {choose(things)} too"
        lines.append(f"{words} .")
    return lines


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("pretraining") / "corpus"
    prepare(sentences(), folder, SENTENCE_PER_LINE, vocab_size=15, dev_fraction=0.1)
    return open_corpus(folder)


CHARACTERS = BiLMConfig(
    LSTMConfig(dim=20, projection_dim=16, cell_clip=3.0, proj_clip=3.0),
    CharCNNConfig(filters=((1, 4), (2, 6), (3, 8)), n_highway=1, embedding_dim=4),
)
WORDS = BiLMConfig(LSTMConfig(dim=20, projection_dim=16), n_tokens_vocab=3)


def run_config(corpus: Corpus, bilm: BiLMConfig | None = CHARACTERS, **settings) -> RunConfig:
    """A short training; `settings` are those of `PretrainingConfig`."""
    optimizer = OptimizerConfig("adamw", learn_rate=0.02, grad_clip=1.0)
    pretraining = {
        "batch_words": 100,
        "max_steps": 20,
        "eval_frequency": 10,
        "checkpoint_frequency": 5,
        "eval_words": 0,
        "max_epochs": 0,
        "loss": LossConfig("sampled", n_samples=8),
        "optimizer": optimizer,
        **settings,
    }
    paths = PathsConfig(corpus.folder)
    return RunConfig(paths, bilm=bilm, pretraining=PretrainingConfig(**pretraining))


def change(config: RunConfig, **settings) -> RunConfig:
    """The same training with other settings of [pretraining]."""
    return replace(config, pretraining=replace(config.pretraining, **settings))


def start_from(config: RunConfig, model: Path) -> RunConfig:
    """The same training of a pretrained model."""
    return replace(config, paths=replace(config.paths, init_from=str(model)))


def new_model(config: RunConfig, corpus: Corpus) -> LanguageModel:
    """The model with which a training begins."""
    torch.manual_seed(config.system.seed)
    return build_model(config, corpus)[0]


@registry.loggers("test.Call.v1")
def calling_logger(calls: list):
    """Calls a function with what loggers get after an evaluation."""

    def setup(nlp, stdout, stderr):
        return lambda info: [call(info) for call in calls if info], lambda: None

    return setup


def train(
    config: RunConfig,
    output: Path,
    *,
    resume: bool = False,
    export: bool = False,
    after_update=None,
    on_evaluation=None,
) -> Trainer:
    """Train without printing.

    export (bool): Write model-best and model-last, which takes longer than some trainings.
    after_update (Callable): Called with the `Updater` and the number of the step.
    on_evaluation (Callable): Called with what loggers get.
    """
    calls = [on_evaluation] if on_evaluation else []
    update = Updater.update

    def update_and_call(updater, epoch, numbers, step, states=None):
        result = update(updater, epoch, numbers, step, states)
        after_update(updater, step + 1)
        return result

    with contextlib.ExitStack() as patches:
        if not export:
            patches.enter_context(mock.patch("spacy_elmo.pretraining.trainer.write_model"))
        if after_update is not None:
            patches.enter_context(mock.patch.object(Updater, "update", update_and_call))
        if config.pretraining.logger is None:
            config = change(config, logger={"@loggers": "test.Call.v1", "calls": calls})
        return pretrain(config, output, resume=resume)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Forked from a process that has imported what they need.
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def train_in_two_processes(
    config: RunConfig,
    output: Path | tuple[Path, Path],
    stops: int | None = None,
    method: str = METHOD,
    exitcode: int = 0,
) -> None:
    """Train with gloo on this machine, or continue a training that was stopped.

    output (Path): The folder of the run; or one for each process, as if they shared no disk.
    stops (int): The process that gets a signal in its first evaluation.
    method (str): How processes start; "spawn" is as slow as a user's command.
    exitcode (int): That of both processes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["spacy_elmo.pretraining.run"])
    processes = []
    for number in (0, 1):
        environment = {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        folder = output[number] if isinstance(output, tuple) else output
        arguments = (environment, config, folder, number == stops)
        processes.append(context.Process(target=work, args=arguments, daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(timeout=300)
        assert process.exitcode == exitcode
