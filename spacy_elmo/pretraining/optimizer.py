"""Optimizers and learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor, nn

from .config import OptimizerConfig
from .language_model import LanguageModel
from .losses.softmax import Softmax


def build_muon(
    groups: list[dict[str, Any]], dtype: Optional[torch.dtype] = None, **settings: Any
) -> torch.optim.Optimizer:
    """Muon (Jordan et al. 2024) for the groups that have a "momentum", and AdamW for all else. With
    products of this type, bfloat16, it is `torch.optim.Muon`, bit for bit; without, the same
    iteration is made on the smaller Gram matrix, which costs less."""

    @torch.no_grad()
    def update_matrices(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in (x for x in optimizer.param_groups if "momentum" in x):
            for matrix in (p for p in group["params"] if p.grad is not None):
                state, momentum = optimizer.state[matrix], group["momentum"]
                mean = state.setdefault("momentum_buffer", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - momentum)
                update = orthogonalize(matrix.grad.lerp(mean, momentum), dtype)
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))
                matrix.grad = None  # AdamW leaves it alone.

    optimizer = torch.optim.AdamW(groups, **settings)
    optimizer.register_step_pre_hook(update_matrices)
    return optimizer


def orthogonalize(matrix: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Five Newton-Schulz iterations, in this type: all singular values come near 1."""
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
    """Build the optimizer that a config names."""
    if config.name == "adagrad":
        # Adagrad (Duchi et al. 2011) changes nothing where the gradient is zero. On a GPU, one
        # would have to wait for the number of rows.
        if isinstance(model.output, Softmax):
            model.output.sparse = model.bilm.device.type == "cpu"
            torch.sparse.check_sparse_tensor_invariants.disable()  # Else PyTorch warns.
        return torch.optim.Adagrad(
            list(model.parameters()),
            lr=config.learn_rate,
            initial_accumulator_value=config.initial_accumulator,
        )
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    parts: dict[str, list[nn.Parameter]] = {"matrices": [], "decayed": [], "others": []}
    for name, parameter in model.named_parameters():
        is_matrix = config.name == "muon" and parameter.dim() == 2 and name.startswith("bilm.")
        is_other = parameter.dim() == 1 or id(parameter) in embeddings
        parts["others" if is_other else "matrices" if is_matrix else "decayed"].append(parameter)
    decay: dict[str, Any] = {"weight_decay": config.weight_decay}
    groups = [{"params": parts["decayed"], **decay}, {"params": parts["others"], "weight_decay": 0}]
    betas, is_fused = (config.beta1, config.beta2), model.bilm.device.type == "cuda"
    settings: dict[str, Any] = {"lr": config.learn_rate, "betas": betas, "fused": is_fused}
    if config.name == "adamw":
        return torch.optim.AdamW(groups, **settings)
    matrices = {"params": parts["matrices"], **decay}
    groups.append({**matrices, "rate": config.muon_rate, "momentum": 0.95})
    return build_muon(groups, torch.bfloat16 if mixed_precision else None, **settings)


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
    for group in optimizer.param_groups:
        group["lr"] = group.get("rate", config.learn_rate) * factor


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Bound the global norm of gradients, some of them sparse. RETURNS (Tensor): The old one."""
    gradients: list[Any] = []
    for parameter in (p for p in parameters if p.grad is not None):
        gradient: Any = parameter.grad
        if gradient.is_sparse:
            gradient = parameter.grad = gradient.coalesce()
        gradients.append(gradient.values() if gradient.is_sparse else gradient)
    norm = nn.utils.get_total_norm(gradients)
    # As `nn.utils.clip_grad_norm_` does.
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm
