"""spacy elmo pretrain: a corpus to a biLM."""

from __future__ import annotations

import math
from pathlib import Path

import typer
from click import NoSuchOption
from spacy.cli._util import parse_config_overrides
from wasabi import msg

from ..plots import draw_curves
from ..pretraining.config import read_config
from ..pretraining.distributed import process_group, rank
from ..pretraining.run import pretrain
from ..pretraining.trainer import Trainer
from .util import GPU_ID, exit_on_error, torch_device


def pretrain_cli(
    ctx: typer.Context,
    config: Path = typer.Argument(..., help="The config file"),
    output: Path = typer.Argument(..., help="The folder of the run"),
    resume: bool = typer.Option(False, "--resume", help="Continue from the last checkpoint"),
    gpu_id: int = GPU_ID,
) -> None:
    """
    Train a bidirectional language model.

    Settings of the config can be overridden: --paths.corpus corpus --pretraining.max_steps 1000.
    Several processes: torchrun --nproc-per-node 2 -m spacy elmo pretrain ... (with --gpu-id 0, each
    takes a GPU of its own).
    """
    with exit_on_error():
        try:
            overrides = parse_config_overrides(ctx.args)
        except NoSuchOption as error:
            raise ValueError(
                f"no option {error.option_name}: settings are --pretraining.max_steps and the like"
            ) from error
        torch_device(gpu_id)  # Raises if there is no such GPU.
        with process_group(gpu_id >= 0, gpu_id) as device:
            trainer = pretrain(read_config(config, overrides), output, device=device, resume=resume)
            if rank() > 0:
                return
        _report(trainer, output)


def _report(trainer: Trainer, output: Path) -> None:
    state = trainer.state
    if state.history:
        try:
            draw_curves(state.history, output / "curves.png")
        except ImportError as error:
            msg.info(f"No plot: {error}")
    if trainer.interrupted:
        # An error code, so that a workflow does not continue with half a training.
        msg.warn(f"Stopped at step {state.step}; continue with --resume", exits=130)
    if state.step == trainer.start.step:
        limits = "max_steps, max_epochs or max_minutes, whichever ended it"
        msg.info(f"Step {state.step} was the last one already: raise {limits}")
    if math.isinf(state.best):
        msg.warn("Every perplexity was infinite, so the training has diverged: lower learn_rate")
        return
    best = output / "model-best"
    where = best if best.exists() else f"{best} was removed"
    msg.good(
        f"Best average perplexity {state.best:.1f} at step {state.best_step} "
        f"(unigram {state.history[-1]['unigram']:.1f}): {where}"
    )
