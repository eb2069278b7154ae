"""spacy elmo pretrain: a corpus to a biLM."""

from __future__ import annotations

import math
from pathlib import Path

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
from .util import exit_on_error, torch_device


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
    with exit_on_error():
        overrides = parse_config_overrides(ctx.args)
        torch_device(gpu_id)  # Says if there is no such GPU.
        with process_group(gpu_id >= 0, gpu_id) as device:
            run = read_config(config, overrides)
            logger = resolve_logger(run.logger)
            check_memory(run, device, world_size())
            trainer = Trainer(run, output, device=device, resume=resume)
            if rank() > 0:
                trainer.train()
                return
            n_parameters = sum(p.numel() for p in trainer.model.parameters())
            step = trainer.progress.step
            msg.info(
                f"{n_parameters:,} parameters on {device}, {world_size()} "
                f"process{'es' if world_size() > 1 else ''}; {trainer.origin}"
            )
            report, finalize = reporting(trainer, logger)
            try:
                progress = trainer.train(report, export)
            finally:
                finalize()
        if not draw_curves(progress.history, output / "curves.png"):
            msg.info("No curves.png: it needs matplotlib, pip install spacy-elmo[viz]")
        if trainer.interrupted:
            # Not a success: what comes next must not take half a training for a whole one.
            msg.warn(f"Stopped at step {progress.step}; go on with --resume", exits=130)
        if progress.step == step:
            msg.info(
                f"Step {step} was the last one already; for more, raise pretraining.max_steps, "
                "max_epochs or max_minutes"
            )
        if math.isinf(progress.best):
            msg.warn(
                "Every perplexity was infinite, so the training has diverged: lower "
                "pretraining.optimizer.learn_rate, and start again"
            )
        else:
            msg.good(
                f"Best average perplexity {progress.best:.1f} at step {progress.best_step} "
                f"(unigram {progress.history[-1]['unigram']:.1f}): {output / 'model-best'}"
            )
