"""What the mixes share: their type, their state, an error."""

from __future__ import annotations

from typing import NamedTuple, Optional

from thinc.api import Model
from thinc.types import Floats2d, Floats3d

Mix = Model[Floats3d, Floats2d]


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


def wrong_number(name: str, n_weights: int, n_layers: int) -> ValueError:
    return ValueError(
        f"{name} has {n_weights} weights, but the biLM has {n_layers} layers (the token encoder "
        "included): give one weight per layer"
    )
