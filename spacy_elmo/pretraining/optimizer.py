"""Optimizers, learning rates, and Adagrad for some rows of the output layer."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.adagrad import adagrad

from .config import OptimizerConfig
from .losses import Samples


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
        progress = min(1.0, after / max(1, config.total_steps - config.warmup_steps))
        factor = 0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2
    elif config.schedule == "inverse_sqrt":
        start = max(1, config.warmup_steps)
        factor = math.sqrt(start / max(start, step + 1))
    for group in optimizer.param_groups:
        group["lr"] = config.learn_rate * factor


@torch.no_grad()
def update_rows(optimizer: torch.optim.Optimizer, samples: Samples) -> None:
    """Update some rows of an output layer by the gradients of their copies.

    Adagrad (Duchi et al. 2011) changes neither a row whose gradient is zero nor its accumulator, so
    the other rows need not be touched. Given the same clipped gradient, the result is that of
    `torch.optim.Adagrad` for the whole layer, bit for bit. (Where clipping is active, the last bit
    may differ: the norm is summed in another order.)

    optimizer (Adagrad): Has the layer's parameters in its only group.
    samples (Samples): Has the copies, which are changed in place.
    """
    [group] = optimizer.param_groups
    names = ("lr", "weight_decay", "lr_decay", "eps", "maximize")
    settings = {name: group[name] for name in names}
    assert samples.rows is not None
    for parameter, copy in samples.copies.items():
        state = optimizer.state[parameter]
        sums = state["sum"][samples.rows]
        assert copy.grad is not None
        adagrad([copy], [copy.grad], [sums], [state["step"]], **settings)
        parameter.index_copy_(0, samples.rows, copy)
        state["sum"].index_copy_(0, samples.rows, sums)
