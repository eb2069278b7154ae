"""How the activations of all layers become one vector per token.

Each mix maps (L+1, tokens, 2P) to (tokens, width), token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

from thinc.api import Model, registry
from thinc.types import Floats2d, Floats3d

Mix = Model[Floats3d, Floats2d]


@registry.layers("spacy-elmo.FrozenMix.v1")
def FrozenMix(weights: Optional[Sequence[float]] = None, gamma: float = 1.0) -> Mix:
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    weights (Optional[Sequence[float]]): One per layer, from the token encoder up, used as they
        are. None: 1 / (L+1) each.
    gamma (float): The scale.
    RAISES (ValueError): At first use, if the number of weights is not the number of layers.
    """
    if weights is not None and not len(weights):
        raise ValueError("FrozenMix: weights is empty: give one number per layer, or null")
    values = None if weights is None else [float(weight) for weight in weights]
    return Model("frozen_mix", _frozen_forward, attrs={"weights": values, "gamma": float(gamma)})


def _frozen_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    n_layers = X.shape[0]
    weights = model.attrs["weights"] or [1.0 / n_layers] * n_layers
    if len(weights) != n_layers:
        raise ValueError(
            f"FrozenMix has {len(weights)} weights, but the biLM has {n_layers} layers (the token "
            "encoder included): give one weight per layer"
        )
    scales = [model.attrs["gamma"] * weight for weight in weights]
    Y = X[0] * scales[0]
    for scale, layer in zip(scales[1:], X[1:]):
        Y += layer * scale

    def backprop(dY: Floats2d) -> Floats3d:
        return model.ops.xp.stack([dY * scale for scale in scales])

    return Y, backprop


@registry.layers("spacy-elmo.SingleLayer.v1")
def SingleLayer(layer: int = -1) -> Mix:
    """One layer alone, as in TagLM and CoVe.

    layer (int): Its number, 0 being the token encoder; negative numbers count from the top.
    RAISES (ValueError): At first use, if there is no such layer.
    """
    return Model("single_layer", _single_forward, attrs={"layer": int(layer)})


def _single_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    layer, n_layers = model.attrs["layer"], X.shape[0]
    if not -n_layers <= layer < n_layers:
        raise ValueError(
            f"SingleLayer: there is no layer {layer}, the biLM has layers 0 (the token encoder) to "
            f"{n_layers - 1} (the top); -1 is the top, too"
        )

    def backprop(dY: Floats2d) -> Floats3d:
        dX = model.ops.alloc3f(*X.shape, dtype=dY.dtype)
        dX[layer] = dY
        return dX

    return X[layer].copy(), backprop


@registry.layers("spacy-elmo.ConcatLayers.v1")
def ConcatLayers() -> Mix:
    """All layers side by side, from the token encoder up: width (L+1) * 2P."""
    return Model("concat_layers", _concat_forward)


def _concat_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    xp = model.ops.xp
    n_layers, n_tokens, width = X.shape

    def backprop(dY: Floats2d) -> Floats3d:
        return xp.transpose(xp.reshape(dY, (n_tokens, n_layers, width)), (1, 0, 2))

    return xp.reshape(xp.transpose(X, (1, 0, 2)), (n_tokens, n_layers * width)), backprop
