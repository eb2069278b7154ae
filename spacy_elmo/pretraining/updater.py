"""One step of a training: the gradients of some batches, and the update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy
import torch
from torch import nn

from ..bilm.kernels import load_kernels
from ..bilm.lstm_layer import LayerState
from ..bilm.mixed_precision import autocast, usable_mixed_precision
from .batches import Batch, EpochBatches
from .config import OptimizerConfig, PretrainingConfig
from .distributed import all_gather_unique, all_reduce_sum, rank, world_size
from .language_model import LanguageModel
from .losses import Samples
from .optimizer import build_optimizer, set_learn_rate, update_rows

TRITON_ADAGRAD = f"{__package__}.triton_adagrad"


class Updater:
    """Updates a model. With several processes, each has one, and computes its share of each batch.

    model (LanguageModel): The model, on its device.
    settings (PretrainingConfig): How to train.
    seed (int): Decides dropout and samples, together with the number of the step.

    Attributes: `schedule`, the OptimizerConfig whose learning rates hold; `first_bad_step`, the
    number (from 1) of the first step whose loss or gradient was not finite, else -1, as a tensor:
    reading it waits for the device.
    """

    def __init__(self, model: LanguageModel, settings: PretrainingConfig, seed: int) -> None:
        mixed_precision = usable_mixed_precision(settings.mixed_precision, model.bilm.device)
        self.model = model
        self.settings = replace(settings, mixed_precision=mixed_precision)
        self.seed = seed
        self.schedule: OptimizerConfig = settings.optimizer
        self.optimizer = build_optimizer(model, settings.optimizer, mixed_precision)
        self.first_bad_step = torch.full((), -1, device=model.bilm.device)
        # Whether a step reads and updates only some rows of the output layer.
        self._has_rows = model.output.reads_rows and settings.optimizer.name == "adagrad"
        self._parallel: Any = model
        if world_size() > 1:
            if self._has_rows:
                # `update` sums the gradients of these rows.
                nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                    model, [f"output.{name}" for name in model.output.state_dict()]
                )
            self._parallel = nn.parallel.DistributedDataParallel(model)

    def update(
        self,
        epoch: EpochBatches,
        numbers: Sequence[int],
        step: int,
        states: Optional[list[LayerState]] = None,
    ) -> tuple[torch.Tensor, int]:
        """Make one update.

        epoch (EpochBatches): The batches of the epoch.
        numbers (Sequence[int]): The batches of the step, whose gradients are accumulated.
        step (int): The number of the step, from 0.
        states (Optional[list]): The LSTMs' states, replaced in place; see `LanguageModel.forward`.
        RETURNS (tuple): This process's share of the mean loss per prediction, in nats, and the
            words of the batches.
        """
        set_learn_rate(self.optimizer, self.schedule, step)
        random = numpy.random.default_rng((self.seed, step))
        # Dropout depends only on the step, so that a resumed run draws the same.
        torch.manual_seed(hash((self.seed, step, rank())) % 2**63)
        n_words, n_targets = map(sum, zip(*(epoch.size(number) for number in numbers)))
        self.optimizer.zero_grad(set_to_none=True)
        batches = [self._read(epoch, number) for number in numbers]
        samples = self.model.output.draw(random)
        if self._has_rows:
            words = [samples.words, *(batch.targets.ravel() for batch, _ in batches)]
            rows = all_gather_unique(numpy.concatenate(words))
            samples = self.model.output.copy_rows(samples, rows)
        total = self._accumulate(batches, n_targets, samples, states)
        copies = {} if samples is None else samples.copies
        if world_size() > 1:
            for copy in copies.values():
                assert copy.grad is not None
                all_reduce_sum(copy.grad).div_(world_size())
        norm = self._step(samples, copies)
        is_bad = ~torch.isfinite(total + norm) & (self.first_bad_step < 0)
        self.first_bad_step.masked_fill_(is_bad, step + 1)
        self.model.bilm.invalidate()
        return total, n_words

    def _step(
        self, samples: Optional[Samples], copies: dict[nn.Parameter, torch.Tensor]
    ) -> torch.Tensor:
        """Clip the gradients and update. RETURNS (Tensor): Their norm before it was clipped."""
        config, device = self.settings.optimizer, self.model.bilm.device
        limit = config.grad_clip or math.inf
        if config.name == "adagrad":
            kernel = self.model.bilm.lstm.kernel
            kernels = load_kernels(TRITON_ADAGRAD, kernel, device, torch.float32)
            if kernels is not None:
                rows = None if samples is None else samples.rows
                return kernels.clip_and_step(self.optimizer, limit, copies, rows)
        trained = [copies.get(p, p) for p in self.model.parameters()]
        norm = nn.utils.clip_grad_norm_(trained, limit)
        self.optimizer.step()
        if samples is not None and self._has_rows:
            update_rows(self.optimizer, samples)
        return norm

    def _read(self, epoch: EpochBatches, number: int) -> tuple[Batch, int]:
        """RETURNS (tuple): This process's share of a batch, and the factor of its loss."""
        batch = epoch.read(number, rank(), world_size())
        if batch is not None:
            return batch, world_size()
        # Every process must take part in the sum of gradients, even if it has no sentence.
        whole = epoch.read(number)
        assert whole is not None
        return whole, 0

    def _accumulate(
        self,
        batches: list[tuple[Batch, int]],
        n_targets: int,
        samples: Optional[Samples],
        states: Optional[list[LayerState]],
    ) -> torch.Tensor:
        """Add up the gradients. RETURNS (Tensor): The loss."""
        device = self.model.bilm.device
        total = torch.zeros((), device=device)
        for number, (batch, factor) in enumerate(batches, 1):
            # Accumulated gradients are summed over the processes only once.
            skips_sum = number < len(batches) and world_size() > 1
            no_sum = self._parallel.no_sync() if skips_sum else contextlib.nullcontext()
            with no_sum, autocast(device, self.settings.mixed_precision):
                loss = self._parallel(batch, samples, states or None) / (2 * n_targets)
            (loss * factor).backward()
            total += loss.detach() * bool(factor)
        return total
