"""spacy elmo pretrain: a corpus to a biLM."""

from __future__ import annotations

from pathlib import Path

import torch
import typer
from spacy.cli._util import parse_config_overrides
from wasabi import msg

from ..pretraining.config import read_config
from ..pretraining.curves import draw_curves
from ..pretraining.distributed import process_group, rank, world_size
from ..pretraining.export import export
from ..pretraining.loggers import reporting, resolve_logger
from ..pretraining.memory import check_memory
from ..pretraining.trainer import Trainer
from ._util import clear_errors


def pretrain_cli(
    ctx: typer.Context,
    config: Path = typer.Argument(..., help="The config file"),
    output: Path = typer.Argument(..., help="The folder of the run"),
    resume: bool = typer.Option(False, "--resume", help="Go on from the last checkpoint"),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="The GPU, -1 for the CPU"),
) -> None:
    """
    Train a bidirectional language model.

    Settings of the config can be overridden: --paths.corpus corpus --pretraining.max_steps 1000.
    Several processes: torchrun --nproc-per-node 2 -m spacy elmo pretrain ... (with --gpu-id 0, each
    takes a GPU of its own).
    """
    with clear_errors():
        overrides = parse_config_overrides(ctx.args)
        if gpu_id >= 0 and not torch.cuda.is_available():
            raise ValueError(f"--gpu-id {gpu_id}: PyTorch finds no GPU")
        with process_group(gpu_id >= 0) as device:
            if gpu_id > 0 and world_size() == 1:
                device = f"cuda:{gpu_id}"
            run = read_config(config, overrides)
            logger = resolve_logger(run.logger)
            check_memory(run, device, world_size())
            trainer = Trainer(run, output, device=device, resume=resume)
            if rank() > 0:
                trainer.train()
                return
            n_parameters = sum(p.numel() for p in trainer.model.parameters())
            msg.info(
                f"{n_parameters:,} parameters on {device}, {world_size()} process(es); "
                f"{'resumed at step ' + str(trainer.progress.step) if resume else trainer.origin}"
            )
            report, finalize = reporting(trainer, logger)
            try:
                progress = trainer.train(report, export)
            finally:
                finalize()
        draw_curves(progress.history, output / "curves.png")
        if progress.history:
            msg.good(
                f"Best average perplexity {progress.best:.1f} at step {progress.best_step} "
                f"(unigram {progress.history[-1]['unigram']:.1f}): {output / 'model-best'}"
            )
        else:
            msg.info(f"Stopped at step {progress.step}; go on with --resume")
