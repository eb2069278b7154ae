"""What the mixes share: their type, their state, and checks of their settings."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from thinc.api import Model
from thinc.types import Floats2d, Floats3d

Mix = Model[Floats3d, Floats2d]


class MixState(NamedTuple):
    """What a mix makes of the layers.

    kind (str): The name of the mix.
    weights (Optional[list[float]]): The weight of each layer, from the token encoder up. For a
        `LearnedMix`: the share of each layer in the norm of the weights that read it. None if they
        are not known yet, or if the mix has none.
    gamma (Optional[float]): The scale, if the mix has one.
    """

    kind: str
    weights: Optional[list[float]] = None
    gamma: Optional[float] = None


def mix_state(mix: Mix, n_layers: int) -> MixState:
    """RETURNS (MixState): A mix for a report. L+1 is 0 if it is not known."""
    state = mix.attrs.get("state")
    return MixState(mix.name) if state is None else state(mix, n_layers)


def wrong_number(name: str, n_weights: int, n_layers: int) -> ValueError:
    return ValueError(
        f"{name} has {n_weights} weights, but the biLM has {n_layers} layers (the token encoder "
        "included): give one weight per layer"
    )


def check_dropout(name: str, dropout: float) -> float:
    if not 0 <= dropout < 1:
        raise ValueError(f"{name}: dropout must be at least 0 and less than 1, found {dropout}")
    return float(dropout)


def drop(mix: Mix, Y: Floats2d) -> tuple[Floats2d, Callable[[Floats2d], Floats2d]]:
    """RETURNS (tuple): The vectors, some values zero and the others scaled up; and the backprop."""
    mask = mix.ops.get_dropout_mask(Y.shape, mix.attrs["settings"].dropout)
    return Y * mask, lambda dY: dY * mask
