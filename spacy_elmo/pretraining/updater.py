"""One step of a training: the gradients of some batches, and the update."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy
import torch
from torch import nn

from ..bilm.lstm_layer import LayerState
from ..bilm.mixed_precision import autocast, usable_mixed_precision
from ..bilm.model import TRITON_LSTM
from ..inference.linear import TF32_PRODUCTS
from ..kernels import load_kernels
from .batches import Batch, EpochBatches
from .config import OptimizerConfig, PretrainingConfig
from .distributed import all_gather_unique, all_reduce_sum, broadcast, rank, world_size
from .language_model import LanguageModel
from .losses import Samples
from .optimizer import build_optimizer, set_learn_rate, update_rows
from .train_state import SUMS

TRITON_ADAGRAD = "spacy_elmo.kernels.triton_adagrad"


class Updater:
    """Updates a model. With several processes, each has one, and computes its share of each batch.

    model (LanguageModel): The model, on its device.
    settings (PretrainingConfig): How to train.
    seed (int): Decides dropout and samples, together with the number of the step.

    A step whose gradient is not finite changes nothing.

    Attributes: `schedule`, the OptimizerConfig whose learning rates hold; `tf32`, a context in
    which float32 products on a GPU use TF32; and tensors, for which one waits for the device to
    read them: `sums`, what was added up over steps (see `SUMS`; the sum over all processes is that
    of the training), and `n_bad`, the steps that were skipped in a row.
    """

    def __init__(self, model: LanguageModel, settings: PretrainingConfig, seed: int) -> None:
        device = model.bilm.device
        # All processes do what the first one's processor is fast at.
        usable = rank() == 0 and usable_mixed_precision(settings.mixed_precision, device)
        mixed_precision = bool(broadcast(usable, device))
        self.model = model
        self.settings = replace(settings, mixed_precision=mixed_precision)
        self.seed = seed
        self.schedule: OptimizerConfig = settings.optimizer
        self.optimizer = build_optimizer(model, settings.optimizer, mixed_precision)
        device = model.bilm.device
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.n_bad = torch.zeros((), dtype=torch.int64, device=device)
        # The loss is shared out, the rest is the same in all processes.
        self._shares = torch.full_like(self.sums, float(rank() == 0))
        self._shares[0] = 1
        self.tf32: Any = contextlib.nullcontext()
        if device.type != "cpu":
            self.tf32 = TF32_PRODUCTS
            # Before that rounds what kernels are compared with; evaluations are in float32.
            lstm = model.bilm.lstm
            for dtype in {torch.float32, torch.bfloat16 if mixed_precision else torch.float32}:
                load_kernels(TRITON_LSTM, lstm.kernel, device, dtype, lstm.config)
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

    @property
    def learn_rate(self) -> float:
        """The rate of the last step; with Muon, that of AdamW."""
        return self.optimizer.param_groups[0]["lr"]

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
        self._count(total, self._step(samples, copies))
        for state in itertools.chain.from_iterable(states or ()):
            # After a step that is skipped, it may be bad, too.
            state.nan_to_num_(0, 0, 0)
        self.model.bilm.invalidate()
        return total, n_words

    def _count(self, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Add a step, with its share of the loss and the norm of its gradient, to `sums`."""
        good = torch.isfinite(norm)
        limit = self.settings.optimizer.grad_clip or math.inf
        values = [value.double() for value in (loss, norm, norm > limit, ~good, good)]
        values[:3] = [value.masked_fill(~good, 0) for value in values[:3]]
        self.sums.addcmul_(torch.stack(values), self._shares)
        self.n_bad.add_(1).masked_fill_(good, 0)

    def _step(
        self, samples: Optional[Samples], copies: dict[nn.Parameter, torch.Tensor]
    ) -> torch.Tensor:
        """Clip the gradients and update, if they are finite. RETURNS (Tensor): Their norm before it
        was clipped."""
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
        is_good = torch.isfinite(norm)
        step_if(is_good, self.optimizer)
        if samples is not None and self._has_rows:
            for copy in copies.values():
                # A gradient of zero changes nothing.
                assert copy.grad is not None
                copy.grad.masked_fill_(~is_good, 0)
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
            with self.tf32, no_sum:
                with autocast(device, self.settings.mixed_precision):
                    loss = self._parallel(batch, samples, states or None) / (2 * n_targets)
                (loss * factor).backward()
            total += loss.detach() * bool(factor)
        return total


@torch.no_grad()
def step_if(is_good: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer make a step on a condition, without waiting for a GPU.

    is_good (Tensor): The condition, of one bool.
    """
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    if is_good.device.type == "cpu" and not is_fused:
        if is_good:
            optimizer.step()
        return
    if is_fused:
        # PyTorch's own way, of its GradScaler. Muon has an AdamW inside.
        fused: Any = getattr(optimizer, "adamw", optimizer)
        fused.found_inf = (~is_good).float()
    # What others change is put back. A state that begins with this step begins with zeros.
    groups = [group for group in optimizer.param_groups if not group.get("fused")]
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    for parameter in parameters:
        parameter.grad.masked_fill_(~is_good, 0)
        changed = (parameter, *optimizer.state.get(parameter, {}).values())
        before += ((x, x.clone()) for x in changed if x.device == is_good.device)
    optimizer.step()
    for tensor, old in before:
        tensor.copy_(torch.where(is_good, tensor, old))
