"""The mixes of `layers.mixes` as PyTorch modules, for models that are not thinc's.

Each maps activations (L+1, tokens, 2P) to (tokens, width), token by token. Parameters are float32,
as activations are, whatever PyTorch's default is. The formulas are those of Peters et al. 2018,
section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ScalarMix(nn.Module):
    """`gamma * sum_j softmax(weights)_j h_j`, weights and gamma learned.

    n_layers (int): L+1.
    weights (Optional[Sequence[float]]): Where the weights start, before the softmax; zeros if None.
    gamma (float): Where the scale starts.
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
        if weights is None:
            weights = [0.0] * n_layers
        self.weights = nn.Parameter(_one_per_layer(weights, n_layers))
        self.gamma = nn.Parameter(torch.tensor([float(gamma)], dtype=torch.float32))
        self.layer_norm = layer_norm
        self.l2 = l2
        self.dropout = nn.Dropout(dropout)

    def forward(self, layers: Tensor) -> Tensor:
        if self.layer_norm:
            layers = F.layer_norm(layers, layers.shape[-1:], eps=1e-12)
        mean = torch.tensordot(self.weights.softmax(0), layers, dims=1)
        return self.dropout(self.gamma * mean)

    def penalty(self) -> Tensor:
        """RETURNS (Tensor): `l2 * sum_j weights_j^2`, to be added to the loss."""
        return self.l2 * self.weights.square().sum()


class FrozenMix(nn.Module):
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    n_layers (int): L+1.
    weights (Optional[Sequence[float]]): Used as they are; 1 / (L+1) each if None.
    gamma (float): The scale.
    RAISES (ValueError): If the number of weights is not the number of layers.
    """

    weights: Tensor

    def __init__(
        self, n_layers: int, weights: Optional[Sequence[float]] = None, gamma: float = 1.0
    ) -> None:
        super().__init__()
        if weights is None:
            weights = [1.0 / n_layers] * n_layers
        self.register_buffer("weights", _one_per_layer(weights, n_layers))
        self.gamma = gamma

    def forward(self, layers: Tensor) -> Tensor:
        return self.gamma * torch.tensordot(self.weights, layers, dims=1)


class LearnedMix(nn.Module):
    """A learned function of all layers side by side: linear, or with one hidden layer.

    n_layers, layer_width (int): L+1 and 2P.
    width (int): Of the vectors it makes.
    hidden_width (Optional[int]): Rectified linear units in between; None for a linear function.
    dropout (float): Of the vectors it makes.
    """

    def __init__(
        self,
        n_layers: int,
        layer_width: int,
        width: int,
        hidden_width: Optional[int] = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        n_inputs = n_layers * layer_width
        linear = partial(nn.Linear, dtype=torch.float32)
        self.function: nn.Module = (
            linear(n_inputs, width)
            if hidden_width is None
            else nn.Sequential(
                linear(n_inputs, hidden_width), nn.ReLU(), linear(hidden_width, width)
            )
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, layers: Tensor) -> Tensor:
        return self.dropout(self.function(concat_layers(layers)))


class SingleLayer(nn.Module):
    """One layer alone.

    layer (int): Its number, 0 being the token encoder; negative numbers count from the top.
    """

    def __init__(self, layer: int = -1) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, layers: Tensor) -> Tensor:
        return layers[self.layer]


class ConcatLayers(nn.Module):
    """All layers side by side, from the token encoder up: width (L+1) * 2P."""

    def forward(self, layers: Tensor) -> Tensor:
        return concat_layers(layers)


def concat_layers(layers: Tensor) -> Tensor:
    """RETURNS (Tensor): Shape (tokens, (L+1) * 2P)."""
    return layers.transpose(0, 1).flatten(1)


def _one_per_layer(weights: Sequence[float], n_layers: int) -> Tensor:
    if len(weights) != n_layers:
        raise ValueError(f"{len(weights)} weights for {n_layers} layers: give one per layer")
    return torch.tensor([float(weight) for weight in weights], dtype=torch.float32)
