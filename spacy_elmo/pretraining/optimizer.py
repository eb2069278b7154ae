"""Optimizers, learning rates, and Adagrad for some rows of the output layer."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.optim.adagrad import adagrad

from .config import OptimizerConfig
from .language_model import LanguageModel
from .losses import Samples


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices and AdamW for all else. With bfloat16 products it is
    `torch.optim.Muon`, bit for bit; without, the same iteration is made on the smaller Gram matrix,
    which costs less.

    groups (list[dict]): Parameter groups. Those of matrices have a "momentum" and a "rate", the
        highest one.
    dtype (Optional[torch.dtype]): Type of the products; None: that of the parameters.
    settings: Those of AdamW.
    """

    def __init__(
        self, groups: list[dict[str, Any]], dtype: Optional[torch.dtype], **settings: Any
    ) -> None:
        super().__init__(groups, {"momentum": None})
        self.dtype = dtype
        self.adamw = torch.optim.AdamW(
            [group for group in self.param_groups if group["momentum"] is None], **settings
        )
        # The groups and the state are shared: rates are set, and checkpoints written, in one place.
        self.adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.adamw.step()
        for group in self.param_groups:
            for matrix in group["params"] if group["momentum"] is not None else ():
                if matrix.grad is None:
                    continue
                momentum = group["momentum"]
                state = self.state[matrix]
                mean = state.setdefault("momentum_buffer", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - momentum)
                update = orthogonalize(matrix.grad.lerp(mean, momentum), self.dtype)
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonalize(matrix: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Five Newton-Schulz iterations, which bring all singular values near 1, between 0.7 and 1.2.

    matrix (Tensor): The matrix.
    dtype (Optional[torch.dtype]): Type of the products; None: that of the matrix.
    RETURNS (Tensor): The result, in this type.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.to(dtype or matrix.dtype, copy=True)
    x = x.T if x.shape[0] > x.shape[1] else x
    x.div_(x.norm().clamp(min=1e-7))
    gram = x @ x.T
    if x.dtype == torch.bfloat16:
        # Rounding would add up in products of Gram matrices.
        for iteration in range(5):
            gram = x @ x.T if iteration else gram
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    else:
        product = identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
        for _ in range(5):
            factor = torch.addmm(gram, gram, gram, beta=b, alpha=c).add_(identity, alpha=a)
            product = factor @ product
            gram = factor @ gram @ factor
        x = product @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def build_optimizer(
    model: LanguageModel, config: OptimizerConfig, mixed_precision: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer that a config names.

    mixed_precision (bool): Whether products are of bfloat16.
    """
    if config.name == "adagrad":
        return torch.optim.Adagrad(
            list(model.parameters()),
            lr=config.learn_rate,
            initial_accumulator_value=config.initial_accumulator,
        )
    matrices, decayed, others = [], [], []
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or id(parameter) in embeddings:
            others.append(parameter)
        elif config.name == "muon" and parameter.dim() == 2 and name.startswith("bilm."):
            matrices.append(parameter)
        else:
            decayed.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {
        "lr": config.learn_rate,
        "betas": (config.beta1, config.beta2),
        "fused": model.bilm.device.type == "cuda",
    }
    if config.name == "adamw":
        return torch.optim.AdamW(groups, **settings)
    settings_of_matrices = {"weight_decay": config.weight_decay, "momentum": 0.95}
    groups.append({"params": matrices, "rate": config.muon_rate, **settings_of_matrices})
    return Muon(groups, torch.bfloat16 if mixed_precision else None, **settings)


def set_learn_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig, step: int) -> None:
    """Set the rate of a step, counted from 0."""
    factor = 1.0
    after = step + 1 - config.warmup_steps
    if after <= 0:
        factor = (step + 1) / config.warmup_steps
    elif config.schedule == "cosine":
        progress = min(1.0, after / max(1, config.total_steps - config.warmup_steps))
        factor = 0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2
    elif config.schedule == "wsd":
        # Hägele et al. 2024, section 4: the root brings a lower loss than a straight line.
        length = config.decay_steps or max(1, config.total_steps // 5)
        progress = (step + 1 - (config.total_steps - length)) / length
        factor = 1 - math.sqrt(min(1.0, max(0.0, progress)))
    elif config.schedule == "inverse_sqrt":
        start = max(1, config.warmup_steps)
        factor = math.sqrt(start / max(start, step + 1))
    for group in optimizer.param_groups:
        group["lr"] = group.get("rate", config.learn_rate) * factor


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
