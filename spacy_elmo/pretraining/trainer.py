"""The training loop."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from wasabi import msg

from ..bilm import BiLMConfig
from ..bilm.lstm_layer import LayerState
from ..files import atomic_file
from . import checkpoint as checkpoints
from .batches import ContiguousBatches, EpochBatches, make_epoch
from .config import LENGTH_SETTINGS, RunConfig
from .corpus import Corpus
from .distributed import (
    all_gather,
    any_rank,
    barrier,
    broadcast,
    broadcast_weights,
    rank,
    world_size,
)
from .export import write_model
from .init_model import build_model
from .loggers import Log, ProgressLines
from .optimizer import set_learn_rate
from .perplexity import finite, perplexity
from .signals import STOP_SIGNALS, handle_signals
from .train_state import TrainState, count_steps, describe_changes, means
from .updater import Updater

# Steps between looks at the sums and the clock, which wait for the device.
SYNC_EVERY = 10
# Steps without an update that end a training.
MAX_BAD_STEPS = 100
_BAD = "the gradient was NaN or infinite"
# A record per evaluation.
LOG = "log.jsonl"


class Due(NamedTuple):
    """What is to be done after a step. `end`: a limit is reached."""

    evaluation: bool
    end: bool
    checkpoint: bool
    line: bool


class Trainer:
    """One run of a training; `pretrain` makes it.

    output (Path): The folder of the run, which no other process uses.
    checkpoint (Optional[Path]): What to continue from; None for a new training.
    RAISES (ValueError): If config, corpus and checkpoint do not fit together.
    """

    def __init__(
        self,
        config: RunConfig,
        output: Path,
        corpus: Corpus,
        device: torch.device,
        checkpoint: Optional[Path] = None,
    ) -> None:
        self.config, self.settings = config, config.pretraining
        self.output, self.corpus, self.device = output, corpus, device
        self.state = TrainState()
        self.interrupted = self._signalled = self._stopping = self._ended = False
        self._carried: list[LayerState] = []
        saved: dict[str, Any] = {}
        changes: dict[str, tuple[Any, Any]] = {}
        if checkpoint is not None:
            saved = checkpoints.read_state(checkpoint)
            changes = checkpoints.check_same_training(saved, config, corpus)
            # The model that the training started from is not needed.
            paths = replace(config.paths, init_from=None)
            config = replace(config, paths=paths, bilm=BiLMConfig.from_options(saved["bilm"]))
        n_batches = len(self._epoch(0))  # Raises if there are too many rows for the corpus.
        torch.manual_seed(config.system.seed)
        self.model, self.origin = build_model(config, corpus)
        self.model.to(device)
        self.model.bilm.lstm.kernel = self.model.output.kernel = config.system.kernel
        broadcast_weights(self.model)
        self.updater = Updater(self.model, self.settings, config.system.seed)
        if checkpoint is not None:
            self._restore(checkpoint, saved, changes)
        self._schedule(saved, changes, n_batches)
        # Where this run begins.
        self._is_new, self.start = checkpoint is None, replace(self.state)
        # The last good checkpoint; there may be later ones, which are damaged.
        self._saved_step, self._saved_at = self.state.step, self.state.seconds
        self._lines = ProgressLines(self.state)

    def _restore(
        self, checkpoint: Path, saved: dict[str, Any], changes: dict[str, tuple[Any, Any]]
    ) -> None:
        carried = checkpoints.restore(checkpoint, self.model, self.updater.optimizer)
        for h, c in carried:
            own_h, own_c = (x.chunk(world_size(), 1)[rank()].to(self.device) for x in (h, c))
            self._carried.append((own_h.contiguous(), own_c.contiguous()))
        self.state = state = TrainState.from_dict(saved["progress"])
        self.origin = f"resumed at step {state.step}"
        self.updater.sums.copy_(torch.tensor(state.sums, dtype=torch.float64))
        if changes:
            values = {name: list(pair) for name, pair in changes.items()}
            state.changes.append({"step": state.step + 1, "changes": values})
        if "pretraining.batch_words" in changes and state.batch:
            # Batches of another size have another order. What is left of the epoch gets its own.
            state.parts.append((changes["pretraining.batch_words"][0], state.batch))
            state.batch = 0

    def _schedule(
        self, saved: dict[str, Any], changes: dict[str, tuple[Any, Any]], n_batches: int
    ) -> None:
        """Decide where the schedule ends, and set the rate."""
        optimizer, state = self.settings.optimizer, self.state
        total_steps = optimizer.total_steps
        if not changes.keys() & LENGTH_SETTINGS:
            # A resumed run keeps the schedule's length, even if the limits have changed since.
            total_steps = total_steps or saved.get("total_steps", 0)
        n_left = 0
        if changes or not total_steps:
            n_left = len(self._epoch(state.epoch)) - state.batch
        total_steps = total_steps or count_steps(self.settings, n_batches, state, n_left)
        self.updater.schedule = replace(optimizer, total_steps=total_steps)
        if changes:
            set_learn_rate(self.updater.optimizer, self.updater.schedule, state.step)
            self.origin += describe_changes(changes, n_left, self.updater.learn_rate)
        # Until there is a step, the rate is that of the last one.
        set_learn_rate(self.updater.optimizer, self.updater.schedule, max(0, state.step - 1))

    def train(self, log: Log) -> None:
        """Train to the end, and write model-last.

        log (Callable): The logger, called after every step as spaCy's trainer calls its loggers.
        """
        self._began = time.monotonic() - self.state.seconds
        with handle_signals(self._request_stop, *STOP_SIGNALS):
            if self._is_new:
                self._save()
            # A kill may have come between a checkpoint and the log.
            self._write_history()
            barrier()
            if self.state.pending is not None:
                # An earlier run was stopped before it.
                self._evaluate(log)
            self._replace_best()
            if not self._must_stop():
                self._take_steps(log)
            if self.state.record is None and not self._stopping:
                # A resumed run that had reached its limits.
                self._ask_for_evaluation(at_limit=not self.state.is_due(self.settings))
                self._evaluate(log)
            # Something is left to do.
            is_pending = self.state.pending is not None
            self.interrupted = self._stopping and (is_pending or not self._ended)
            self._write_model("last")
            barrier()

    def _take_steps(self, log: Log) -> None:
        """Train until a limit or a signal."""
        state, settings = self.state, self.settings
        self._ended = True  # Unless a signal comes first.
        for epoch, numbers, is_last in self._remaining_steps():
            state.n_words += self.updater.update(epoch, numbers, state.step, self._carried)[1]
            state.step += 1
            due = self._what_is_due(is_last)
            if due.evaluation or due.end:
                self._ask_for_evaluation(at_limit=not due.evaluation)
            if due.checkpoint:
                # Before the evaluation: after a signal, this process may be killed at any moment.
                self._save()
            if state.pending is not None and not self._stopping:
                self._evaluate(log)
            else:
                log(None)
                if due.line:
                    self._lines.print(state, self.updater.learn_rate)
            self._ended = due.end or state.is_out_of_patience(settings)
            if self._ended or self._stopping:
                break

    def _what_is_due(self, is_last: bool) -> Due:
        """Look at the clock, signals and limits after a step, with which the data may end."""
        state, settings = self.state, self.settings
        frequencies = SYNC_EVERY, settings.eval_frequency, settings.checkpoint_frequency
        syncs = any(n and state.step % n == 0 for n in frequencies)
        if syncs or world_size() == 1:
            state.seconds = self._now()
            self._must_stop()
        evaluation = state.is_due(settings)
        end = is_last or state.is_at_limit(settings)
        frequency, seconds = settings.checkpoint_frequency, state.seconds - self._saved_at
        by_time = 0 < 60 * settings.checkpoint_minutes <= seconds
        by_steps = frequency > 0 and state.step % frequency == 0
        checkpoint = evaluation or end or self._stopping or by_time or by_steps
        line = self._lines.is_due(state)
        if syncs or checkpoint or line:
            self._read_sums()
        return Due(evaluation, end, checkpoint, line)

    def _remaining_steps(self) -> Iterator[tuple[EpochBatches, range, bool]]:
        """YIELDS (tuple): An epoch, the batches of one step, and whether the data ends with it."""
        settings, state = self.settings, self.state
        if state.is_at_limit(settings) or state.is_out_of_patience(settings):
            return  # A run that has ended is resumed.
        while not settings.max_epochs or state.epoch < settings.max_epochs:
            epoch = self._epoch(state.epoch)
            if state.batch == 0 and isinstance(epoch, ContiguousBatches):
                self._carried = self.model.new_states(epoch.n_rows // world_size())
            while state.batch < len(epoch):
                first = state.batch
                state.batch = min(first + settings.accumulate_gradient, len(epoch))
                is_last_epoch = state.epoch + 1 == settings.max_epochs
                is_last = is_last_epoch and state.batch == len(epoch)
                yield epoch, range(first, state.batch), is_last
            state.epoch += 1
            state.batch, state.parts = 0, []

    def _epoch(self, number: int) -> EpochBatches:
        seed, parts = self.config.system.seed, self.state.parts
        return make_epoch(self.corpus.train, self.settings, seed, number, parts)

    def _now(self) -> float:
        """RETURNS (float): Seconds of the training, in all processes those of rank 0."""
        return broadcast(time.monotonic() - self._began, self.device)

    def _read_sums(self) -> None:
        """RAISES (ValueError): If there was no update for too many steps."""
        self.state.sums = self.updater.sums.tolist()
        n_bad = int(self.updater.n_bad)
        if n_bad >= MAX_BAD_STEPS:
            raise self._stopped(f"for {n_bad} steps, {_BAD}")

    def _stopped(self, why: str) -> ValueError:
        last = checkpoints.checkpoint_path(self.output, self._saved_step).name
        return ValueError(
            f"step {self.state.step}: {why}. {last} is the last good checkpoint: continue from it "
            "with --resume and a lower pretraining.optimizer.learn_rate or grad_clip"
        )

    def _ask_for_evaluation(self, at_limit: bool) -> None:
        """Begin the record of an evaluation, and new sums."""
        state = self.state
        state.pending = {**means(state.sums, self.updater.learn_rate), "at_limit": at_limit}
        self.updater.sums.zero_()
        state.sums = self.updater.sums.tolist()
        self._lines.restart(state)

    def _replace_best(self) -> None:
        """Write a model-best that was removed, if this step is the best one, or say so."""
        state, path = self.state, self.output / "model-best"
        if rank() > 0 or not state.best_step or path.exists():
            return
        if state.best_step == state.step:
            self._write_model("best")
        else:
            msg.warn(
                f"{path} was removed, and the weights of the best step ({state.best_step}) are "
                "gone: it is written again after a better evaluation"
            )

    def _evaluate(self, log: Log) -> None:
        """Make the evaluation that is pending, and write it into the checkpoint of this step. After
        a signal, it stays pending."""
        state = self.state
        with self.updater.tf32:
            scores = perplexity(
                self.model,
                self.corpus.dev,
                batch_words=self.settings.batch_words,
                max_words=self.settings.eval_words,
                carry_state=self.settings.carry_state,
                unigram=self.corpus.unigram_log_probabilities(),
                should_stop=self._must_stop,
            )
        if scores is None:
            return
        pending = state.pending
        assert pending is not None
        state.add_record(finite(scores))
        if scores["average"] < state.best or not state.best_step:
            state.best, state.best_step = scores["average"], state.step
            self._write_model("best")
        state.pending, state.evaluated = None, self._now()
        if rank() == 0:
            path = checkpoints.checkpoint_path(self.output, state.step)
            checkpoints.update_state(path, self._checkpoint_state())
            self._write_history()
            # After saving: a logger may fail, such as one that needs a network.
            epoch_words = self.corpus.manifest["n_tokens"]["train"]
            log(state.describe(scores, pending, self.start, self.settings, epoch_words))
            if n_skipped := pending.get("skipped"):
                msg.warn(f"{n_skipped} of the steps since the last evaluation were skipped: {_BAD}")
        self._must_stop()

    def _save(self) -> None:
        """Write a checkpoint and remove old ones. All processes must call it.

        RAISES (ValueError): If a weight is not finite.
        """
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._stopped("weights are NaN or infinite")
        carried = [(all_gather(h, 1), all_gather(c, 1)) for h, c in self._carried]
        self._saved_step = step = self.state.step
        if rank() == 0:
            path = checkpoints.checkpoint_path(self.output, step)
            optimizer = self.updater.optimizer
            checkpoints.save(path, self.model, optimizer, carried, self._checkpoint_state())
            checkpoints.remove_old(self.output, self.settings.keep_checkpoints, step)
        self._saved_at = self._now()

    def _checkpoint_state(self) -> dict[str, Any]:
        return {
            "progress": self.state.to_dict(),
            "config": self.config.to_dict(),
            "bilm": self.model.bilm.config.to_options(),
            "corpus": self.corpus.manifest["sha256"],
            "total_steps": self.updater.schedule.total_steps,
        }

    def _write_model(self, name: str) -> None:
        if rank() == 0:
            path, loss = self.output / f"model-{name}", self.settings.loss
            write_model(path, self.model, loss, self.corpus, self.state.record)

    def _write_history(self) -> None:
        """Write log.jsonl, a record per evaluation."""
        if rank() == 0:
            lines = (json.dumps(record) + "\n" for record in self.state.history)
            with atomic_file(self.output / LOG) as temporary:
                temporary.write_text("".join(lines), encoding="utf8")

    def _must_stop(self) -> bool:
        """RETURNS (bool): Whether a signal has reached any process; all must call it."""
        self._stopping = any_rank(self._signalled, self.device)
        return self._stopping

    def _request_stop(self, number: int, frame: Any) -> None:
        self._signalled = True
