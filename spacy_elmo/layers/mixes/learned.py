"""A learned function of all layers."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy
from thinc.api import Linear, Model, Relu, chain, registry
from thinc.types import Floats2d, Floats3d

from ..not_serialized import LayerSettings
from .concat import ConcatLayers
from .mix import Mix, MixState, check_dropout, drop


@registry.layers("spacy-elmo.LearnedMix.v1")
def LearnedMix(width: int, hidden_width: Optional[int] = None, dropout: float = 0.0) -> Mix:
    """A learned function of all layers side by side: linear, or with one hidden layer of rectified
    linear units.

    width (int): Width of the vectors it makes.
    hidden_width (Optional[int]): Width of the hidden layer; None for a linear function.
    dropout (float): Dropout rate of the vectors it makes, as for `ScalarMix`.
    RAISES (ValueError): If a setting is impossible.
    """
    for name, value in (("width", width), ("hidden_width", hidden_width)):
        if value is not None and value < 1:
            raise ValueError(f"LearnedMix: {name} must be 1 or more, found {value}")
    function: Model = Linear(width)
    if hidden_width is not None:
        function = chain(Relu(hidden_width), function)
    settings = LayerSettings(dropout=check_dropout("LearnedMix", dropout))
    return Model(
        "learned_mix",
        forward,
        init=init,
        dims={"nO": width},
        layers=[chain(ConcatLayers(), function)],
        attrs={"settings": settings, "state": state},
    )


def init(mix: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    mix.layers[0].initialize(X=X)


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    n_inputs = _first_linear(mix).get_dim("nI")
    n_layers, _, width = X.shape
    if n_inputs != n_layers * width:
        raise ValueError(
            f"LearnedMix was trained on all layers of a biLM, {n_inputs} numbers per "
            f"token in all, but this biLM has {n_layers} layers of width {width}: train it anew, "
            "or use the biLM it was trained on"
        )
    Y, backprop = mix.layers[0](X, is_train)
    if not is_train or not mix.attrs["settings"].dropout:
        return Y, backprop
    Y, backprop_dropout = drop(mix, Y)
    return Y, lambda dY: backprop(backprop_dropout(dY))


def state(mix: Mix, n_layers: int) -> MixState:
    linear = _first_linear(mix)
    if not n_layers or not linear.has_param("W"):
        return MixState(mix.name)
    W = mix.ops.to_numpy(linear.get_param("W"))
    norms = numpy.linalg.norm(W.reshape(len(W), n_layers, -1), axis=(0, 2))
    return MixState(mix.name, (norms / norms.sum()).tolist())


def _first_linear(mix: Mix) -> Model:
    return next(node for node in mix.walk() if "W" in node.param_names)
