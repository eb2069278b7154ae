"""One of the layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Callable

from thinc.api import Model, registry
from thinc.types import Floats2d, Floats3d

from .mix import Mix


@registry.layers("spacy-elmo.SingleLayer.v1")
def SingleLayer(layer: int = -1) -> Mix:
    """One layer alone, as in TagLM and CoVe.

    layer (int): Its number, 0 being the token encoder; negative numbers count from the top.
    RAISES (ValueError): At first use, if there is no such layer.
    """
    settings = SimpleNamespace(layer=int(layer))
    return Model("single_layer", forward, attrs={"settings": settings, "state": state})


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    layer = _get_layer(mix, X.shape[0])

    def backprop(dY: Floats2d) -> Floats3d:
        dX = mix.ops.alloc3f(*X.shape, dtype=dY.dtype)
        dX[layer] = dY
        return dX

    return X[layer].copy(), backprop


def state(mix: Mix, n_layers: int) -> tuple:
    layer = _get_layer(mix, n_layers) % n_layers if n_layers else 0
    return ([float(number == layer) for number in range(n_layers)] or None,)


def _get_layer(mix: Mix, n_layers: int) -> int:
    layer = mix.attrs["settings"].layer
    if not -n_layers <= layer < n_layers:
        raise ValueError(
            f"SingleLayer: there is no layer {layer}, the biLM has layers 0 (the token encoder) to "
            f"{n_layers - 1} (the top); -1 is the top, too"
        )
    return layer
