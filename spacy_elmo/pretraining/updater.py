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
from ..torch_private import tf32_products
from .batches import EpochBatches
from .config import PretrainingConfig
from .distributed import broadcast, rank, sum_gradients, sum_over_processes, world_size
from .language_model import LanguageModel
from .optimizer import build_optimizer, clip_gradients, set_learn_rate
from .train_state import SUMS


class Updater:
    """Updates a model. With several processes, each has one, and computes its share of each batch.
    A step whose gradient is not finite changes nothing.

    Attributes: `tf32`, which makes a context in which float32 products on a GPU use TF32; and on
    the device `sums`, what was added up over steps (see `SUMS`), and `n_bad`, the steps that were
    skipped in a row.
    """

    def __init__(self, model: LanguageModel, settings: PretrainingConfig, seed: int) -> None:
        device = model.bilm.device
        # All processes do what the first one's processor is fast at.
        usable = rank() == 0 and usable_mixed_precision(settings.mixed_precision, device)
        mixed_precision = bool(broadcast(usable, device))
        self.model, self.seed = model, seed
        self.settings = replace(settings, mixed_precision=mixed_precision)
        self.optimizer = build_optimizer(model, settings.optimizer, mixed_precision)
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.n_bad = torch.zeros((), dtype=torch.int64, device=device)
        self.tf32: Any = contextlib.nullcontext if device.type == "cpu" else tf32_products

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
        """Update the model by some batches. `states`, those of the LSTMs, are replaced in place.
        RETURNS (tuple): The mean loss per prediction, in nats, and the words of the batches."""
        set_learn_rate(self.optimizer, self.settings.optimizer, step)
        samples = self.model.output.draw(numpy.random.default_rng((self.seed, step)))
        # Dropout depends only on the step, so that a resumed run draws the same.
        torch.manual_seed(hash((self.seed, step, rank())) % 2**63)
        n_words, n_targets = map(sum, zip(*(epoch.size(number) for number in numbers)))
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.model.bilm.device)
        for number in numbers:
            batch, factor = epoch.read(number, rank(), world_size()), 1
            if batch is None:
                # A process without a share needs all gradients, too, for the sum.
                batch, factor = epoch.read(number), 0
            with self.tf32():
                with autocast(self.model.bilm.device, self.settings.mixed_precision):
                    share = self.model(batch, samples, states or None) / (2 * n_targets)
                share = share * factor
                share.backward()
            loss += share.detach()
        sum_over_processes(loss)
        sum_gradients(self.model)
        limit = self.settings.optimizer.grad_clip or math.inf
        norm = clip_gradients(self.model.parameters(), limit)
        good = torch.isfinite(norm)
        step_if(good, self.optimizer)
        values = torch.stack([x.double() for x in (loss, norm, norm > limit, ~good, good)])
        values[:3].masked_fill_(~good, 0)
        self.sums += values
        self.n_bad.add_(1).masked_fill_(good, 0)
        for state in itertools.chain.from_iterable(states or ()):
            # After a step that is skipped, it may be bad, too.
            state.nan_to_num_(0, 0, 0)
        self.model.bilm.invalidate()
        return loss, n_words


@torch.no_grad()
def step_if(is_good: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer make a step on a condition, a bool, without waiting for a GPU."""
    if is_good.device.type == "cpu":
        if is_good:
            optimizer.step()
        return
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    for group in optimizer.param_groups:
        if group.get("fused"):  # PyTorch's own way, of its GradScaler.
            optimizer.found_inf = (~is_good).float()  # type: ignore[attr-defined]
        if group.get("fused") and "momentum" not in group:
            continue
        for parameter in (p for p in group["params"] if p.grad is not None):
            parameter.grad.masked_fill_(~is_good, 0)
            # A state that begins with this step begins with zeros.
            changed = (parameter, *optimizer.state.get(parameter, {}).values())
            before += ((x, x.clone()) for x in changed if x.device == is_good.device)
    optimizer.step()
    for tensor, old in before:
        tensor.copy_(torch.where(is_good, tensor, old))
