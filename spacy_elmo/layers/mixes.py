"""How the activations of all layers become one vector per token (Peters et al. 2018, section 3.2).

Each mix maps (L+1, tokens, 2P) to (tokens, width), token by token. A twin of `ScalarMix` for plain
PyTorch is in `bilm.mixes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional

import numpy
from thinc.api import Linear, Model, Relu, chain, registry
from thinc.types import Floats2d, Floats3d

from .not_serialized import NotSerialized

Mix = Model[Floats3d, Floats2d]


@dataclass(frozen=True)
class _Scalar(NotSerialized):
    weights: Optional[list[float]]
    gamma: float
    layer_norm: bool
    l2: float
    dropout: float


@dataclass(frozen=True)
class _Frozen(NotSerialized):
    weights: Optional[list[float]]
    gamma: float
    seed: Optional[int]


@dataclass(frozen=True)
class _Learned(NotSerialized):
    dropout: float


@dataclass(frozen=True)
class _Single(NotSerialized):
    layer: int


LAYER_NORM_EPSILON = 1e-12


@registry.layers("spacy-elmo.ScalarMix.v1")
def ScalarMix(
    weights: Optional[Sequence[float]] = None,
    gamma: float = 1.0,
    layer_norm: bool = False,
    l2: float = 0.0,
    dropout: float = 0.0,
) -> Mix:
    """`gamma * sum_j softmax(weights)_j h_j`, with weights and gamma learned for the task
    (equation 1).

    weights (Optional[Sequence[float]]): Where the weights start, before the softmax, one per layer
        from the token encoder up. None: zeros, so that all layers count the same.
    gamma (float): Where the scale starts.
    layer_norm (bool): Normalise each layer before it is weighted. Each token by its own mean and
        variance, so that it does not depend on its batch mates.
    l2 (float): The paper's lambda: `l2 * sum_j weights_j^2` is added to the loss of every batch,
        which pulls the mix towards the mean of the layers. 1 is strong, 0.001 lets it learn.
    dropout (float): Of the mixed vectors during training. Unlike the dropout of other layers, it
        is not changed by `training.dropout`.
    RAISES (ValueError): If a setting is impossible; at initialisation, if the number of weights is
        not the number of layers.
    """
    if l2 < 0:
        raise ValueError(f"ScalarMix: l2 must be 0 or more, found {l2}")
    return Model(
        "scalar_mix",
        _scalar_forward,
        init=_scalar_init,
        params={"weights": None, "gamma": None},
        attrs={
            "settings": _Scalar(
                _checked_weights("ScalarMix", weights),
                float(gamma),
                layer_norm,
                float(l2),
                _checked_dropout("ScalarMix", dropout),
            )
        },
    )


def _scalar_init(model: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    weights, gamma = model.attrs["settings"].weights, model.attrs["settings"].gamma
    if X is None and weights is None:
        return
    n_layers = len(weights) if X is None else X.shape[0]
    values = _one_per_layer("ScalarMix", weights or [0.0] * n_layers, n_layers)
    model.set_param("weights", model.ops.asarray1f(values))
    model.set_param("gamma", model.ops.asarray1f([gamma]))


def _scalar_forward(
    model: Mix, X: Floats3d, is_train: bool, *, frozen: bool = False
) -> tuple[Floats2d, Callable]:
    xp, settings = model.ops.xp, model.attrs["settings"]
    raw, gamma = model.get_param("weights"), model.get_param("gamma")
    _one_per_layer("ScalarMix", raw, X.shape[0])
    shares = _softmax(xp, raw)
    backprop_norm = None
    if settings.layer_norm:
        X, backprop_norm = _normalize(X)
    mean = xp.tensordot(shares, X, axes=1)
    Y, backprop_dropout = _drop(model, gamma * mean, is_train)

    def backprop(dY: Floats2d) -> Optional[Floats3d]:
        dY = backprop_dropout(dY)
        model.inc_grad("gamma", xp.vdot(dY, mean).reshape(1))
        d_mean = gamma * dY
        d_shares = X.reshape((len(shares), -1)) @ d_mean.reshape((-1,))
        d_raw = shares * (d_shares - shares @ d_shares)
        model.inc_grad("weights", d_raw + 2 * settings.l2 * raw)
        if frozen:
            return None
        dX = shares[:, None, None] * d_mean
        return dX if backprop_norm is None else backprop_norm(dX)

    return Y, backprop


@registry.layers("spacy-elmo.FrozenMix.v1")
def FrozenMix(
    weights: Optional[Sequence[float]] = None, gamma: float = 1.0, seed: Optional[int] = None
) -> Mix:
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    weights (Optional[Sequence[float]]): One per layer, from the token encoder up, used as they
        are. None: 1 / (L+1) each, or random ones if there is a seed.
    gamma (float): The scale.
    seed (Optional[int]): Take the softmax of random numbers (normal, variance 1) for weights.
    RAISES (ValueError): If there are weights and a seed; at first use, if the number of weights is
        not the number of layers.
    """
    if weights is not None and seed is not None:
        raise ValueError("FrozenMix: give either weights or the seed of random ones, not both")
    return Model(
        "frozen_mix",
        _frozen_forward,
        attrs={
            "settings": _Frozen(_checked_weights("FrozenMix", weights), float(gamma), seed),
        },
    )


def _frozen_weights(model: Mix, n_layers: int) -> list[float]:
    weights, seed = model.attrs["settings"].weights, model.attrs["settings"].seed
    if weights is not None:
        return _one_per_layer("FrozenMix", weights, n_layers)
    if seed is None:
        return [1.0 / n_layers] * n_layers
    return _softmax(numpy, numpy.random.default_rng(seed).normal(size=n_layers)).tolist()


def _frozen_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    gamma = model.attrs["settings"].gamma
    scales = [gamma * weight for weight in _frozen_weights(model, X.shape[0])]
    Y = X[0] * scales[0]
    for scale, layer in zip(scales[1:], X[1:]):
        Y += layer * scale

    def backprop(dY: Floats2d) -> Floats3d:
        return model.ops.xp.stack([dY * scale for scale in scales])

    return Y, backprop


@registry.layers("spacy-elmo.LearnedMix.v1")
def LearnedMix(width: int, hidden_width: Optional[int] = None, dropout: float = 0.0) -> Mix:
    """A learned function of all layers side by side: linear, or with one hidden layer of rectified
    linear units.

    width (int): Of the vectors it makes.
    hidden_width (Optional[int]): Of the hidden layer; None for a linear function.
    dropout (float): Of the vectors it makes, as for `ScalarMix`.
    RAISES (ValueError): If a setting is impossible.
    """
    for name, value in (("width", width), ("hidden_width", hidden_width)):
        if value is not None and value < 1:
            raise ValueError(f"LearnedMix: {name} must be 1 or more, found {value}")
    function: Model = Linear(width)
    if hidden_width is not None:
        function = chain(Relu(hidden_width), function)
    return Model(
        "learned_mix",
        _learned_forward,
        init=_learned_init,
        layers=[chain(ConcatLayers(), function)],
        attrs={"settings": _Learned(_checked_dropout("LearnedMix", dropout))},
    )


def _learned_init(model: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    model.layers[0].initialize(X=X)


def _learned_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    reader = _first_linear(model)
    n_layers, _, width = X.shape
    if reader.get_dim("nI") != n_layers * width:
        raise ValueError(
            f"LearnedMix was trained on all layers of a biLM, {reader.get_dim('nI')} numbers per "
            f"token in all, but this biLM has {n_layers} layers of width {width}: train it anew, "
            "or use the biLM it was trained on"
        )
    Y, backprop_function = model.layers[0](X, is_train)
    Y, backprop_dropout = _drop(model, Y, is_train)
    return Y, lambda dY: backprop_function(backprop_dropout(dY))


def _first_linear(model: Mix) -> Model:
    return next(node for node in model.walk() if "W" in node.param_names)


@registry.layers("spacy-elmo.SingleLayer.v1")
def SingleLayer(layer: int = -1) -> Mix:
    """One layer alone, as in TagLM and CoVe.

    layer (int): Its number, 0 being the token encoder; negative numbers count from the top.
    RAISES (ValueError): At first use, if there is no such layer.
    """
    return Model("single_layer", _single_forward, attrs={"settings": _Single(int(layer))})


def _single_layer(model: Mix, n_layers: int) -> int:
    layer = model.attrs["settings"].layer
    if not -n_layers <= layer < n_layers:
        raise ValueError(
            f"SingleLayer: there is no layer {layer}, the biLM has layers 0 (the token encoder) to "
            f"{n_layers - 1} (the top); -1 is the top, too"
        )
    return layer


def _single_forward(model: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    layer = _single_layer(model, X.shape[0])

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


def begin_mix(
    mix: Mix, X: Floats3d, is_train: bool, *, frozen: bool
) -> tuple[Floats2d, Callable[[Floats2d], Optional[Floats3d]]]:
    """Run a mix.

    frozen (bool): Nobody needs the gradient of the layers: it is not computed, where the mix allows
        that, and must not be used.
    """
    if frozen and mix.name == "scalar_mix":
        return _scalar_forward(mix, X, is_train, frozen=True)
    Y, backprop = mix(X, is_train)
    if frozen and not any(node.param_names for node in mix.walk()):
        return Y, lambda dY: None
    return Y, backprop


class MixState(NamedTuple):
    """What a mix makes of the layers.

    weights (Optional[list[float]]): Each layer's, from the token encoder up. For a `LearnedMix`
        the share of each layer in the norm of the weights that read it. None if not known yet.
    gamma (Optional[float]): The scale, where there is one.
    """

    weights: Optional[list[float]]
    gamma: Optional[float]


def mix_state(model: Mix, n_layers: int) -> Optional[MixState]:
    """Tell what a mix does now.

    model (Mix): One of the mixes of this module.
    n_layers (int): L+1; 0 if nobody knows, as without an upstream.
    RETURNS (Optional[MixState]): None for a model that is not one of these mixes.
    """
    ops = model.ops
    if model.name == "scalar_mix":
        if not model.has_param("weights"):
            return MixState(None, None)
        raw = ops.to_numpy(model.get_param("weights")).astype("float64")
        gamma = ops.to_numpy(model.get_param("gamma"))
        return MixState(_softmax(numpy, raw).tolist(), float(gamma[0]))
    if not n_layers:
        return MixState(None, None)
    if model.name == "frozen_mix":
        return MixState(_frozen_weights(model, n_layers), model.attrs["settings"].gamma)
    if model.name == "single_layer":
        weights = [0.0] * n_layers
        weights[_single_layer(model, n_layers)] = 1.0
        return MixState(weights, None)
    if model.name == "concat_layers":
        return MixState([1.0] * n_layers, None)
    if model.name == "learned_mix":
        reader = _first_linear(model)
        if not reader.has_param("W"):
            return MixState(None, None)
        W = ops.to_numpy(reader.get_param("W"))
        norms = numpy.linalg.norm(W.reshape(len(W), n_layers, -1), axis=(0, 2))
        return MixState((norms / norms.sum()).tolist(), None)
    return None


def _softmax(xp: Any, raw: Any) -> Any:
    exp = xp.exp(raw - raw.max())
    return exp / exp.sum()


def _checked_weights(name: str, weights: Optional[Sequence[float]]) -> Optional[list[float]]:
    if weights is None:
        return None
    if not len(weights):
        raise ValueError(f"{name}: weights is empty: give one number per layer, or null")
    return [float(weight) for weight in weights]


def _one_per_layer(name: str, weights: Any, n_layers: int) -> Any:
    if len(weights) != n_layers:
        raise ValueError(
            f"{name} has {len(weights)} weights, but the biLM has {n_layers} layers (the token "
            "encoder included): give one weight per layer"
        )
    return weights


def _checked_dropout(name: str, dropout: float) -> float:
    if not 0 <= dropout < 1:
        raise ValueError(f"{name}: dropout must be at least 0 and less than 1, found {dropout}")
    return float(dropout)


def _drop(model: Mix, Y: Floats2d, is_train: bool) -> tuple[Floats2d, Callable]:
    rate = model.attrs["settings"].dropout
    if not is_train or not rate:
        return Y, lambda dY: dY
    mask = model.ops.get_dropout_mask(Y.shape, rate)
    return Y * mask, lambda dY: dY * mask


def _normalize(X: Any) -> tuple[Any, Callable]:
    """Mean 0 and variance 1 over the last axis."""
    X = X - X.mean(axis=-1, keepdims=True)
    scale = ((X * X).mean(axis=-1, keepdims=True) + LAYER_NORM_EPSILON) ** -0.5
    X *= scale

    def backprop(dX: Any) -> Any:
        along = (dX * X).mean(axis=-1, keepdims=True)
        return (dX - dX.mean(axis=-1, keepdims=True) - X * along) * scale

    return X, backprop
