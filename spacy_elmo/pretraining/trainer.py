"""The training loop."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

import torch
from wasabi import msg

from ..bilm import BiLMConfig
from ..bilm.lstm_layer import LayerState
from ..files import atomic_file
from . import checkpoint as checkpoints
from .batches import ContiguousBatches, EpochBatches, make_epoch
from .config import ENDING_SCHEDULES, RunConfig
from .corpus import Corpus
from .distributed import all_gather, any_rank, broadcast, broadcast_weights, rank, world_size
from .export import write_model
from .init_model import build_model
from .loggers import Log
from .optimizer import set_learn_rate
from .perplexity import finite, perplexity
from .signals import STOP_SIGNALS, handle_signals
from .train_state import TrainState, count_steps, last_step, means
from .updater import Updater

MAX_BAD_STEPS = 100  # Steps without an update that end a training.
# Steps between two looks at what the device and other processes did: to look is to wait for them.
LOOK_EVERY = 10
LINE_EVERY = 30  # Seconds between two lines of a run, at least.
LOG = "log.jsonl"
_BAD = "the gradient was NaN or infinite"


class Trainer:
    """One run of a training; `pretrain` makes it. `checkpoint` is what to continue from."""

    def __init__(
        self,
        config: RunConfig,
        output: Path,
        corpus: Corpus,
        device: torch.device,
        checkpoint: Optional[Path] = None,
    ) -> None:
        self.config, self.output, self.corpus, self.device = config, output, corpus, device
        self.settings, self.state = config.pretraining, TrainState()
        self.interrupted = self._signalled = self._stopping = False
        self._carried: list[LayerState] = []
        self._is_new = checkpoint is None
        saved = {} if checkpoint is None else checkpoints.load(checkpoint)
        changes = checkpoints.check_same_training(saved, config, corpus) if saved else {}
        if saved:
            # The model that the training started from is not needed.
            paths = replace(config.paths, init_from=None)
            config = replace(config, paths=paths, bilm=BiLMConfig.from_options(saved["bilm"]))
        # Raises if there are too many rows for the corpus.
        n_batches = len(self._epoch(0))
        total_steps = count_steps(self.settings, n_batches)
        self._last_step = last_step(self.settings, n_batches)
        optimizer = replace(self.settings.optimizer, total_steps=total_steps)
        self.settings = replace(self.settings, optimizer=optimizer)
        torch.manual_seed(config.system.seed)
        self.model, self.origin = build_model(config, corpus)
        self.model.to(device)
        self.model.bilm.lstm.kernel = self.model.output.kernel = config.system.kernel
        broadcast_weights(self.model)
        self.updater = Updater(self.model, self.settings, config.system.seed)
        if saved:
            self._restore(saved, changes)
        self.start = replace(self.state)
        # The last good checkpoint; there may be later ones, which are damaged.
        self._saved_step, self._saved_at = self.state.step, self.state.seconds
        self._line_at = self.state.seconds + LINE_EVERY

    def _restore(self, saved: dict[str, Any], changes: dict[str, tuple[Any, Any]]) -> None:
        checkpoints.restore(saved, self.model, self.updater.optimizer)
        for h, c in saved["carried"]:
            own_h, own_c = (x.chunk(world_size(), 1)[rank()].to(self.device) for x in (h, c))
            self._carried.append((own_h.contiguous(), own_c.contiguous()))
        self.state = TrainState(**saved["progress"])
        self.updater.sums.copy_(torch.tensor(self.state.sums, dtype=torch.float64))
        # Until there is a step, the rate is that of the last one.
        optimizer = self.settings.optimizer
        set_learn_rate(self.updater.optimizer, optimizer, max(0, self.state.step - 1))
        self.origin = f"resumed at step {self.state.step}"
        self.state.changed |= {name: new for name, (_, new) in changes.items()}
        if changes:
            described = (f"{name}: {old} -> {new}" for name, (old, new) in changes.items())
            self.origin += f" with {'; '.join(described)}"
            if optimizer.schedule in ENDING_SCHEDULES:
                self.origin += f"; the schedule ends at step {optimizer.total_steps}"

    def train(self, log: Log) -> None:
        """Train to the end, and write model-last. The logger is called after every step."""
        self._began = time.monotonic() - self.state.seconds
        with handle_signals(self._request_stop, *STOP_SIGNALS):
            if self._is_new:
                self._save()
            self._write_history()  # A kill may have come between a checkpoint and the log.
            if self.state.pending is not None:  # An earlier run was stopped before it.
                self._evaluate(log)
            has_ended = not self._must_stop() and self._take_steps(log)
            if self.state.record is None and not self._stopping:  # It had reached its limits.
                self._ask_for_evaluation(at_limit=not self.state.is_due(self.settings))
                self._evaluate(log)
            is_finished = has_ended and self.state.pending is None
            self.interrupted = self._stopping and not is_finished
            self._write_model("last")
            any_rank(False, self.device)  # Rank 0 has written it.

    def _take_steps(self, log: Log) -> bool:
        """Train until a limit or a signal. RETURNS (bool): Whether it was a limit."""
        state, settings = self.state, self.settings
        for epoch, numbers, is_last in self._remaining_steps():
            state.n_words += self.updater.update(epoch, numbers, state.step, self._carried)[1]
            state.step += 1
            looks = state.step % LOOK_EVERY == 0
            if looks or world_size() == 1:
                state.seconds = self._now()
                self._must_stop()
            is_due, is_end = state.is_due(settings), is_last or state.is_at_limit(settings)
            frequency, minutes = settings.checkpoint_frequency, settings.checkpoint_minutes
            is_checkpoint = is_due or is_end or self._stopping
            is_checkpoint |= 0 < 60 * minutes <= state.seconds - self._saved_at
            is_checkpoint |= frequency > 0 and state.step % frequency == 0
            is_line = state.seconds >= self._line_at
            if is_checkpoint and not looks:
                state.seconds = self._now()
            if looks or is_checkpoint or is_line or self.device.type == "cpu":
                self._read_sums()
            if is_due or is_end:
                self._ask_for_evaluation(at_limit=not is_due)
            if is_checkpoint:
                # Before the evaluation: after a signal, this process may be killed at any moment.
                self._save()
            if state.pending is not None and not self._stopping:
                self._evaluate(log)
            else:
                log(None)
                if is_line and state.pending is None:  # Else its sums are empty.
                    self._print_line()
            if is_end or state.is_out_of_patience(settings) or self._stopping:
                return is_end or state.is_out_of_patience(settings)
        return True

    def _print_line(self) -> None:
        """Print a line between evaluations, which may be far apart."""
        state, rate = self.state, self.updater.learn_rate
        loss = means(state.sums, rate)["loss"] or math.nan
        speed, left = state.pace(self.start, self.settings, self._epoch_words)
        of = f" of {self._last_step:,}" if self._last_step else ""
        eta = "" if left is None else f", {timedelta(seconds=int(left))} left"
        line = f"step {state.step:,}{of}: loss {loss:.3f}, rate {rate:.3g}, {speed:,.0f} words/s"
        if rank() == 0:
            print(line + eta, flush=True)
        self._line_at = state.seconds + LINE_EVERY

    def _evaluation_lines(self) -> Callable[[int, int], None]:
        """RETURNS (Callable): The `progress` of an evaluation, which may take minutes."""
        done, line_at = 0, time.monotonic() + LINE_EVERY

        def progress(n: int, total: int) -> None:
            nonlocal done, line_at
            done = min(done + n, total)
            if rank() == 0 and time.monotonic() >= line_at:
                step = f"step {self.state.step:,}"
                print(f"{step}: evaluated {done:,} of {total:,} words", flush=True)
                line_at = time.monotonic() + LINE_EVERY

        return progress

    def _remaining_steps(self) -> Iterator[tuple[EpochBatches, range, bool]]:
        """YIELDS (tuple): An epoch, the batches of one step, whether the data ends with it."""
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
                yield epoch, range(first, state.batch), is_last_epoch and state.batch == len(epoch)
            state.epoch += 1
            state.batch = 0

    def _epoch(self, number: int) -> EpochBatches:
        return make_epoch(self.corpus.train, self.settings, self.config.system.seed, number)

    @property
    def _epoch_words(self) -> int:
        return self.corpus.manifest["n_tokens"]["train"]

    def _now(self) -> float:
        # Seconds of the training, in all processes those of rank 0.
        return broadcast(time.monotonic() - self._began, self.device)

    def _read_sums(self) -> None:
        self.state.sums = self.updater.sums.tolist()
        n_bad = int(self.updater.n_bad)
        if n_bad >= MAX_BAD_STEPS:
            raise self._stopped(f"for {n_bad} steps, {_BAD}")

    def _stopped(self, why: str) -> ValueError:
        last = checkpoints.checkpoint_path(self.output, self._saved_step).name
        how = "continue from it with --resume and a lower learn_rate or grad_clip"
        return ValueError(
            f"step {self.state.step}: {why}. {last} is the last good checkpoint: {how}"
        )

    def _ask_for_evaluation(self, at_limit: bool) -> None:
        """Begin the record of an evaluation, and new sums."""
        state = self.state
        state.pending = {"step": state.step, "epoch": state.epoch, "words": state.n_words}
        state.pending |= {"seconds": round(state.seconds, 1), "at_limit": at_limit}
        state.pending |= means(state.sums, self.updater.learn_rate)
        if state.changed:
            state.pending["changed"], state.changed = state.changed, {}
        self.updater.sums.zero_()
        state.sums = self.updater.sums.tolist()

    def _evaluate(self, log: Log) -> None:
        """Make the pending evaluation, and write it into this step's checkpoint, unless a signal
        comes."""
        state, settings = self.state, self.settings
        with self.updater.tf32():
            scores = perplexity(
                self.model,
                self.corpus.dev,
                batch_words=settings.batch_words,
                max_words=settings.eval_words,
                carry_state=settings.carry_state,
                unigram=self.corpus.unigram_log_probabilities(),
                should_stop=self._must_stop,
                progress=self._evaluation_lines(),
            )
        if scores is None:
            return
        record = {**(state.pending or {}), **finite(scores)}
        state.history.append(record)
        if scores["average"] < state.best or not state.best_step:
            state.best, state.best_step = scores["average"], state.step
            self._write_model("best")
        state.pending, state.evaluated = None, self._now()
        self._line_at = state.evaluated + LINE_EVERY
        self._save()
        self._write_history()
        if rank() == 0:
            # After saving: a logger may fail, such as one that needs a network.
            log(state.describe(scores, self.start, settings, self._epoch_words))
            if n := record["skipped"]:
                msg.warn(f"{n} of the steps since the last evaluation were skipped: {_BAD}")
        self._must_stop()

    def _save(self) -> None:
        """Write a checkpoint and remove old ones. All processes must call it."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._stopped("weights are NaN or infinite")
        carried = [(all_gather(h, 1), all_gather(c, 1)) for h, c in self._carried]
        self._saved_step = step = self.state.step
        if rank() == 0:
            state = {
                "progress": vars(self.state),
                "config": self.config.to_dict(),
                "bilm": self.model.bilm.config.to_options(),
                "corpus": self.corpus.identity,
            }
            path = checkpoints.checkpoint_path(self.output, step)
            checkpoints.save(path, self.model, self.updater.optimizer, carried, state)
            checkpoints.remove_old(self.output, self.settings.keep_checkpoints, step)
        self._saved_at = self._now()

    def _write_model(self, name: str) -> None:
        path, loss = self.output / f"model-{name}", self.settings.loss
        if rank() == 0:
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
