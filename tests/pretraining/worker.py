"""One of several processes that train."""

import os
import signal
from pathlib import Path

import torch

from spacy_elmo.bilm import mixed_precision
from spacy_elmo.pretraining import trainer
from spacy_elmo.pretraining.config import RunConfig
from spacy_elmo.pretraining.distributed import process_group, world_size
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.run import pretrain


def work(environment: dict[str, str], config: RunConfig, output: Path, stops: bool) -> None:
    """Train, or continue a training that was stopped.

    environment (dict): What torchrun sets.
    stops (bool): Whether this process gets a signal in its first evaluation.
    """
    torch.set_num_threads(1)
    # As if the processes ran on two kinds of processors.
    mixed_precision.bfloat16_speed = lambda: 2.0 if environment["RANK"] == "1" else 0.5
    os.environ.update(environment)
    trainer.write_model = lambda *args: None
    log_likelihood = LanguageModel.log_likelihood

    def stop(*args):
        signal.raise_signal(signal.SIGTERM)
        return log_likelihood(*args)

    if stops:
        LanguageModel.log_likelihood = stop
    with process_group(gpu=False) as device:
        assert world_size() == 2
        pretrain(config, output, device=device, resume=True)
