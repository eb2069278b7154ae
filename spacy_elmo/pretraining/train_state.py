"""The state of a training, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from .config import ENDING_SCHEDULES, PretrainingConfig

# What is added up over steps; of a step that is skipped, nothing but that.
SUMS = ("loss", "gradient_norm", "clipped", "skipped", "updates")
# What loggers get besides the loss.
_OTHER = (
    "forward", "backward", "average", "unigram", "unknown",
    "learn_rate", "gradient_norm", "clipped", "skipped",
)  # fmt: skip


@dataclass
class TrainState:
    """The state of a training, saved in every checkpoint.

    step, epoch, batch (int): Steps taken, the epoch, and the batches of it that were read.
    seconds, evaluated (float): Time spent in all runs, and until the last evaluation ended.
    sums (list[float]): See `Updater`; since the last evaluation.
    best (float): The lowest average perplexity, of step `best_step`.
    history (list[dict]): A record per evaluation; "at_limit": it was not due, but the run ended.
    pending (Optional[dict]): The beginning of this step's record, until its evaluation is made.
    changed (dict): Settings with which the run was resumed since the last record.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    n_words: int = 0
    seconds: float = 0.0
    evaluated: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    best: float = math.inf
    best_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    pending: Optional[dict[str, Any]] = None
    changed: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> Optional[dict[str, Any]]:
        """The evaluation of this step; None if there is none."""
        return next((x for x in self.history[-1:] if x["step"] == self.step), None)

    def is_due(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether this step is to be evaluated."""
        by_steps = settings.eval_frequency and self.step % settings.eval_frequency == 0
        return bool(by_steps) or 0 < 60 * settings.eval_minutes <= self.seconds - self.evaluated

    def is_at_limit(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether max_steps or max_minutes is reached."""
        return 0 < settings.max_steps <= self.step or 0 < 60 * settings.max_minutes <= self.seconds

    def is_out_of_patience(self, settings: PretrainingConfig) -> bool:
        # Evaluations at a limit were not due, and do not count.
        counted = [x for x in self.history if x["step"] > self.best_step and not x["at_limit"]]
        return 0 < settings.patience <= len(counted)

    def describe(
        self,
        scores: dict[str, Any],
        start: TrainState,
        settings: PretrainingConfig,
        epoch_words: int,
    ) -> dict[str, Any]:
        """RETURNS (dict): What loggers get after an evaluation with these scores; see `loggers`.

        start (TrainState): The state at the start of this run.
        """
        known = {**(self.record or {}), **scores}  # With infinite perplexities.
        words_per_second, seconds_left = self.pace(start, settings, epoch_words)
        return {
            "epoch": self.epoch,
            "step": self.step,
            "words": self.n_words,
            "seconds": int(self.seconds),
            "losses": {"elmo": known["loss"]} if known["loss"] is not None else {},
            "score": scores["average"],
            "other_scores": {name: known[name] for name in _OTHER if known[name] is not None},
            "checkpoints": [],
            "words_per_second": words_per_second,
            "seconds_left": seconds_left,
        }

    def pace(
        self, start: TrainState, settings: PretrainingConfig, epoch_words: int
    ) -> tuple[float, Optional[float]]:
        """RETURNS (tuple): Words per second, and the seconds left (None if unknown)."""
        # Earlier runs may be of another machine; only they have a rate before the first step.
        since = start if self.step > start.step else TrainState()
        seconds = max(self.seconds - since.seconds, 1e-9)
        words_per_second = (self.n_words - since.n_words) / seconds
        limits = settings.max_steps, settings.max_epochs, settings.max_minutes
        estimates = (
            (settings.max_steps - self.step) * seconds / (self.step - since.step),
            (settings.max_epochs * epoch_words - self.n_words) / words_per_second,
            60 * settings.max_minutes - self.seconds,
        )
        left = [seconds for seconds, limit in zip(estimates, limits) if limit]
        return words_per_second, max(0.0, min(left)) if left else None


def means(sums: Sequence[float], learn_rate: float) -> dict[str, Any]:
    """RETURNS (dict): Means over the updates in `sums`, None if there was none; "skipped", their
    number; and "learn_rate", the present one."""
    loss, norm, clipped, skipped, n = sums
    values = dict.fromkeys(("loss", "learn_rate", "gradient_norm", "clipped"))
    if n:
        values = dict(zip(values, (loss / n, learn_rate, norm / n, clipped / n)))
    return {**values, "skipped": int(skipped)}


def last_step(settings: PretrainingConfig, n_batches: int) -> int:
    """RETURNS (int): Where max_steps or max_epochs end a training with epochs of so many batches;
    0 if they do not."""
    by_epochs = settings.max_epochs * -(-n_batches // settings.accumulate_gradient)
    return min((limit for limit in (settings.max_steps, by_epochs) if limit), default=0)


def count_steps(settings: PretrainingConfig, n_batches: int) -> int:
    """RETURNS (int): Where the schedule ends: total_steps, or the end of a training with epochs of
    so many batches; 0 if it has none.
    RAISES (ValueError): If the schedule needs an end that is unknown."""
    if settings.optimizer.total_steps:
        return settings.optimizer.total_steps
    limit = last_step(settings, n_batches)
    if not limit and settings.optimizer.schedule in ENDING_SCHEDULES:
        raise ValueError("pretraining.optimizer.total_steps = 0 needs max_steps or max_epochs")
    # A training that is shorter than its warm-up ends within it.
    return max(limit, settings.optimizer.warmup_steps) if limit else 0
