"""The ELMo mix: a weighted sum with learned weights (Peters et al. 2018, equation 1)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Callable, Optional

from thinc.api import Model, NumpyOps, registry
from thinc.types import Floats2d, Floats3d

from ...bilm.validation import check_range
from .mix import Mix, wrong_number

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
        forward,
        init=init,
        params={"weights": None, "gamma": None},
        attrs={"settings": settings, "state": state},
    )


def init(mix: Mix, X: Optional[Floats3d] = None, Y: Any = None) -> None:
    weights, gamma = mix.attrs["settings"].weights, mix.attrs["settings"].gamma
    if weights is None and X is not None:
        weights = [0.0] * X.shape[0]
    if weights is not None:
        mix.set_param("weights", mix.ops.asarray1f(weights))
        mix.set_param("gamma", mix.ops.asarray1f([gamma]))


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    xp, settings = mix.ops.xp, mix.attrs["settings"]
    frozen = settings.frozen
    raw, gamma = mix.get_param("weights"), mix.get_param("gamma")
    if len(raw) != X.shape[0]:
        raise wrong_number("ScalarMix", len(raw), X.shape[0])
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


def state(mix: Mix, n_layers: int) -> tuple:
    if not mix.has_param("weights"):
        return ()
    raw = mix.ops.to_numpy(mix.get_param("weights")).astype("float64")
    return NumpyOps().softmax(raw).tolist(), float(mix.get_param("gamma")[0])


def _normalize(X: Any) -> tuple[Any, Callable]:
    """Mean 0 and variance 1 over the last axis."""
    X = X - X.mean(axis=-1, keepdims=True)
    scale = ((X * X).mean(axis=-1, keepdims=True) + LAYER_NORM_EPSILON) ** -0.5
    X *= scale

    def backprop(dX: Any) -> Any:
        along = (dX * X).mean(axis=-1, keepdims=True)
        return (dX - dX.mean(axis=-1, keepdims=True) - X * along) * scale

    return X, backprop
