"""The activations of a batch of docs, as layers pass them on."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy
from thinc.types import Floats2d, Floats3d


class BatchLayers(NamedTuple):
    """Activations of a batch of docs, one doc after the other.

    layers (Floats3d): Shape (L+1, tokens of all docs, 2P); None if they were not to be kept.
    lengths (list[int]): Tokens of each doc.
    frozen (bool): Whether the biLM is frozen, so that nobody needs the gradient of the layers.
    mixed (Optional[Floats2d]): The mix of the layers, shape (tokens of all docs, width).
    """

    layers: Floats3d
    lengths: list[int]
    frozen: bool = False
    mixed: Optional[Floats2d] = None

    def split(self, array: Any = None) -> list[Any]:
        """RETURNS (list): A view (..., tokens, width) for each doc: `layers`, or another array."""
        array = self.layers if array is None else array
        ends = numpy.cumsum(self.lengths).tolist()
        return [array[..., end - n : end, :] for end, n in zip(ends, self.lengths)]
