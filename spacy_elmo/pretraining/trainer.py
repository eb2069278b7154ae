"""The training loop, from a config and a corpus to a biLM."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

import numpy
import torch
from torch import nn

from ..bilm import BiLMConfig
from ..bilm.lstm_function import LayerState
from ..bilm.mixed_precision import autocast
from ..files import atomic_file, exclusive_lock
from . import checkpoint as checkpoints
from .adagrad import update_rows
from .batches import Batch, CarriedRows, Epoch, SentenceBatches, plan_epoch
from .config import OptimizerConfig, RunConfig, differences
from .corpus import open_corpus
from .distributed import (
    any_process,
    barrier,
    from_first,
    gathered,
    rank,
    summed,
    union,
    world_size,
)
from .initial import build_model
from .losses import Softmax
from .perplexity import Perplexity, perplexity


@dataclass
class Progress:
    """Where a training is; all of it is in a checkpoint.

    step, epoch, batch (int): Steps taken, the epoch, and the batches of it that were read.
    n_words (int): Words read.
    seconds (float): Time spent, in all runs.
    best (float): The lowest average perplexity, at step `best_step`.
    history (list[dict]): A record per evaluation. `at_limit` in it says that the evaluation was not
        due, but for the end of a run. Perplexities that are infinite are None.
    pending (Optional[dict]): If the evaluation of this step is still to be made, what is known of
        its record.
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


# Called after every step with the progress, the loss (mean nats per word) or None while it is not
# looked at, and the perplexities if they were measured.
Report = Callable[[Progress, Optional[float], Optional[Perplexity]], None]
# Called with "best" or "last".
Export = Callable[["Trainer", str], None]

# Steps between looks at the loss and at the clock.
_LOOK_FREQUENCY = 10


class _AskedToStopError(Exception):
    """A signal came during an evaluation."""


class Trainer:
    """Trains a language model, and can go on where it was killed.

    config (RunConfig): What to train, and how.
    output (Path): The folder of the run.
    device (str): "cpu", "cuda" or "cuda:1".
    resume (bool): Go on from the last complete checkpoint.
    RAISES (ValueError): If the output is in use or holds a run that is not to be resumed, if the
        config is another one than that of the run, or the corpus has changed.
    """

    def __init__(
        self, config: RunConfig, output: Path, *, device: str = "cpu", resume: bool = False
    ) -> None:
        if config.corpus is None:
            raise ValueError("no corpus: give --paths.corpus, a folder from `spacy elmo prepare`")
        self.config = config
        self.output = output
        self.corpus = open_corpus(config.corpus)
        self.progress = Progress()
        self._found = checkpoints.all_checkpoints(output)
        if not resume:
            _check_empty(output)
        # Settings that do not go together should say so before there is anything in the folder.
        n_batches = len(self._epoch(0))
        saved = self._load(self._found) if self._found else None
        torch.manual_seed(config.seed)
        if saved is not None and config.init_from is not None and "bilm" in saved.state:
            # All that came from the model to begin with is in the checkpoint.
            config = replace(
                config, init_from=None, bilm=BiLMConfig.from_options(saved.state["bilm"])
            )
        self.model, self.origin = build_model(config, self.corpus)
        self.model.to(device)
        self.optimizer = build_optimizer(self.model, config.pretraining.optimizer)
        self._optimizer_config = config.pretraining.optimizer
        if not self._optimizer_config.total_steps:
            n_steps = self._n_steps(n_batches)
            self._optimizer_config = replace(self._optimizer_config, total_steps=n_steps)
        self._stop = False
        self.interrupted = False
        self._data_ends = False
        self._has_checkpoint = bool(self._found)
        self._carried: list[LayerState] = []
        # Of the last good checkpoint; there may be later ones, which are damaged.
        self._saved_step = 0
        self._first_bad_step = torch.full((), -1, device=device)
        if saved is not None:
            self._restore(saved)
        # The output layer, if a step reads and updates only some rows of it.
        layer, by_rows = self.model.output, isinstance(self.optimizer, torch.optim.Adagrad)
        self._row_layer = (
            layer if isinstance(layer, Softmax) and layer.reads_rows and by_rows else None
        )
        self._parallel: nn.Module = self.model
        if world_size() > 1:
            if self._row_layer is not None:
                # `_step` sums the gradients of these rows.
                nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                    self.model, [f"output.{name}" for name in layer.state_dict()]
                )
            self._parallel = nn.parallel.DistributedDataParallel(self.model)

    def train(self, report: Optional[Report] = None, export: Optional[Export] = None) -> Progress:
        """Train until a limit is reached, or a signal (SIGTERM, SIGINT) asks to stop: then a
        checkpoint is saved first, and `interrupted` is set. An evaluation does not keep it waiting:
        the next run makes up for it.

        report (Optional[Callable]): See `Report`.
        export (Optional[Callable]): Writes a model for use; see `Export`.
        RETURNS (Progress): Where the training is.
        RAISES (ValueError): If the loss is not finite; the last good checkpoint is kept.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        lock = _only_run_in(self.output) if rank() == 0 else contextlib.nullcontext()
        with lock, self._stopping_on_signals():
            if rank() == 0:
                checkpoints.clear(self.output)
            barrier()
            if self._found:
                found_now = checkpoints.all_checkpoints(self.output)
                if found_now != self._found:
                    # The run before was still stopping when this one was made.
                    self._restore(self._load(found_now))
                self._found = []
            if rank() == 0:
                if not self._has_checkpoint:
                    # Another run may have begun there since this one was made.
                    _check_empty(self.output)
                    self.save()
                # A kill may have come between a checkpoint and the log.
                write_history(self.output, self.progress)
            self._has_checkpoint = True
            barrier()
            if self.progress.pending is not None:
                # A kill or a signal has kept an earlier run from it.
                self._make_evaluation(report, export)
            self.interrupted = self._must_stop()
            if not self.interrupted:
                self._take_steps(report, export)
            if not (self.interrupted or self._is_evaluated()):
                # A resumed run that had reached its limits.
                self.progress.pending = {"loss": None, "at_limit": not self._is_due()}
                self.interrupted = self._make_evaluation(report, export) is None
            if export is not None and rank() == 0:
                export(self, "last")
            barrier()
        return self.progress

    def _take_steps(self, report: Optional[Report], export: Optional[Export]) -> None:
        """Train until a limit or a signal; `interrupted` is set if something is left to do."""
        settings, progress = self.config.pretraining, self.progress
        start = time.monotonic() - progress.seconds
        for epoch, numbers in self._steps():
            loss = self._step(epoch, numbers)
            seconds = time.monotonic() - start
            step = progress.step
            evaluates = self._is_due()
            saves = step % settings.checkpoint_frequency == 0
            # Looking at the loss waits for the device, and processes must agree.
            looks = world_size() == 1 or evaluates or saves or step % _LOOK_FREQUENCY == 0
            if looks:
                progress.seconds = from_first(seconds, self.device)
            limit = self._limit_is_reached()
            stop = looks and self._must_stop()
            value = None
            if limit or stop or evaluates or saves or step % _LOOK_FREQUENCY == 0:
                value = float(summed(loss))
                self._check_finite()
            if limit or evaluates:
                progress.pending = {"loss": value, "at_limit": not evaluates}
            if limit or stop or evaluates or saves:
                # Before the evaluation: a run that is killed during it makes up for it.
                self.save()
            if progress.pending is not None and not stop:
                if self._make_evaluation(report, export) is not None:
                    limit = limit or self._has_no_patience_left()
                stop = self._must_stop()
            elif report is not None and rank() == 0:
                report(progress, value, None)
            if limit or stop:
                self.interrupted = stop and (progress.pending is not None or not limit)
                break

    def _make_evaluation(
        self, report: Optional[Report], export: Optional[Export]
    ) -> Optional[Perplexity]:
        """Make the evaluation that is pending, and note it in the checkpoint of this step.

        RETURNS (Optional[Perplexity]): None if a signal came first: then it stays pending.
        """
        progress = self.progress
        assert progress.pending is not None
        try:
            found = self._measure(progress.pending, self._raise_if_asked)
        except _AskedToStopError:
            return None
        if found.average < progress.best or not progress.best_step:
            progress.best, progress.best_step = found.average, progress.step
            if export is not None and rank() == 0:
                export(self, "best")
        loss = progress.pending["loss"]
        progress.pending = None
        if rank() == 0:
            path = checkpoints.path_of(self.output, progress.step)
            checkpoints.update_state(path, self._state())
            write_history(self.output, progress)
            # After saving: a logger may fail, such as one that needs a network.
            if report is not None:
                report(progress, loss, found)
        return found

    def _must_stop(self) -> bool:
        """RETURNS (bool): Whether a signal has asked any process to stop; the same in all."""
        return any_process(self._stop, self.device)

    def _raise_if_asked(self) -> None:
        if self._must_stop():
            raise _AskedToStopError

    def _is_due(self) -> bool:
        """RETURNS (bool): Whether it is an evaluation's turn."""
        return self.progress.step % self.config.pretraining.eval_frequency == 0

    def _is_evaluated(self) -> bool:
        return any(record["step"] == self.progress.step for record in self.progress.history)

    @property
    def device(self) -> torch.device:
        return self.model.bilm.device

    def _n_steps(self, n_batches: int) -> int:
        """RETURNS (int): How many steps there will be, about, with so many batches per epoch."""
        settings = self.config.pretraining
        per_epoch = -(-n_batches // settings.accumulate_gradient)
        found = [n for n in (settings.max_steps, settings.max_epochs * per_epoch) if n]
        if not found and self._optimizer_config.schedule == "cosine":
            raise ValueError(
                "pretraining.optimizer.total_steps = 0 needs max_steps or max_epochs to know where "
                "the cosine schedule ends"
            )
        return min(found, default=0)

    def _check_finite(self) -> None:
        """Called before every checkpoint, so that none holds what a bad step has made."""
        step = int(self._first_bad_step)
        if step >= 0:
            last = checkpoints.path_of(self.output, self._saved_step).name
            raise ValueError(
                f"step {step}: the loss or its gradient is NaN or infinite. Lower the learning "
                f"rate or clip gradients (pretraining.optimizer) and start again; {last} is the "
                "last good checkpoint"
            )

    def evaluate(self) -> Perplexity:
        """Measure perplexities on the held-out part, and note them in the history."""
        return self._measure({"loss": None, "at_limit": False})

    def _measure(
        self, about: dict[str, Any], before_batch: Optional[Callable[[], None]] = None
    ) -> Perplexity:
        settings, progress = self.config.pretraining, self.progress
        self.model.eval()
        try:
            found = perplexity(
                self.model,
                self.corpus,
                self.corpus.dev,
                batch_words=settings.batch_words,
                max_words=settings.eval_words,
                carry_state=settings.carry_state,
                counts=self.corpus.counts,
                before_batch=before_batch,
            )
        finally:
            self.model.train()
        progress.history.append(
            {
                "step": progress.step,
                "epoch": progress.epoch,
                "words": progress.n_words,
                "seconds": round(progress.seconds, 1),
                **about,
                **found.to_dict(),
            }
        )
        return found

    def save(self) -> None:
        """Write a checkpoint and remove old ones. All processes must call it."""
        carried = [(gathered(h, 1), gathered(c, 1)) for h, c in self._carried]
        self._saved_step = self.progress.step
        if rank() > 0:
            return
        path = checkpoints.path_of(self.output, self.progress.step)
        checkpoints.save(path, self.model, self.optimizer, carried, self._state())
        checkpoints.clean(self.output, self.config.pretraining.keep_checkpoints, self.progress.step)

    def _state(self) -> dict[str, Any]:
        """RETURNS (dict): What a checkpoint holds besides tensors, as JSON can hold it."""
        best = None if math.isinf(self.progress.best) else self.progress.best
        return {
            "progress": {**vars(self.progress), "best": best},
            "config": self.config.to_dict(),
            "bilm": self.model.bilm.config.to_options(),
            "corpus": self.corpus.manifest["sha256"],
            "total_steps": self._optimizer_config.total_steps,
        }

    def _steps(self) -> Iterator[tuple[Epoch, range]]:
        """From the progress on: an epoch, and as many batches of it as a step accumulates."""
        settings, progress = self.config.pretraining, self.progress
        if self._limit_is_reached() or self._has_no_patience_left():
            return  # A run that has ended is resumed.
        while not settings.max_epochs or progress.epoch < settings.max_epochs:
            epoch = self._epoch(progress.epoch)
            if progress.batch == 0 and isinstance(epoch, CarriedRows):
                self._carried = self.model.new_states(epoch.n_rows // world_size())
            while progress.batch < len(epoch):
                first = progress.batch
                progress.batch = min(first + settings.accumulate_gradient, len(epoch))
                is_last_epoch = progress.epoch + 1 == settings.max_epochs
                self._data_ends = is_last_epoch and progress.batch == len(epoch)
                yield epoch, range(first, progress.batch)
            progress.epoch += 1
            progress.batch = 0

    def _epoch(self, number: int) -> Epoch:
        settings, seed, train = self.config.pretraining, self.config.seed, self.corpus.train
        n_vocabulary = self.corpus.n_vocabulary
        if not settings.carry_state:
            plan = plan_epoch(train.lengths, settings.batch_words, seed, number)
            return SentenceBatches(train, plan, n_vocabulary)
        n_rows = settings.batch_words // settings.unroll_steps
        if n_rows % world_size():
            raise ValueError(
                f"the {n_rows} rows of a batch (batch_words // unroll_steps) cannot be shared out "
                f"to {world_size()} processes: give another pretraining.batch_words"
            )
        order = numpy.random.default_rng((seed, number)).permutation(len(train))
        return CarriedRows(train, order, n_rows, settings.unroll_steps, n_vocabulary)

    def _step(self, epoch: Epoch, numbers: Sequence[int]) -> torch.Tensor:
        """One update. RETURNS (Tensor): The mean loss per prediction, in nats."""
        settings, progress = self.config.pretraining, self.progress
        set_learn_rate(self.optimizer, self._optimizer_config, progress.step)
        random = numpy.random.default_rng((self.config.seed, progress.step))
        # Dropout depends on the step alone, so that a resumed run draws what the first one drew.
        torch.manual_seed(hash((self.config.seed, progress.step, rank())) % 2**63)
        n_words, n_targets = map(sum, zip(*(epoch.size(number) for number in numbers)))
        total = torch.zeros((), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        batches = [self._read(epoch, number) for number in numbers]
        samples = self.model.output.draw(random)
        rows = None
        if self._row_layer is not None and samples is not None:
            words = [samples.words, *(batch.targets.ravel() for batch, _ in batches)]
            rows = self._row_layer.gather(union(numpy.concatenate(words)))
        for at, (batch, share) in enumerate(batches, 1):
            with (
                self._without_sum(at < len(batches)),
                autocast(self.device, settings.mixed_precision),
            ):
                states = self._carried or None
                loss = self._parallel(batch, self.corpus, samples, states, rows) / (2 * n_targets)
            (loss * share).backward()
            total += loss.detach() * bool(share)
        parts = {} if rows is None else rows.parts
        for part in parts.values():
            assert part.grad is not None
            summed(part.grad).div_(world_size())
        limit = settings.optimizer.grad_clip or math.inf
        norm = nn.utils.clip_grad_norm_([parts.get(p, p) for p in self.model.parameters()], limit)
        is_bad = ~torch.isfinite(total + norm) & (self._first_bad_step < 0)
        self._first_bad_step.masked_fill_(is_bad, progress.step + 1)
        self.optimizer.step()
        if rows is not None:
            update_rows(self.optimizer, rows)
        self.model.bilm.invalidate()
        progress.step += 1
        progress.n_words += n_words
        return total

    def _read(self, epoch: Epoch, number: int) -> tuple[Batch, int]:
        """RETURNS (tuple): What this process reads of a batch, and the factor of its loss."""
        batch = epoch.read(number, rank(), world_size())
        if batch is not None:
            return batch, world_size()
        # Every process must take part in the sum of gradients, even if it has no sentence.
        whole = epoch.read(number)
        assert whole is not None
        return whole, 0

    def _without_sum(self, skip: bool) -> contextlib.AbstractContextManager:
        """Gradients that are accumulated are summed over the processes only once."""
        if skip and isinstance(self._parallel, nn.parallel.DistributedDataParallel):
            return self._parallel.no_sync()
        return contextlib.nullcontext()

    def _limit_is_reached(self) -> bool:
        settings, progress = self.config.pretraining, self.progress
        minutes = progress.seconds / 60
        return (
            self._data_ends
            or bool(settings.max_steps and progress.step >= settings.max_steps)
            or bool(settings.max_minutes and minutes >= settings.max_minutes)
        )

    def _has_no_patience_left(self) -> bool:
        patience, progress = self.config.pretraining.patience, self.progress
        # An evaluation at a limit comes before its turn.
        n_since = sum(
            record["step"] > progress.best_step and not record.get("at_limit")
            for record in progress.history
        )
        return bool(patience and n_since >= patience)

    def _load(self, found: list[Path]) -> checkpoints.Checkpoint:
        """RETURNS (Checkpoint): The last one that can be used.
        RAISES (ValueError): If there is none, or it is not of this training."""
        for path in reversed(found):
            try:
                saved = checkpoints.load(path)
                break
            except ValueError as error:
                warnings.warn(f"{error}; going back to the one before", stacklevel=3)
        else:
            raise ValueError(f"no checkpoint in {self.output} can be used")
        if changed := differences(saved.state["config"], self.config.to_dict()):
            raise ValueError(
                "cannot resume with another config. It differs in " + "; ".join(changed)
            )
        if saved.state["corpus"] != self.corpus.manifest["sha256"]:
            raise ValueError(
                f"cannot resume: the corpus {self.corpus.folder} is not the one the run began with"
            )
        return saved

    def _restore(self, saved: checkpoints.Checkpoint) -> None:
        checkpoints.restore(saved, self.model, self.optimizer)
        progress = saved.state["progress"]
        best = math.inf if progress["best"] is None else progress["best"]
        self.progress = Progress(**{**progress, "best": best})
        self._saved_step = self.progress.step
        self.origin = f"resumed at step {self.progress.step}"
        if not self.config.pretraining.optimizer.total_steps:
            # Other limits do not bend a schedule that has begun.
            self._optimizer_config = replace(
                self._optimizer_config,
                total_steps=saved.state.get("total_steps", self._optimizer_config.total_steps),
            )
        self._carried = [
            (self._my_rows(h), self._my_rows(c)) for h, c in checkpoints.carried_states(saved)
        ]

    def _my_rows(self, value: torch.Tensor) -> torch.Tensor:
        return value.chunk(world_size(), 1)[rank()].to(self.device).contiguous()

    @contextlib.contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            self._stop = True

        self._stop = False
        # Only the main thread may install handlers.
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _only_run_in(output: Path) -> contextlib.AbstractContextManager:
    """RAISES (ValueError): If another process trains in this folder."""
    return exclusive_lock(output / ".lock", f"another run is using {output}: give another folder")


def _check_empty(output: Path) -> None:
    if found := checkpoints.all_checkpoints(output):
        raise ValueError(
            f"{output} holds a run already ({found[-1].name}): go on with it with --resume, or "
            "give another folder"
        )


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if config.name == "adagrad":
        return torch.optim.Adagrad(
            parameters,
            lr=config.learn_rate,
            initial_accumulator_value=config.initial_accumulator,
        )
    return torch.optim.AdamW(
        parameters,
        lr=config.learn_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def set_learn_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig, step: int) -> None:
    """Set the rate of a step, counted from 0."""
    factor = 1.0
    after = step + 1 - config.warmup_steps
    if after <= 0:
        factor = (step + 1) / config.warmup_steps
    elif config.schedule == "cosine":
        part = min(1.0, after / max(1, config.total_steps - config.warmup_steps))
        factor = 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2
    elif config.schedule == "inverse_sqrt":
        start = max(1, config.warmup_steps)
        factor = math.sqrt(start / max(start, step + 1))
    for group in optimizer.param_groups:
        group["lr"] = config.learn_rate * factor


def write_history(output: Path, progress: Progress) -> None:
    """Write `log.jsonl`, a record per evaluation."""
    lines = (json.dumps(record) + "\n" for record in progress.history)
    with atomic_file(output / "log.jsonl") as temporary:
        temporary.write_text("".join(lines), encoding="utf8")
