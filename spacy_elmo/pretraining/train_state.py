"""The state of a training, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from .config import ENDING_SCHEDULES, PretrainingConfig

# What is added up over steps; of a step that is skipped, nothing but that.
SUMS = ("loss", "gradient_norm", "clipped", "skipped", "updates")
# Those that loggers get besides the loss.
MEANS = ("learn_rate", "gradient_norm", "clipped", "skipped")


@dataclass
class TrainState:
    """The state of a training, saved in every checkpoint.

    step, epoch, batch (int): Steps taken, the epoch, and the batches of it that were read.
    parts (list): What was read of the epoch before batch_words changed; see `make_epoch`.
    n_words (int): Words read.
    seconds (float): Time spent, in all runs.
    evaluated (float): Those after which the last evaluation ended.
    sums (list[float]): See `Updater.sums`; since the last evaluation.
    changes (list[dict]): A record per resumed run with other settings: its first "step", and the
        "changes", the old and the new value by the name of the setting.
    best (float): The lowest average perplexity, of step `best_step`.
    history (list[dict]): A record per evaluation. "at_limit" says that the evaluation was made
        because the run ended, not because it was due. Infinite perplexities are None.
    pending (Optional[dict]): The beginning of this step's record, until its evaluation is made.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    parts: list[tuple[int, int]] = field(default_factory=list)
    n_words: int = 0
    seconds: float = 0.0
    evaluated: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    changes: list[dict[str, Any]] = field(default_factory=list)
    best: float = math.inf
    best_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    pending: Optional[dict[str, Any]] = None

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): JSON, which has no infinity."""
        return {**vars(self), "best": None if math.isinf(self.best) else self.best}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainState:
        return cls(**{**values, "best": math.inf if values["best"] is None else values["best"]})

    @property
    def record(self) -> Optional[dict[str, Any]]:
        """The evaluation of this step; None if there is none."""
        return next((x for x in self.history[-1:] if x["step"] == self.step), None)

    def add_record(self, scores: dict[str, Any]) -> None:
        """Add the scores of an evaluation, as JSON can hold them, to the history."""
        counts = {"step": self.step, "epoch": self.epoch, "words": self.n_words}
        record = {**counts, "seconds": round(self.seconds, 1), **(self.pending or {}), **scores}
        last = self.history[-1]["step"] if self.history else 0
        if changes := [x for x in self.changes if last < x["step"] <= self.step]:
            record["changes"] = changes
        self.history.append(record)

    def is_due(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether this step is to be evaluated."""
        by_steps = settings.eval_frequency and self.step % settings.eval_frequency == 0
        minutes = settings.eval_minutes
        return bool(by_steps or (minutes and self.seconds - self.evaluated >= 60 * minutes))

    def is_at_limit(self, settings: PretrainingConfig) -> bool:
        """RETURNS (bool): Whether max_steps or max_minutes is reached."""
        by_steps = settings.max_steps and self.step >= settings.max_steps
        return bool(by_steps or 0 < settings.max_minutes <= self.seconds / 60)

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
        means: dict[str, Any],
        start: TrainState,
        settings: PretrainingConfig,
        epoch_words: int,
    ) -> dict[str, Any]:
        """RETURNS (dict): What loggers get after an evaluation; see `loggers`.

        scores, means (dict): The results of `perplexity` and `means`.
        start (TrainState): The state at the start of this run.
        epoch_words (int): Words per epoch.
        """
        known = {name: value for name, value in means.items() if value is not None}
        others = {name: known[name] for name in MEANS if name in known}
        names = ("forward", "backward", "average", "unigram", "unknown")
        # Earlier runs may be of another machine; only they have a rate before the first step.
        since = start if self.step > start.step else TrainState()
        seconds = max(self.seconds - since.seconds, 1e-9)
        words_per_second = (self.n_words - since.n_words) / seconds
        # Seconds until each limit.
        by_steps = (settings.max_steps - self.step) * seconds / (self.step - since.step)
        by_epochs = (settings.max_epochs * epoch_words - self.n_words) / words_per_second
        by_minutes = 60 * settings.max_minutes - self.seconds
        limits = settings.max_steps, settings.max_epochs, settings.max_minutes
        estimates = [x for x, limit in zip((by_steps, by_epochs, by_minutes), limits) if limit]
        return {
            "epoch": self.epoch,
            "step": self.step,
            "words": self.n_words,
            "seconds": int(self.seconds),
            "losses": {"elmo": known["loss"]} if "loss" in known else {},
            "score": scores["average"],
            "other_scores": {name: scores[name] for name in names} | others,
            "checkpoints": [],
            "words_per_second": words_per_second,
            "seconds_left": max(0.0, min(estimates)) if estimates else None,
        }


def means(sums: Sequence[float], learn_rate: float) -> dict[str, Any]:
    """RETURNS (dict): Means over the updates in `sums` (see `SUMS`): "loss" in nats per word,
    "gradient_norm" before it was clipped, "clipped", the share of updates that were; None if there
    was none. Besides, "skipped", a number, and "learn_rate", the present one."""
    loss, norm, clipped, skipped, n = sums
    values = dict.fromkeys(("loss", "learn_rate", "gradient_norm", "clipped"))
    if n:
        values = dict(zip(values, (loss / n, learn_rate, norm / n, clipped / n)))
    return {**values, "skipped": int(skipped)}


def describe_changes(changes: Mapping[str, tuple[Any, Any]], n_left: int, learn_rate: float) -> str:
    """RETURNS (str): What has changed on resuming, for the first lines of the run."""
    parts = [f"{name}: {old} -> {new}" for name, (old, new) in changes.items()]
    parts.append(f"the next step has the learning rate {learn_rate:.3g}")
    if "pretraining.batch_words" in changes:
        parts.append(f"what is left of the epoch is {n_left:,} batches in a new order")
    return " with " + "; ".join(parts)


def count_steps(settings: PretrainingConfig, n_batches: int, state: TrainState, n_left: int) -> int:
    """Count the steps of a training, about.

    n_batches (int): Batches of an epoch.
    n_left (int): Batches that are left of the present epoch.
    RETURNS (int): The steps from the beginning to the end; 0 if there is no limit.
    RAISES (ValueError): If the schedule needs the number, and there is no limit.
    """
    limits = [settings.max_steps] if settings.max_steps else []
    if settings.max_epochs:
        size = settings.accumulate_gradient
        n_more = max(0, settings.max_epochs - state.epoch - 1) * -(-n_batches // size)
        limits.append(state.step + -(-n_left // size) + n_more)
    schedule = settings.optimizer.schedule
    if not limits and schedule in ENDING_SCHEDULES:
        raise ValueError(
            "pretraining.optimizer.total_steps = 0 needs max_steps or max_epochs: max_minutes does "
            "not tell at which step the schedule ends. Set one of the three"
        )
    # A training that is shorter than its warm-up ends within it.
    return max(min(limits), settings.optimizer.warmup_steps) if limits else 0
