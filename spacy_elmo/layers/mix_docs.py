"""The layer that applies a mix to the layers of a batch, and gives each doc its vectors."""

from __future__ import annotations

from math import isfinite
from types import SimpleNamespace
from typing import Any, Callable, Optional, cast

from thinc.api import Model
from thinc.types import Floats2d, Floats3d

from .batch_layers import BatchLayers
from .mixes import Mix

NAME = "mix_docs"
_CHECK_EVERY = 100


def check_gradient(check: SimpleNamespace, value: Any, name: str, *, sync: bool) -> float:
    """Refuse gradients that are NaN or infinite, by a number that is not finite then. With `sync`
    it is looked at; without, every hundredth: on a GPU, to look is to wait.

    check (SimpleNamespace): The `sum` of the numbers since the last look, and how many, `n`.
    RETURNS (float): Their sum, if this call looked; else 0.
    """
    check.sum, check.n = check.sum + value, check.n + 1
    if not sync and check.n < _CHECK_EVERY:
        return 0.0
    total, check.sum, check.n = float(check.sum), 0.0, 0
    if not isfinite(total):
        raise ValueError(
            f"{name} is NaN or infinite: lower the learning rate, or clip gradients "
            "(training.optimizer.grad_clip)"
        )
    return total


def mix_docs(mix: Mix) -> Model[BatchLayers, list[Floats2d]]:
    """Apply a mix to a batch of docs."""
    dims = {"nO": mix.maybe_get_dim("nO")}
    attrs = {"gradient_check": SimpleNamespace(sum=0.0, n=0)}
    return Model(NAME, _forward_mix, init=_init_mix, layers=[mix], dims=dims, attrs=attrs)


def _init_mix(model: Model, X: Optional[BatchLayers] = None, Y: Any = None) -> None:
    mix = model.layers[0]
    mix.initialize(X=None if X is None else X.layers)
    if X is not None:
        model.set_dim("nO", mix.predict(X.layers).shape[1])


def _forward_mix(
    model: Model[BatchLayers, list[Floats2d]], X: BatchLayers, is_train: bool
) -> tuple[list[Floats2d], Callable]:
    if not X.lengths:
        return [], lambda dY: model.ops.xp.zeros_like(X.layers)
    mix, check = model.layers[0], model.attrs["gradient_check"]
    name = f"the gradient of the ELMo vectors (mix: {mix.name})"
    if not is_train:
        check_gradient(check, 0.0, name, sync=True)
    settings = mix.attrs.get("settings", SimpleNamespace())
    settings.frozen = X.frozen
    Y, backprop_mix = mix(X.layers, is_train)
    if model.has_dim("nO") and Y.shape[1] != model.get_dim("nO"):
        raise ValueError(
            f"this model reads ELMo vectors of width {model.get_dim('nO')}, but its upstream's "
            f"biLM gives {Y.shape[1]}: use the biLM it was trained on, or train it anew"
        )
    rate = getattr(settings, "dropout", 0.0) if is_train else 0.0
    mask: Any = model.ops.get_dropout_mask(Y.shape, rate) if rate else 1.0

    def backprop(dY: list[Floats2d]) -> Optional[Floats3d]:
        flat = model.ops.flatten(dY)
        flat = flat * mask if rate else flat
        is_cpu = model.ops.device_type == "cpu"
        check_gradient(check, model.ops.xp.sum(flat), name, sync=is_cpu)
        if X.frozen and not any(node.param_names for node in mix.walk()):
            return None
        return backprop_mix(flat)

    return model.ops.unflatten(Y * mask if rate else Y, cast(Any, X.lengths)), backprop
