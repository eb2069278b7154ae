"""All layers side by side."""

from __future__ import annotations

from typing import Callable

from thinc.api import Model, registry
from thinc.types import Floats2d, Floats3d

from .mix import Mix


@registry.layers("spacy-elmo.ConcatLayers.v1")
def ConcatLayers() -> Mix:
    """All layers side by side, from the token encoder up: width (L+1) * 2P."""
    return Model("concat_layers", forward)


def forward(mix: Mix, X: Floats3d, is_train: bool) -> tuple[Floats2d, Callable]:
    xp = mix.ops.xp
    n_layers, n_tokens, width = X.shape

    def backprop(dY: Floats2d) -> Floats3d:
        return xp.transpose(xp.reshape(dY, (n_tokens, n_layers, width)), (1, 0, 2))

    return xp.reshape(xp.transpose(X, (1, 0, 2)), (n_tokens, n_layers * width)), backprop
