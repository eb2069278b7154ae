"""The mixes of `layers.mixes` as PyTorch modules: references, and recipes for models in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from spacy_elmo.bilm.mixes import ScalarMix

__all__ = ["ConcatLayers", "FrozenMix", "LearnedMix", "ScalarMix", "SingleLayer"]


class FrozenMix(nn.Module):
    """`gamma * sum_j weights_j h_j` with weights that are never trained; the mean by default."""

    def __init__(
        self, n_layers: int, weights: Sequence[float] | None = None, gamma: float = 1.0
    ) -> None:
        super().__init__()
        values = [1.0 / n_layers] * n_layers if weights is None else [float(w) for w in weights]
        self.register_buffer("weights", torch.tensor(values, dtype=torch.float32))
        self.gamma = gamma

    def forward(self, layers: Tensor) -> Tensor:
        return self.gamma * torch.tensordot(self.weights, layers, dims=1)


class LearnedMix(nn.Module):
    """A learned function of all layers side by side: linear, or with one hidden layer."""

    def __init__(
        self,
        n_layers: int,
        layer_width: int,
        width: int,
        hidden_width: int | None = None,
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
        return self.dropout(self.function(layers.transpose(0, 1).flatten(1)))


class SingleLayer(nn.Module):
    """One layer alone; negative numbers count from the top."""

    def __init__(self, layer: int = -1) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, layers: Tensor) -> Tensor:
        return layers[self.layer]


class ConcatLayers(nn.Module):
    """All layers side by side, from the token encoder up."""

    def forward(self, layers: Tensor) -> Tensor:
        return layers.transpose(0, 1).flatten(1)
