"""What a training tells: loggers with spaCy's interface, for `[pretraining.logger]`.

Those of spacy-loggers (Weights & Biases, MLflow, ClearML, a chain of several) work as well. After
an evaluation they all get what spaCy's trainer gives: `epoch`, `step`, `words`, `seconds`, `losses`
(nats per word), `score` (the average perplexity: less is better) and `other_scores`; besides,
`words_per_second`, and `seconds_left` (None if unknown).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Optional

import spacy
from spacy import Language
from spacy.util import registry
from thinc.api import Config
from tqdm import tqdm

from .perplexity import Perplexity
from .trainer import Progress, Report, Trainer

Info = Optional[dict[str, Any]]
Setup = Callable[[Language, IO[str], IO[str]], tuple[Callable[[Info], None], Callable[[], None]]]

_WIDTHS = (5, 8, 9, 10, 10, 10, 9, 8)
_HEADER = ("E", "#", "Loss", "Forward", "Backward", "Average", "Words/s", "ETA")
_SCORES = ("forward", "backward", "average", "unigram", "unknown")


@registry.loggers("spacy-elmo.PretrainConsoleLogger.v1")
def console_logger(progress_bar: bool = True) -> Setup:
    """Print a line per evaluation; the default.

    progress_bar (bool): Show a bar in between, if the output is a terminal.
    """

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[Callable[[Info], None], Callable[[], None]]:
        total = nlp.config["pretraining"]["eval_frequency"]

        def row(cells: Sequence[str]) -> None:
            line = "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS))
            print(line, file=stdout, flush=True)

        def new_bar() -> Any:
            disable = None if progress_bar else True
            return tqdm(total=total, leave=False, disable=disable, unit="step", file=stderr)

        row(_HEADER)
        row(["-" * width for width in _WIDTHS])
        bar = new_bar()

        def log_step(info: Info) -> None:
            nonlocal bar
            bar.update(1)
            if info is None:
                return
            bar.close()
            scores, loss = info["other_scores"], info["losses"].get("elmo")
            cells = [str(info["epoch"]), str(info["step"]), "" if loss is None else f"{loss:.3f}"]
            cells += [f"{scores[name]:.1f}" for name in ("forward", "backward", "average")]
            row([*cells, f"{info['words_per_second']:,.0f}", _duration(info["seconds_left"])])
            bar = new_bar()

        return log_step, lambda: bar.close()

    return setup


@registry.loggers("spacy-elmo.TensorBoardLogger.v1")
def tensorboard_logger(folder: str) -> Setup:
    """Write event files with PyTorch's writer, which needs the package `tensorboard`.

    folder (str): Where to.
    """

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[Callable[[Info], None], Callable[[], None]]:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f"no TensorBoard ({error}): pip install tensorboard") from error
        writer = SummaryWriter(folder)

        def log_step(info: Info) -> None:
            if info is None:
                return
            for name, value in {**info["other_scores"], **info["losses"]}.items():
                tag = "loss" if name in info["losses"] else name
                writer.add_scalar(f"pretraining/{tag}", value, info["step"])
            writer.add_scalar(
                "pretraining/words_per_second", info["words_per_second"], info["step"]
            )

        return log_step, writer.close

    return setup


def resolve_logger(block: Optional[dict[str, Any]]) -> Setup:
    """RETURNS (Callable): What a `[pretraining.logger]` block describes.
    RAISES (ValueError): If there is no such logger, or its settings are wrong."""
    if not block:
        return console_logger()
    try:
        return registry.resolve({"logger": block})["logger"]
    except Exception as error:  # The registry's errors are of several kinds.
        raise ValueError(f"[pretraining.logger] is wrong: {error}") from error


def reporting(trainer: Trainer, setup: Setup) -> tuple[Report, Callable[[], None]]:
    """Connect a logger to a trainer.

    RETURNS (tuple): For `Trainer.train`, and what to call at the end.
    """
    nlp = spacy.blank(trainer.corpus.manifest["tokenization"]["lang"])
    nlp.config = Config({**nlp.config, **trainer.config.to_dict()})
    log_step, finalize = setup(nlp, sys.stdout, sys.stderr)
    seconds, words = trainer.progress.seconds, trainer.progress.n_words

    def report(progress: Progress, loss: Optional[float], found: Optional[Perplexity]) -> None:
        if found is None:
            log_step(None)
            return
        scores = {name: value for name in _SCORES if (value := getattr(found, name)) is not None}
        rate = (progress.n_words - words) / max(progress.seconds - seconds, 1e-9)
        log_step(
            {
                "epoch": progress.epoch,
                "step": progress.step,
                "words": progress.n_words,
                "seconds": int(progress.seconds),
                "losses": {} if loss is None else {"elmo": loss},
                "score": found.average,
                "other_scores": scores,
                "checkpoints": [],
                "words_per_second": rate,
                "seconds_left": _seconds_left(trainer),
            }
        )

    return report, finalize


def _seconds_left(trainer: Trainer) -> Optional[float]:
    """Time until the first limit that is known."""
    settings, progress = trainer.config.pretraining, trainer.progress
    found = []
    if settings.max_steps:
        left = settings.max_steps - progress.step
        found.append(left * progress.seconds / max(progress.step, 1))
    if settings.max_epochs:
        total = settings.max_epochs * trainer.corpus.manifest["n_tokens"]["train"]
        left = max(0, total - progress.n_words)
        found.append(left * progress.seconds / max(progress.n_words, 1))
    if settings.max_minutes:
        found.append(60 * settings.max_minutes - progress.seconds)
    return max(0.0, min(found)) if found else None


def _duration(seconds: Optional[float]) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{int(seconds)} s"
    minutes = int(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
