"""A weighted sum with fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Callable, Optional

import numpy
from thinc.api import Model, NumpyOps, registry
from thinc.types import Floats2d, Floats3d

from ...bilm.mixes import TrainedMix
from .mix import Mix, wrong_number

_NAME = "frozen_mix"


@registry.layers("spacy-elmo.FrozenMix.v1")
def FrozenMix(
    weights: Optional[Sequence[float]] = None, gamma: float = 1.0, seed: Optional[int] = None
) -> Mix:
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    weights (Optional[Sequence[float]]): One per layer, from the token encoder up, used as they
        are. None: 1 / (L+1) each, or random ones if there is a seed. None as the component's mix:
        if the weights of the biLM come with a mix, as AllenNLP's models do, it is used, scaled
        with gamma.
    gamma (float): The scale.
    seed (Optional[int]): Use the softmax of random numbers (normal, variance 1) as weights.
    RAISES (ValueError): If there are weights and a seed; at first use, if the number of weights is
        not the number of layers.
    """
    if weights is not None and seed is not None:
        raise ValueError("FrozenMix: give either weights or the seed of random ones, not both")
    settings = SimpleNamespace(weights=weights, gamma=float(gamma), seed=seed, trained=None)
    return Model(_NAME, forward, attrs={"settings": settings, "state": state})


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    weights, gamma = state(mix, X.shape[0])
    scales = [gamma * weight for weight in weights]
    Y = X[0] * scales[0]
    for scale, layer in zip(scales[1:], X[1:]):
        Y += layer * scale
    return Y, lambda dY: mix.ops.xp.stack([dY * scale for scale in scales])


def use_trained(mix: Mix, trained: Optional[TrainedMix]) -> None:
    """Let a mix without weights and seed be one that a task has learned; None for the mean."""
    if mix.name == _NAME:
        mix.attrs["settings"].trained = trained


def state(mix: Mix, n_layers: int) -> tuple:
    """RETURNS (tuple): The weights and the scale; nothing without layers."""
    settings = mix.attrs["settings"]
    weights, gamma = settings.weights, settings.gamma
    if not n_layers:
        return ()
    if settings.seed is not None:
        random = numpy.random.default_rng(settings.seed).normal(size=n_layers)
        weights = NumpyOps().softmax(random).tolist()
    elif weights is None and settings.trained is not None:
        weights, gamma = settings.trained.weights, gamma * settings.trained.gamma
    elif weights is None:
        weights = [1.0 / n_layers] * n_layers
    if len(weights) != n_layers:
        raise wrong_number("FrozenMix", len(weights), n_layers)
    return weights, gamma
