"""The learned mix of layers, for code that is not thinc's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TrainedMix(NamedTuple):
    """A mix that comes with weights: `gamma * sum_j weights_j h_j`, from the token encoder up."""

    weights: list[float]
    gamma: float


class ScalarMix(nn.Module):
    """`gamma * sum_j softmax(weights)_j h_j`, weights and gamma learned (Peters et al. 2018,
    equation 1). Maps activations (L+1, tokens, 2P) to (tokens, 2P).

    n_layers (int): L+1.
    weights, gamma: Where they start; weights before the softmax. None: zeros.
    layer_norm (bool): Normalise each layer first, token by token.
    l2 (float): The paper's lambda; see `penalty`.
    dropout (float): Of the mixed vectors during training.
    RAISES (ValueError): If the number of weights is not the number of layers.
    """

    def __init__(
        self,
        n_layers: int,
        weights: Optional[Sequence[float]] = None,
        gamma: float = 1.0,
        layer_norm: bool = False,
        l2: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        start = [0.0] * n_layers if weights is None else [*map(float, weights)]
        if len(start) != n_layers:
            raise ValueError(f"{len(start)} weights for {n_layers} layers: give one per layer")
        self.weights = nn.Parameter(torch.tensor(start, dtype=torch.float32))
        self.gamma = nn.Parameter(torch.tensor([float(gamma)], dtype=torch.float32))
        self.layer_norm, self.l2, self.dropout = layer_norm, l2, nn.Dropout(dropout)

    def forward(self, layers: Tensor) -> Tensor:
        if self.layer_norm:
            layers = F.layer_norm(layers, layers.shape[-1:], eps=1e-12)
        return self.dropout(self.gamma * torch.tensordot(self.weights.softmax(0), layers, dims=1))

    def penalty(self) -> Tensor:
        """RETURNS (Tensor): `l2 * sum_j weights_j^2`, to be added to the loss."""
        return self.l2 * self.weights.square().sum()
