"""How the activations of all layers become one vector per token (Peters et al. 2018, section 3.2).

A mix is a thinc model that maps (L+1, tokens, 2P) to (tokens, width), token by token. Its name for
configs is an entry point of the group "thinc_layers" in `pyproject.toml`.

What a mix guarantees: vectors in the type of the layers and in memory of their own; layers that it
does not change; any number of tokens, also 0; only `mix.ops` for arrays, which are on a GPU
sometimes. The component's own mix must have no weights to train.

Two optional `attrs`: `settings` is a namespace, which thinc does not save. `mix_docs` applies a
`dropout` among them, and sets `frozen`: no gradient of the layers is needed. `state` takes the mix
and the number of layers (0 if it is not known), and returns the weight of each layer and the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple, Optional

import numpy
from thinc.api import Linear, Model, NumpyOps, Relu, chain, registry
from thinc.types import Floats2d, Floats3d

from ..bilm.mixes import TrainedMix
from ..bilm.validation import check_range

Mix = Model[Floats3d, Floats2d]

_FROZEN = "frozen_mix"
_LAYER_NORM_EPSILON = 1e-12


class MixState(NamedTuple):
    """What a mix makes of the layers.

    weights (Optional[list[float]]): The weight of each layer, from the token encoder up. For a
        `LearnedMix`: the share of each layer in the norm of the weights that read it. None if they
        are not known yet, or if the mix has none.
    """

    kind: str
    weights: Optional[list[float]] = None
    gamma: Optional[float] = None


def mix_state(mix: Mix, n_layers: int) -> MixState:
    """RETURNS (MixState): A mix for a report. L+1 is 0 if it is not known."""
    state = mix.attrs.get("state")
    return MixState(mix.name, *(() if state is None else state(mix, n_layers)))


def _wrong_number(name: str, n_weights: int, n_layers: int) -> ValueError:
    return ValueError(
        f"{name} has {n_weights} weights, but the biLM has {n_layers} layers (the token encoder "
        "included): give one weight per layer"
    )


@registry.layers("spacy-elmo.FrozenMix.v1")
def FrozenMix(
    weights: Optional[Sequence[float]] = None, gamma: float = 1.0, seed: Optional[int] = None
) -> Mix:
    """`gamma * sum_j weights_j h_j` with weights that are never trained.

    weights (Optional[Sequence[float]]): One per layer, from the token encoder up, used as they
        are. None: 1 / (L+1) each, or random ones if there is a seed. None as the component's mix:
        if the weights of the biLM come with a mix, as en_elmo_sm and AllenNLP's models do, it is
        used, scaled with gamma.
    gamma (float): The scale.
    seed (Optional[int]): Use the softmax of random numbers (normal, variance 1) as weights.
    RAISES (ValueError): If there are weights and a seed; at first use, if the number of weights is
        not the number of layers.
    """
    if weights is not None and seed is not None:
        raise ValueError("FrozenMix: give either weights or the seed of random ones, not both")
    settings = SimpleNamespace(weights=weights, gamma=float(gamma), seed=seed, trained=None)
    return Model(_FROZEN, _forward_frozen, attrs={"settings": settings, "state": _frozen_state})


def with_trained(mix: Mix, trained: Optional[TrainedMix]) -> Mix:
    """RETURNS (Mix): One that has learned, in place of a mix without weights and seed; None for the
    mean. Not the same mix: other threads may use it with other weights of the biLM."""
    if mix.name != _FROZEN or trained is None:
        return mix
    settings = SimpleNamespace(**{**vars(mix.attrs["settings"]), "trained": trained})
    attrs = {"settings": settings, "state": _frozen_state}
    return Model(_FROZEN, _forward_frozen, attrs=attrs, ops=mix.ops)


def _frozen_state(mix: Mix, n_layers: int) -> tuple:
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
        raise _wrong_number("FrozenMix", len(weights), n_layers)
    return weights, gamma


def _forward_frozen(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    weights, gamma = _frozen_state(mix, X.shape[0])
    scales = [gamma * weight for weight in weights]
    Y = X[0] * scales[0]
    for scale, layer in zip(scales[1:], X[1:]):
        Y += layer * scale
    return Y, lambda dY: mix.ops.xp.stack([dY * scale for scale in scales])


@registry.layers("spacy-elmo.SingleLayer.v1")
def SingleLayer(layer: int = -1) -> Mix:
    """One layer alone, as in TagLM and CoVe.

    layer (int): Its number, 0 being the token encoder; negative numbers count from the top.
    RAISES (ValueError): At first use, if there is no such layer.
    """
    settings = SimpleNamespace(layer=int(layer))
    return Model("single_layer", _forward_single, attrs={"settings": settings, "state": _one_hot})


def _forward_single(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    [weights] = _one_hot(mix, X.shape[0])
    layer = weights.index(1.0)
    return X[layer].copy(), lambda dY: mix.ops.xp.stack([dY * weight for weight in weights])


def _one_hot(mix: Mix, n_layers: int) -> tuple:
    layer = mix.attrs["settings"].layer
    if not n_layers:
        return ()
    if not -n_layers <= layer < n_layers:
        raise ValueError(
            f"SingleLayer: there is no layer {layer}, the biLM has layers 0 (the token encoder) to "
            f"{n_layers - 1} (the top); -1 is the top, too"
        )
    return ([float(number == layer % n_layers) for number in range(n_layers)],)


@registry.layers("spacy-elmo.ConcatLayers.v1")
def ConcatLayers() -> Mix:
    """All layers side by side, from the token encoder up: width (L+1) * 2P."""
    return Model("concat_layers", _forward_concat)


def _forward_concat(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    xp = mix.ops.xp
    n_layers, n_tokens, width = X.shape

    def backprop(dY: Floats2d) -> Floats3d:
        return xp.transpose(xp.reshape(dY, (n_tokens, n_layers, width)), (1, 0, 2))

    return xp.reshape(xp.transpose(X, (1, 0, 2)), (n_tokens, n_layers * width)), backprop


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

    weights (Optional[Sequence[float]]): The initial weights before the softmax, one per layer from
        the token encoder up. None: zeros, so that all layers count the same.
    gamma (float): The initial scale.
    layer_norm (bool): Normalise each layer before it is weighted. Each token is normalised by its
        own mean and variance, so that it does not depend on the other tokens of its batch.
    l2 (float): The paper's lambda: `l2 * sum_j weights_j^2` is added to the loss of every batch,
        which pulls the mix towards the mean of the layers. 1 is strong, 0.001 lets it learn.
    dropout (float): Dropout rate of the mixed vectors. Unlike the dropout of other layers, it
        is not changed by `training.dropout`.
    RAISES (ValueError): If a setting is impossible; at initialisation, if the number of weights is
        not the number of layers.
    """
    check_range("ScalarMix: l2", l2, 0)
    check_range("ScalarMix: dropout", dropout, 0, 1)
    settings = SimpleNamespace(weights=weights, gamma=float(gamma), layer_norm=layer_norm, l2=l2)
    settings.dropout, settings.frozen = dropout, False
    return Model(
        "scalar_mix",
        _forward_scalar,
        init=_init_scalar,
        params={"weights": None, "gamma": None},
        attrs={"settings": settings, "state": _scalar_state},
    )


def _init_scalar(mix: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    weights, gamma = mix.attrs["settings"].weights, mix.attrs["settings"].gamma
    if weights is None and X is not None:
        weights = [0.0] * X.shape[0]
    if weights is not None:
        mix.set_param("weights", mix.ops.asarray1f(weights))
        mix.set_param("gamma", mix.ops.asarray1f([gamma]))


def _forward_scalar(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    xp, settings = mix.ops.xp, mix.attrs["settings"]
    frozen = settings.frozen
    raw, gamma = mix.get_param("weights"), mix.get_param("gamma")
    if len(raw) != X.shape[0]:
        raise _wrong_number("ScalarMix", len(raw), X.shape[0])
    shares: Any = mix.ops.softmax(raw)
    backprop_norm = None
    if settings.layer_norm:
        X, backprop_norm = _normalize(X)
    mean = xp.tensordot(shares, X, axes=1)

    def backprop(dY: Floats2d) -> Optional[Floats3d]:
        mix.inc_grad("gamma", xp.vdot(dY, mean).reshape(1))
        d_mean = gamma * dY
        d_shares = X.reshape((len(shares), -1)) @ d_mean.reshape((-1,))
        d_raw = shares * (d_shares - shares @ d_shares)
        mix.inc_grad("weights", d_raw + 2 * settings.l2 * raw)
        if frozen:
            return None
        dX = shares[:, None, None] * d_mean
        return dX if backprop_norm is None else backprop_norm(dX)

    return gamma * mean, backprop


def _scalar_state(mix: Mix, n_layers: int) -> tuple:
    if not mix.has_param("weights"):
        return ()
    raw = mix.ops.to_numpy(mix.get_param("weights")).astype("float64")
    return NumpyOps().softmax(raw).tolist(), float(mix.get_param("gamma")[0])


def _normalize(X: Any) -> tuple[Any, Callable]:
    """Mean 0 and variance 1 over the last axis."""
    X = X - X.mean(axis=-1, keepdims=True)
    scale = ((X * X).mean(axis=-1, keepdims=True) + _LAYER_NORM_EPSILON) ** -0.5
    X *= scale

    def backprop(dX: Any) -> Any:
        along = (dX * X).mean(axis=-1, keepdims=True)
        return (dX - dX.mean(axis=-1, keepdims=True) - X * along) * scale

    return X, backprop


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
        _forward_learned,
        init=_init_learned,
        dims={"nO": width},
        layers=[chain(ConcatLayers(), function)],
        attrs={"settings": SimpleNamespace(dropout=float(dropout)), "state": _learned_state},
    )


def _init_learned(mix: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    mix.layers[0].initialize(X=X)


def _forward_learned(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    n_inputs = _first_linear(mix).get_dim("nI")
    n_layers, _, width = X.shape
    if n_inputs != n_layers * width:
        raise ValueError(
            f"LearnedMix was trained on all layers of a biLM, {n_inputs} numbers per "
            f"token in all, but this biLM has {n_layers} layers of width {width}: train it anew, "
            "or use the biLM it was trained on"
        )
    return mix.layers[0](X, is_train)


def _learned_state(mix: Mix, n_layers: int) -> tuple:
    linear = _first_linear(mix)
    if not n_layers or not linear.has_param("W"):
        return ()
    W = mix.ops.to_numpy(linear.get_param("W"))
    norms = numpy.linalg.norm(W.reshape(len(W), n_layers, -1), axis=(0, 2))
    return ((norms / norms.sum()).tolist(),)


def _first_linear(mix: Mix) -> Model:
    return next(node for node in mix.walk() if "W" in node.param_names)
