"""A learned function of all layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Optional

import numpy
from thinc.api import Linear, Model, Relu, chain, registry
from thinc.types import Floats2d, Floats3d

from ...bilm.validation import check_range
from .concat import ConcatLayers
from .mix import Mix


@registry.layers("spacy-elmo.LearnedMix.v1")
def LearnedMix(width: int, hidden_width: Optional[int] = None, dropout: float = 0.0) -> Mix:
    """A learned function of all layers side by side: linear, or with one hidden layer of rectified
    linear units.

    width (int): Width of the vectors it makes.
    hidden_width (Optional[int]): Width of the hidden layer; None for a linear function.
    dropout (float): Dropout rate of the vectors it makes, as for `ScalarMix`.
    RAISES (ValueError): If a setting is impossible.
    """
    check_range("LearnedMix: width", width, 1)
    check_range("LearnedMix: dropout", dropout, 0, 1)
    function: Model = Linear(width)
    if hidden_width is not None:
        check_range("LearnedMix: hidden_width", hidden_width, 1)
        function = chain(Relu(hidden_width), function)
    return Model(
        "learned_mix",
        forward,
        init=init,
        dims={"nO": width},
        layers=[chain(ConcatLayers(), function)],
        attrs={"settings": SimpleNamespace(dropout=float(dropout)), "state": state},
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
    return mix.layers[0](X, is_train)


def state(mix: Mix, n_layers: int) -> tuple:
    linear = _first_linear(mix)
    if not n_layers or not linear.has_param("W"):
        return ()
    W = mix.ops.to_numpy(linear.get_param("W"))
    norms = numpy.linalg.norm(W.reshape(len(W), n_layers, -1), axis=(0, 2))
    return ((norms / norms.sum()).tolist(),)


def _first_linear(mix: Mix) -> Model:
    return next(node for node in mix.walk() if "W" in node.param_names)
