"""spacy elmo pretrain: a corpus to a biLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import torch
import typer
from spacy.cli._util import parse_config_overrides
from tqdm import tqdm
from wasabi import msg

from ..pretraining.config import read_config
from ..pretraining.curves import draw_curves
from ..pretraining.distributed import process_group, rank, world_size
from ..pretraining.export import export
from ..pretraining.perplexity import Perplexity
from ..pretraining.trainer import Progress, Trainer, write_history
from ._util import clear_errors

_WIDTHS = (5, 8, 9, 10, 10, 10, 9, 8)
_HEADER = ("E", "#", "Loss", "Forward", "Backward", "Average", "Words/s", "ETA")


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
            trainer = Trainer(read_config(config, overrides), output, device=device, resume=resume)
            if rank() > 0:
                trainer.train()
                return
            n_parameters = sum(p.numel() for p in trainer.model.parameters())
            msg.info(f"{n_parameters:,} parameters on {device}, {world_size()} process(es)")
            reporter = _Reporter(trainer)
            progress = trainer.train(reporter, export)
            reporter.close()
        draw_curves(progress.history, output / "curves.png")
        if progress.history:
            msg.good(
                f"Best average perplexity {progress.best:.1f} at step {progress.best_step} "
                f"(unigram {progress.history[-1]['unigram']:.1f}): {output / 'model-best'}"
            )
        else:
            msg.info(f"Stopped at step {progress.step}; go on with --resume")


class _Reporter:
    """Prints a line per evaluation, and a bar in between."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.bar: Any = None
        self.start = (trainer.progress.seconds, trainer.progress.n_words)
        _print_row(_HEADER)
        _print_row(["-" * width for width in _WIDTHS])
        self._next_bar()

    def __call__(
        self, progress: Progress, loss: Optional[float], found: Optional[Perplexity]
    ) -> None:
        self.bar.update(1)
        if found is None:
            return
        self.close()
        seconds, words = self.start
        rate = (progress.n_words - words) / max(progress.seconds - seconds, 1e-9)
        cells = [str(progress.epoch), str(progress.step), "" if loss is None else f"{loss:.3f}"]
        cells += [f"{value:.1f}" for value in (found.forward, found.backward, found.average)]
        cells += [f"{rate:,.0f}", self._eta(progress)]
        _print_row(cells)
        write_history(self.trainer.output, progress)
        self._next_bar()

    def close(self) -> None:
        self.bar.close()

    def _next_bar(self) -> None:
        settings = self.trainer.config.pretraining
        self.bar = tqdm(total=settings.eval_frequency, leave=False, disable=None, unit="step")

    def _eta(self, progress: Progress) -> str:
        """Time until the first limit that is known."""
        settings = self.trainer.config.pretraining
        seconds = []
        if settings.max_steps:
            left = settings.max_steps - progress.step
            seconds.append(left * progress.seconds / max(progress.step, 1))
        if settings.max_epochs:
            total = settings.max_epochs * self.trainer.corpus.manifest["n_tokens"]["train"]
            left = max(0, total - progress.n_words)
            seconds.append(left * progress.seconds / max(progress.n_words, 1))
        if settings.max_minutes:
            seconds.append(60 * settings.max_minutes - progress.seconds)
        if not seconds:
            return ""
        minutes = int(max(0.0, min(seconds)) / 60)
        return f"{minutes // 60}:{minutes % 60:02d} h"


def _print_row(cells: Sequence[str]) -> None:
    print("  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS)), flush=True)
