"""The training loop, from a config and a corpus to a biLM."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import spacy
import torch
from thinc.api import Config
from wasabi import msg

from ..bilm import BiLMConfig
from ..bilm.lstm_layer import LayerState
from ..files import atomic_file, exclusive_lock
from . import checkpoint as checkpoints
from .batches import ContiguousBatches, EpochBatches, make_epoch
from .config import RunConfig
from .corpus import Corpus, open_corpus
from .distributed import all_gather, all_reduce_sum, any_rank, barrier, broadcast, rank, world_size
from .export import write_model
from .init_model import build_model
from .loggers import Log, resolve_logger
from .perplexity import finite, perplexity
from .signals import handle_signals
from .train_state import TrainState, count_steps
from .updater import Updater

# Steps between looks at the loss and the clock, which wait for the device.
SYNC_EVERY = 10
# What a run leaves besides its checkpoints.
_LOG = "log.jsonl"
_RESULTS = (_LOG, "model-best", "model-last")


def pretrain(
    config: RunConfig, output: Path, *, device: str = "cpu", resume: bool = False
) -> Trainer:
    """Train until a limit is reached, or a signal (SIGTERM, SIGINT) asks to stop. Then a checkpoint
    is written first, and an evaluation that is due is left to the next run.

    config (RunConfig): What to train, and how.
    output (Path): The folder of the run: checkpoints, log.jsonl, model-best and model-last.
    device (str): "cpu", "cuda" or "cuda:1".
    resume (bool): Continue from the last complete checkpoint, if there is one.
    RETURNS (Trainer): Its `state` says how far it got, `interrupted` whether a signal came.
    RAISES (ValueError): If the folder is in use, or has a run that is not to be resumed or that
        has another config or corpus, or no checkpoints any more; or if the loss is not finite (the
        last good checkpoint stays).
    """
    if config.paths.corpus is None:
        raise ValueError("no corpus: give --paths.corpus, a folder from `spacy elmo prepare`")
    set_up_logger = resolve_logger(config.pretraining.logger)
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    in_use = f"another run is using {output}: give another folder"
    try:
        with exclusive_lock(output / ".lock", in_use) if rank() == 0 else contextlib.nullcontext():
            if rank() == 0:
                checkpoints.clear(output)
            barrier()
            paths = checkpoints.all_checkpoints(output)
            if paths and not resume:
                raise ValueError(
                    f"{output} holds a run already ({paths[-1].name}): continue it with --resume, "
                    "or give another folder"
                )
            if not paths and any((output / name).exists() for name in _RESULTS):
                raise ValueError(
                    f"{output} holds a run whose checkpoints were removed, so that it cannot go "
                    "on: give another folder (with --paths.init_from, a training begins with the "
                    "weights of a model), or remove this one"
                )
            checkpoint = checkpoints.find_last(output)
            corpus = open_corpus(config.paths.corpus)
            trainer = Trainer(config, output, corpus, torch.device(device), checkpoint)
            if rank() > 0:
                trainer.train(lambda info: None)
                return trainer
            msg.info(trainer.description)
            nlp = spacy.blank(corpus.tokenization.lang)
            settings = {name: x for name, x in config.to_dict().items() if x is not None}
            nlp.config = Config(nlp.config).merge(settings)  # Loggers interpolate it.
            log, finalize = set_up_logger(nlp, sys.stdout, sys.stderr)
            try:
                trainer.train(log)
            finally:
                finalize()
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                output.rmdir()  # It is empty if the settings were wrong.
    return trainer


class Trainer:
    """One run of a training; `pretrain` makes it.

    config (RunConfig): What to train, and how.
    output (Path): The folder of the run, which no other process uses.
    corpus (Corpus): The corpus.
    device (torch.device): The device.
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
        self.config = config
        self.settings = config.pretraining
        self.output = output
        self.corpus = corpus
        self.device = device
        self.state = TrainState()
        self.interrupted = False
        self._unigram = corpus.unigram_log_probabilities()
        self._stop_requested = False
        self._carried: list[LayerState] = []
        saved = {} if checkpoint is None else checkpoints.read_state(checkpoint)
        if saved:
            checkpoints.check_same_training(saved, config, corpus)
        n_batches = len(self._epoch(0))  # Raises if there are too many rows for the corpus.
        torch.manual_seed(config.system.seed)
        model_config = config
        if "bilm" in saved:
            # The model that the training started from is not needed.
            paths = replace(config.paths, init_from=None)
            bilm = BiLMConfig.from_options(saved["bilm"])
            model_config = replace(config, paths=paths, bilm=bilm)
        self.model, self.origin = build_model(model_config, corpus)
        self.model.to(device)
        self.model.bilm.lstm.kernel = self.model.output.kernel = config.system.kernel
        self.updater = Updater(self.model, self.settings, config.system.seed)
        if checkpoint is not None:
            self._restore(checkpoint, saved)
        optimizer = self.settings.optimizer
        # A resumed run keeps the schedule's length, even if the limits have changed since.
        total_steps = optimizer.total_steps or saved.get("total_steps", 0)
        total_steps = total_steps or count_steps(self.settings, n_batches)
        self.updater.schedule = replace(optimizer, total_steps=total_steps)
        # Where this run begins.
        self._is_new, self.start = checkpoint is None, replace(self.state)
        # The last good checkpoint; there may be later ones, which are damaged.
        self._saved_step = self.state.step

    def _restore(self, checkpoint: Path, saved: dict[str, Any]) -> None:
        carried = checkpoints.restore(checkpoint, self.model, self.updater.optimizer)
        self.state = TrainState.from_dict(saved["progress"])
        self.origin = f"resumed at step {self.state.step}"
        own_rows = [[x.chunk(world_size(), 1)[rank()] for x in pair] for pair in carried]
        self._carried = [
            (h.to(self.device).contiguous(), c.to(self.device).contiguous()) for h, c in own_rows
        ]

    @property
    def description(self) -> str:
        n_parameters = sum(p.numel() for p in self.model.parameters())
        processes = "1 process" if world_size() == 1 else f"{world_size()} processes"
        return f"{n_parameters:,} parameters on {self.device}, {processes}; {self.origin}"

    def train(self, log: Log) -> None:
        """Train to the end, and write model-last.

        log (Callable): The logger, called after every step as spaCy's trainer calls its loggers.
        """
        with handle_signals(self._request_stop, signal.SIGTERM, signal.SIGINT):
            if self._is_new:
                self._save()
            # A kill may have come between a checkpoint and the log.
            self._write_history()
            barrier()
            if self.state.pending is not None:
                # An earlier run was stopped before it.
                self._evaluate(log)
            self.interrupted = self._must_stop()
            if not self.interrupted:
                self._take_steps(log)
            if self.state.record is None and not self.interrupted:
                # A resumed run that had reached its limits.
                at_limit = not self.state.is_due(self.settings)
                self.state.pending = {"loss": None, "at_limit": at_limit}
                self.interrupted = not self._evaluate(log)
            self._write_model("last")
            barrier()

    def _take_steps(self, log: Log) -> None:
        """Train until a limit or a signal; `interrupted` is set if something is left to do."""
        state = self.state
        start = time.monotonic() - state.seconds
        for epoch, numbers, is_last in self._remaining_steps():
            share, n_words = self.updater.update(epoch, numbers, state.step, self._carried)
            state.step += 1
            state.n_words += n_words
            is_due = state.is_due(self.settings)
            saves = state.step % self.settings.checkpoint_frequency == 0
            syncs = is_due or saves or state.step % SYNC_EVERY == 0
            stop = False
            if syncs or world_size() == 1:
                state.seconds = broadcast(time.monotonic() - start, self.device)
                stop = self._must_stop()
            limit = is_last or state.is_at_limit(self.settings)
            loss = None
            if syncs or limit or stop:
                loss = float(all_reduce_sum(share))
                self._check_finite()
            if is_due or limit:
                state.pending = {"loss": loss, "at_limit": not is_due}
            if is_due or saves or limit or stop:
                # Before the evaluation: after a signal, this process may be killed at any moment.
                self._save()
            if state.pending is not None and not stop:
                if self._evaluate(log):
                    limit = limit or state.is_out_of_patience(self.settings)
                stop = self._must_stop()
            elif rank() == 0:
                log(None)
            if limit or stop:
                self.interrupted = stop and (state.pending is not None or not limit)
                break

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
            state.batch = 0

    def _epoch(self, number: int) -> EpochBatches:
        return make_epoch(self.corpus.train, self.settings, self.config.system.seed, number)

    def _check_finite(self) -> None:
        """Called before every checkpoint, so that none has the weights of a bad step."""
        step = int(self.updater.first_bad_step)
        if step >= 0:
            last = checkpoints.checkpoint_path(self.output, self._saved_step).name
            raise ValueError(
                f"step {step}: the loss or its gradient is NaN or infinite. Lower the learning "
                f"rate or clip gradients (pretraining.optimizer) and start again; {last} is the "
                "last good checkpoint"
            )

    def _evaluate(self, log: Log) -> bool:
        """Make the evaluation that is pending, and write it into the checkpoint of this step.

        RETURNS (bool): False if a signal came first: then it stays pending.
        """
        state = self.state
        scores = perplexity(
            self.model,
            self.corpus.dev,
            batch_words=self.settings.batch_words,
            max_words=self.settings.eval_words,
            carry_state=self.settings.carry_state,
            unigram=self._unigram,
            should_stop=self._must_stop,
        )
        if scores is None:
            return False
        assert state.pending is not None
        loss = state.pending["loss"]
        counts = {"step": state.step, "epoch": state.epoch, "words": state.n_words}
        seconds = round(state.seconds, 1)
        state.history.append({**counts, "seconds": seconds, **state.pending, **finite(scores)})
        if scores["average"] < state.best or not state.best_step:
            state.best, state.best_step = scores["average"], state.step
            self._write_model("best")
        state.pending = None
        if rank() == 0:
            path = checkpoints.checkpoint_path(self.output, state.step)
            checkpoints.update_state(path, self._checkpoint_state())
            self._write_history()
            # After saving: a logger may fail, such as one that needs a network.
            epoch_words = self.corpus.manifest["n_tokens"]["train"]
            log(state.describe(scores, loss, self.start, self.settings, epoch_words))
        return True

    def _save(self) -> None:
        """Write a checkpoint and remove old ones. All processes must call it."""
        carried = [(all_gather(h, 1), all_gather(c, 1)) for h, c in self._carried]
        self._saved_step = step = self.state.step
        if rank() > 0:
            return
        path = checkpoints.checkpoint_path(self.output, step)
        optimizer = self.updater.optimizer
        checkpoints.save(path, self.model, optimizer, carried, self._checkpoint_state())
        checkpoints.remove_old(self.output, self.settings.keep_checkpoints, step)

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
            with atomic_file(self.output / _LOG) as temporary:
                temporary.write_text("".join(lines), encoding="utf8")

    def _must_stop(self) -> bool:
        """RETURNS (bool): Whether a signal has reached any process."""
        return any_rank(self._stop_requested, self.device)

    def _request_stop(self, number: int, frame: Any) -> None:
        self._stop_requested = True
