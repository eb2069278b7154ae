"""One of several processes that train: python worker.py OUTPUT PICKLED_CONFIG RANK

RANK: The process that gets a signal in its first evaluation, if any.
"""

import pickle
import signal
import sys
from pathlib import Path

import torch

from spacy_elmo.pretraining import trainer
from spacy_elmo.pretraining.distributed import process_group, rank, world_size
from spacy_elmo.pretraining.language_model import LanguageModel


def main() -> None:
    torch.set_num_threads(1)
    output, config = map(Path, sys.argv[1:3])
    stops = sys.argv[3]
    trainer.write_model = lambda *args: None
    log_likelihood = LanguageModel.log_likelihood

    def stop(*args):
        signal.raise_signal(signal.SIGTERM)
        return log_likelihood(*args)

    with process_group(gpu=False) as device:
        assert world_size() == 2
        if stops == str(rank()):
            LanguageModel.log_likelihood = stop
        done = trainer.pretrain(
            pickle.loads(config.read_bytes()), output, device=device, resume=True
        )
        assert done.interrupted == bool(stops)


if __name__ == "__main__":
    main()
