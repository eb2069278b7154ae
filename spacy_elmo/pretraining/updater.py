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

from ..bilm.lstm_layer import LayerState
from ..bilm.mixed_precision import autocast, usable_mixed_precision
from ..torch_private import TF32_PRODUCTS
from .batches import EpochBatches
from .config import OptimizerConfig, PretrainingConfig
from .distributed import broadcast, rank, sum_gradients, sum_over_processes, world_size
from .language_model import LanguageModel
from .losses import Samples
from .optimizer import build_optimizer, clip_gradients, set_learn_rate
from .train_state import SUMS


class Updater:
    """Updates a model. With several processes, each has one, and computes its share of each batch.
    A step whose gradient is not finite changes nothing.

    model (LanguageModel): The model, on its device.
    settings (PretrainingConfig): How to train.
    seed (int): Decides dropout and samples, together with the number of the step.

    Attributes: `schedule`, the OptimizerConfig whose learning rates hold; `tf32`, a context in
    which float32 products on a GPU use TF32; and tensors, for which one waits for the device to
    read them: `sums`, what was added up over steps (see `SUMS`), and `n_bad`, the steps that were
    skipped in a row.
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
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.n_bad = torch.zeros((), dtype=torch.int64, device=device)
        self.tf32: Any = contextlib.nullcontext()
        if device.type != "cpu":
            self.tf32 = TF32_PRODUCTS

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

        numbers (Sequence[int]): The batches of the step, whose gradients are accumulated.
        step (int): The number of the step, from 0.
        states (Optional[list]): The LSTMs' states, replaced in place; see `LanguageModel.forward`.
        RETURNS (tuple): The mean loss per prediction, in nats, and the words of the batches.
        """
        set_learn_rate(self.optimizer, self.schedule, step)
        samples = self.model.output.draw(numpy.random.default_rng((self.seed, step)))
        # Dropout depends only on the step, so that a resumed run draws the same.
        torch.manual_seed(hash((self.seed, step, rank())) % 2**63)
        n_words, n_targets = map(sum, zip(*(epoch.size(number) for number in numbers)))
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.model.bilm.device)
        for number in numbers:
            loss += self._add_gradient(epoch, number, n_targets, samples, states)
        sum_over_processes(loss)
        sum_gradients(self.model)
        norm = clip_gradients(self.model.parameters(), self._grad_clip)
        step_if(torch.isfinite(norm), self.optimizer)
        self._count(loss, norm)
        for state in itertools.chain.from_iterable(states or ()):
            # After a step that is skipped, it may be bad, too.
            state.nan_to_num_(0, 0, 0)
        self.model.bilm.invalidate()
        return loss, n_words

    @property
    def _grad_clip(self) -> float:
        return self.settings.optimizer.grad_clip or math.inf

    def _add_gradient(
        self,
        epoch: EpochBatches,
        number: int,
        n_targets: int,
        samples: Optional[Samples],
        states: Optional[list[LayerState]],
    ) -> torch.Tensor:
        """RETURNS (Tensor): The loss of this process's share of a batch."""
        batch, factor = epoch.read(number, rank(), world_size()), 1
        if batch is None:
            # A process without a share needs all gradients, too, for the sum.
            batch, factor = epoch.read(number), 0
        assert batch is not None
        with self.tf32:
            with autocast(self.model.bilm.device, self.settings.mixed_precision):
                loss = self.model(batch, samples, states or None) / (2 * n_targets)
            loss = loss * factor
            loss.backward()
        return loss.detach()

    def _count(self, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Add a step, with its loss and the norm of its gradient, to `sums`."""
        good = torch.isfinite(norm)
        values = torch.stack(
            [x.double() for x in (loss, norm, norm > self._grad_clip, ~good, good)]
        )
        values[:3].masked_fill_(~good, 0)
        self.sums += values
        self.n_bad.add_(1).masked_fill_(good, 0)


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
    groups = [group for group in optimizer.param_groups if not group.get("fused")]
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    for parameter in parameters:
        parameter.grad.masked_fill_(~is_good, 0)
        if not isinstance(optimizer, torch.optim.Adagrad):  # Zeros change nothing there.
            # A state that begins with this step begins with zeros.
            changed = (parameter, *optimizer.state.get(parameter, {}).values())
            before += ((x, x.clone()) for x in changed if x.device == is_good.device)
    optimizer.step()
    for tensor, old in before:
        tensor.copy_(torch.where(is_good, tensor, old))
