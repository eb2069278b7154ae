"""The layer that applies a mix to the layers of a batch, and gives each doc its vectors."""

from __future__ import annotations

from math import isfinite
from typing import Any, Callable, Optional, cast

from thinc.api import Model
from thinc.types import Floats2d, Floats3d

from .batch_layers import BatchLayers
from .mixes import Mix
from .not_serialized import not_serialized

NAME = "mix_docs"
# Gradients between two checks on a GPU.
_CHECK_EVERY = 100


@not_serialized
class GradientCheck:
    """Refuses gradients that are NaN or infinite.

    On a GPU, reading a number waits for everything that is computed before it. There, only every
    hundredth gradient is checked, by the sum of all since the last check.
    """

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._n_values = 0

    def add(self, value: Any, name: str, *, sync: bool = True) -> float:
        """Check a gradient.

        value (Any): A number that is not finite if the gradient is not.
        name (str): The name of the gradients in the error.
        sync (bool): Check at once, also where that waits for the device.
        RETURNS (float): The sum of the values since the last check; 0 if this call checked nothing.
        """
        self._sum = self._sum + value  # Once it is not finite, it never is again.
        self._n_values += 1
        if not sync and self._n_values < _CHECK_EVERY:
            return 0.0
        total = float(self._sum)
        self._sum, self._n_values = 0.0, 0
        if not isfinite(total):
            raise ValueError(
                f"{name} is NaN or infinite: lower the learning rate, or clip gradients "
                "(training.optimizer.grad_clip)"
            )
        return total


def mix_docs(mix: Mix) -> Model[BatchLayers, list[Floats2d]]:
    """Apply a mix to a batch of docs."""
    return Model(
        NAME,
        _forward_mix,
        init=_init_mix,
        layers=[mix],
        dims={"nO": mix.maybe_get_dim("nO")},
        attrs={"gradient_check": GradientCheck()},
    )


def _init_mix(model: Model, X: Optional[BatchLayers] = None, Y: Any = None) -> None:
    mix = model.layers[0]
    if X is None:
        mix.initialize()
        return
    mix.initialize(X=X.layers)
    model.set_dim("nO", mix.predict(X.layers).shape[1])


def _forward_mix(
    model: Model[BatchLayers, list[Floats2d]], X: BatchLayers, is_train: bool
) -> tuple[list[Floats2d], Callable]:
    if not X.lengths:
        return [], lambda dY: model.ops.xp.zeros_like(X.layers)
    check: GradientCheck = model.attrs["gradient_check"]
    mix = model.layers[0]
    name = f"the gradient of the ELMo vectors (mix: {mix.name})"
    if not is_train:
        check.add(0.0, name)
    run = mix.attrs.get("forward_frozen") if X.frozen else None
    Y, backprop_mix = mix(X.layers, is_train) if run is None else run(mix, X.layers, is_train)
    if model.has_dim("nO") and Y.shape[1] != model.get_dim("nO"):
        raise ValueError(
            f"this model reads ELMo vectors of width {model.get_dim('nO')}, but its upstream's "
            f"biLM gives {Y.shape[1]}: use the biLM it was trained on, or train it anew"
        )

    def backprop(dY: list[Floats2d]) -> Optional[Floats3d]:
        ops = model.ops
        flat = ops.flatten(dY)
        check.add(ops.xp.sum(flat), name, sync=ops.device_type == "cpu")
        if X.frozen and not any(node.param_names for node in mix.walk()):
            return None
        return backprop_mix(flat)

    return model.ops.unflatten(Y, cast(Any, X.lengths)), backprop
