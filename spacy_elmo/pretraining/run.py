"""A run of a training, from a config and a corpus to a biLM."""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from pathlib import Path
from typing import Optional

import spacy
import torch
from thinc.api import Config
from wasabi import msg

from ..files import clear_temporary, exclusive_lock
from . import checkpoint as checkpoints
from .config import RunConfig
from .corpus import Corpus, open_corpus
from .distributed import any_rank, broadcast, rank, world_size
from .loggers import resolve_logger
from .trainer import LOG, Trainer


def pretrain(
    config: RunConfig, output: Path, *, device: str = "cpu", resume: bool = False
) -> Trainer:
    """Train until a limit is reached, or a signal asks to stop; a checkpoint is written then.

    output (Path): The folder of the run: checkpoints, log.jsonl, model-best and model-last.
    resume (bool): Continue from the last complete checkpoint, if there is one.
    RETURNS (Trainer): Its `state` says how far it got, `interrupted` whether a signal came.
    RAISES (ValueError): If the run cannot begin or continue, or no gradient is finite any more.
    """
    if config.paths.corpus is None:
        raise ValueError("no corpus: give --paths.corpus, a folder from `spacy elmo prepare`")
    set_up_logger = resolve_logger(config.pretraining.logger)
    where = torch.device(device)
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    in_use = f"another run is using {output}: give another folder"
    try:
        with exclusive_lock(output / ".lock", in_use) if rank() == 0 else contextlib.nullcontext():
            found = _find_checkpoint(output, resume) if rank() == 0 else None
            # Where a machine lacks the checkpoint of rank 0, an error says so.
            step = int(broadcast(-1 if found is None else checkpoints.get_step(found), where))
            checkpoint = checkpoints.checkpoint_path(output, step) if step >= 0 else None
            corpus = open_corpus(config.paths.corpus)
            _check_same_everywhere(config, corpus, where)
            trainer = Trainer(config, output, corpus, where, checkpoint)
            if rank() > 0:
                trainer.train(lambda info: None)
                return trainer
            n_parameters = sum(p.numel() for p in trainer.model.parameters())
            processes = f"{world_size()} process{'es' * (world_size() > 1)}"
            msg.info(f"{n_parameters:,} parameters on {device}, {processes}; {trainer.origin}")
            nlp = spacy.blank(corpus.tokenization.lang)
            settings = {name: x for name, x in config.to_dict().items() if x is not None}
            nlp.config = Config(nlp.config).merge(settings)  # Loggers interpolate it.
            log, finalize = set_up_logger(nlp, sys.stdout, sys.stderr)
            try:
                trainer.train(log)
            finally:
                finalize()
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                output.rmdir()  # It is empty if the settings were wrong.
    return trainer


def _check_same_everywhere(config: RunConfig, corpus: Corpus, device: torch.device) -> None:
    # An error in all processes, if one has other settings or another corpus.
    settings = [{**config.to_dict(), "paths": None}, corpus.identity]
    number = float(zlib.crc32(json.dumps(settings, sort_keys=True).encode()))
    if any_rank(number != broadcast(number, device), device):
        raise ValueError("the processes have different configs or corpora: give all the same")


def _find_checkpoint(output: Path, resume: bool) -> Optional[Path]:
    clear_temporary(output)  # Of killed runs.
    paths = checkpoints.all_checkpoints(output)
    has_results = any((output / name).exists() for name in (LOG, "model-best", "model-last"))
    if (paths or has_results) and not (paths and resume):
        raise ValueError(
            f"{output} holds a run already: give another folder, or continue it with --resume, "
            "which needs its checkpoints"
        )
    return checkpoints.find_last(output)
