"""A run of a training, from a config and a corpus to a biLM."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Optional

import spacy
import torch
from thinc.api import Config
from wasabi import msg

from ..files import clear_temporary, exclusive_lock
from . import checkpoint as checkpoints
from .config import RunConfig
from .corpus import open_corpus
from .distributed import barrier, rank, world_size
from .loggers import resolve_logger
from .trainer import LOG, Trainer

# What a run leaves besides its checkpoints.
_RESULTS = (LOG, "model-best", "model-last")


def pretrain(
    config: RunConfig, output: Path, *, device: str = "cpu", resume: bool = False
) -> Trainer:
    """Train until a limit is reached, or a signal (see `trainer`) asks to stop. Then a
    checkpoint is written first, and an evaluation that is due is left to the next run.

    config (RunConfig): What to train, and how.
    output (Path): The folder of the run: checkpoints, log.jsonl, model-best and model-last.
    device (str): "cpu", "cuda" or "cuda:1".
    resume (bool): Continue from the last complete checkpoint, if there is one.
    RETURNS (Trainer): Its `state` says how far it got, `interrupted` whether a signal came.
    RAISES (ValueError): If the folder is in use, or has a run that is not to be resumed or that
        has another config or corpus, or no checkpoints any more; or if no gradient is finite any
        more (the last good checkpoint stays).
    """
    if config.paths.corpus is None:
        raise ValueError("no corpus: give --paths.corpus, a folder from `spacy elmo prepare`")
    set_up_logger = resolve_logger(config.pretraining.logger)
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    in_use = f"another run is using {output}: give another folder"
    try:
        with exclusive_lock(output / ".lock", in_use) if rank() == 0 else contextlib.nullcontext():
            checkpoint = _find_checkpoint(output, resume)
            checkpoints.check_same_everywhere(checkpoint, torch.device(device))
            corpus = open_corpus(config.paths.corpus)
            trainer = Trainer(config, output, corpus, torch.device(device), checkpoint)
            if rank() > 0:
                trainer.train(lambda info: None)
                return trainer
            n_parameters = sum(p.numel() for p in trainer.model.parameters())
            processes = "1 process" if world_size() == 1 else f"{world_size()} processes"
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


def _find_checkpoint(output: Path, resume: bool) -> Optional[Path]:
    """RETURNS (Optional[Path]): What to continue from. RAISES (ValueError): See `pretrain`."""
    if rank() == 0:
        clear_temporary(output)  # Of killed runs.
    barrier()
    paths = checkpoints.all_checkpoints(output)
    if paths and not resume:
        raise ValueError(
            f"{output} holds a run already ({paths[-1].name}): continue it with --resume, "
            "or give another folder"
        )
    if not paths and any((output / name).exists() for name in _RESULTS):
        raise ValueError(
            f"{output} holds a run whose checkpoints were removed, so that it cannot go "
            "on: give another folder (with --paths.init_from, a training begins with the "
            "weights of a model), or remove this one"
        )
    return checkpoints.find_last(output)
