"""A weighted sum with fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import numpy
from thinc.api import Model, NumpyOps, registry
from thinc.types import Floats2d, Floats3d

from ..not_serialized import LayerSettings
from .mix import Mix, MixState, check_weights, wrong_number


@registry.layers("spacy-elmo.FrozenMix.v1")
def FrozenMix(
    weights: Optional[Sequence[float]] = None, gamma: float = 1.0, seed: Optional[int] = None
) -> Mix:
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    weights (Optional[Sequence[float]]): One per layer, from the token encoder up, used as they
        are. None: 1 / (L+1) each, or random ones if there is a seed.
    gamma (float): The scale.
    seed (Optional[int]): Use the softmax of random numbers (normal, variance 1) as weights.
    RAISES (ValueError): If there are weights and a seed; at first use, if the number of weights is
        not the number of layers.
    """
    if weights is not None and seed is not None:
        raise ValueError("FrozenMix: give either weights or the seed of random ones, not both")
    settings = LayerSettings(
        weights=check_weights("FrozenMix", weights), gamma=float(gamma), seed=seed
    )
    return Model("frozen_mix", forward, attrs={"settings": settings, "state": state})


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    gamma = mix.attrs["settings"].gamma
    scales = [gamma * weight for weight in _get_weights(mix, X.shape[0])]
    Y = X[0] * scales[0]
    for scale, layer in zip(scales[1:], X[1:]):
        Y += layer * scale

    def backprop(dY: Floats2d) -> Floats3d:
        return mix.ops.xp.stack([dY * scale for scale in scales])

    return Y, backprop


def state(mix: Mix, n_layers: int) -> MixState:
    if not n_layers:
        return MixState(mix.name)
    return MixState(mix.name, _get_weights(mix, n_layers), mix.attrs["settings"].gamma)


def _get_weights(mix: Mix, n_layers: int) -> list[float]:
    settings = mix.attrs["settings"]
    if settings.weights is not None:
        if len(settings.weights) != n_layers:
            raise wrong_number("FrozenMix", len(settings.weights), n_layers)
        return settings.weights
    if settings.seed is None:
        return [1.0 / n_layers] * n_layers
    random = numpy.random.default_rng(settings.seed).normal(size=n_layers)
    return NumpyOps().softmax(random).tolist()
