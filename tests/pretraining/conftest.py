"""A small corpus, and configs small enough to train in a second."""

from __future__ import annotations

import os
import pickle
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.pretraining.config import OptimizerConfig, PretrainingConfig, RunConfig
from spacy_elmo.pretraining.corpus import Corpus, open_corpus, prepare
from spacy_elmo.pretraining.losses import LossConfig
from spacy_elmo.pretraining.tokenize import Tokenization
from spacy_elmo.pretraining.vocabulary import VocabularySettings

SENTENCE_PER_LINE = Tokenization(whitespace=True, one_per_line=True)


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
    prepare(sentences(), folder, SENTENCE_PER_LINE, VocabularySettings(size=15), dev_fraction=0.1)
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
    return RunConfig(corpus.folder, None, 0, bilm, PretrainingConfig(**pretraining))


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def train_in_two_processes(config: RunConfig, output: Path, stops: str = "") -> None:
    """Train with gloo on this machine, or go on where an earlier call was stopped.

    stops (str): The process ("0" or "1") that gets a signal in its first evaluation.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    worker, pickled = output.with_suffix(".py"), output.with_suffix(".pickle")
    worker.write_text(WORKER)
    pickled.write_bytes(pickle.dumps(config))
    processes = []
    for number in (0, 1):
        environment = {
            **os.environ, "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        command = [sys.executable, worker, output, pickled, stops]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
    for process in processes:
        assert process.wait(timeout=300) == 0, process.stderr.read()


WORKER = """
import pickle
import signal
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from spacy_elmo.pretraining.distributed import process_group, rank, world_size
from spacy_elmo.pretraining.trainer import Trainer
if __name__ == "__main__":
    output, config = map(Path, sys.argv[1:3])
    with process_group(gpu=False) as device:
        assert world_size() == 2
        resume = output.exists()
        config = pickle.loads(config.read_bytes())
        trainer = Trainer(config, output, device=device, resume=resume)
        if sys.argv[3] == str(rank()):
            real = trainer.model.log_likelihood
            def log_likelihood(*args):
                signal.raise_signal(signal.SIGTERM)
                return real(*args)
            trainer.model.log_likelihood = log_likelihood
        trainer.train()
        assert trainer.interrupted == bool(sys.argv[3])
"""
