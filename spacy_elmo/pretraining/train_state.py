"""The state of a training, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from .config import ENDING_SCHEDULES, PretrainingConfig


@dataclass
class TrainState:
    """The state of a training, saved in every checkpoint.

    step, epoch, batch (int): Steps taken, the epoch, and the batches of it that were read.
    n_words (int): Words read.
    seconds (float): Time spent, in all runs.
    best (float): The lowest average perplexity, of step `best_step`.
    history (list[dict]): A record per evaluation. "at_limit" says that the evaluation was made
        because the run ended, not because it was due. Infinite perplexities are None.
    pending (Optional[dict]): The beginning of this step's record, until its evaluation is made.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    n_words: int = 0
    seconds: float = 0.0
    best: float = math.inf
    best_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    pending: Optional[dict[str, Any]] = None

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): As JSON can hold it."""
        return {**vars(self), "best": None if math.isinf(self.best) else self.best}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainState:
        return cls(**{**values, "best": math.inf if values["best"] is None else values["best"]})

    @property
    def record(self) -> Optional[dict[str, Any]]:
        """The evaluation of this step; None if there is none."""
        records = [record for record in self.history if record["step"] == self.step]
        return records[-1] if records else None

    def is_due(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether this step is to be evaluated."""
        return self.step % settings.eval_frequency == 0

    def is_at_limit(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether max_steps or max_minutes is reached."""
        return bool(
            (settings.max_steps and self.step >= settings.max_steps)
            or (settings.max_minutes and self.seconds / 60 >= settings.max_minutes)
        )

    def is_out_of_patience(self, settings: PretrainingConfig) -> bool:
        # Evaluations at a limit were not due, and do not count.
        n_since_best = sum(
            record["step"] > self.best_step and not record.get("at_limit")
            for record in self.history
        )
        return bool(settings.patience and n_since_best >= settings.patience)

    def describe(
        self,
        scores: dict[str, Any],
        loss: Optional[float],
        start: TrainState,
        settings: PretrainingConfig,
        epoch_words: int,
    ) -> dict[str, Any]:
        """RETURNS (dict): What loggers get after an evaluation; see `loggers`.

        scores (dict): What `perplexity` returned.
        loss (Optional[float]): The loss of this step, in nats per word.
        start (TrainState): The state at the start of this run.
        epoch_words (int): Words per epoch.
        """
        names = ("forward", "backward", "average", "unigram", "unknown")
        # Earlier runs may be of another machine; only they have a rate before the first step.
        since = start if self.step > start.step else TrainState()
        seconds = max(self.seconds - since.seconds, 1e-9)
        steps_per_second = (self.step - since.step) / seconds
        words_per_second = (self.n_words - since.n_words) / seconds
        estimates = []
        if settings.max_steps:
            estimates.append((settings.max_steps - self.step) / steps_per_second)
        if settings.max_epochs:
            n_words = settings.max_epochs * epoch_words
            estimates.append((n_words - self.n_words) / words_per_second)
        if settings.max_minutes:
            estimates.append(60 * settings.max_minutes - self.seconds)
        return {
            "epoch": self.epoch,
            "step": self.step,
            "words": self.n_words,
            "seconds": int(self.seconds),
            "losses": {} if loss is None else {"elmo": loss},
            "score": scores["average"],
            "other_scores": {name: scores[name] for name in names},
            "checkpoints": [],
            "words_per_second": words_per_second,
            # Until the first limit.
            "seconds_left": max(0.0, min(estimates)) if estimates else None,
        }


def count_steps(settings: PretrainingConfig, n_batches: int) -> int:
    """RETURNS (int): The number of steps of a training, about, with so many batches per epoch.
    RAISES (ValueError): If the schedule needs the number, and there is no limit."""
    per_epoch = -(-n_batches // settings.accumulate_gradient)
    limits = [n for n in (settings.max_steps, settings.max_epochs * per_epoch) if n]
    schedule = settings.optimizer.schedule
    if not limits and schedule in ENDING_SCHEDULES:
        raise ValueError(
            "pretraining.optimizer.total_steps = 0 needs max_steps or max_epochs: max_minutes does "
            "not tell at which step the schedule ends. Set one of the three"
        )
    # A training that is shorter than its warm-up ends within it.
    return max(min(limits), settings.optimizer.warmup_steps) if limits else 0
