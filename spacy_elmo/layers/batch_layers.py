"""The activations of a batch of docs, as layers pass them on."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from thinc.types import Floats2d

from ..inference import Session


class BatchLayers(NamedTuple):
    """Activations of a batch of docs, one doc after the other.

    layers (Optional[Floats3d]): Shape (L+1, tokens of all docs, 2P); None if they are not kept.
    lengths (list[int]): Tokens of each doc.
    frozen (bool): Whether the biLM is frozen, so that nobody needs the gradient of the layers.
    mixed (Optional[Floats2d]): The mix of the layers, shape (tokens of all docs, width).
    pooled (Optional[Floats2d]): What vectors of spans are the mean of, if not `mixed`.
    session (Optional[Session]): What computed them; another one if the weights change meanwhile.
    """

    layers: Any
    lengths: list[int]
    frozen: bool = False
    mixed: Optional[Floats2d] = None
    pooled: Optional[Floats2d] = None
    session: Optional[Session] = None

    def split(self) -> list[BatchLayers]:
        """RETURNS (list): The part of each doc, in memory of its own."""
        parts, end = [], 0
        for n in self.lengths:
            start, end = end, end + n
            layers = None if self.layers is None else self.layers[:, start:end].copy()
            mixed, pooled = (
                x if x is None else x[start:end].copy() for x in (self.mixed, self.pooled)
            )
            parts.append(self._replace(layers=layers, lengths=[n], mixed=mixed, pooled=pooled))
        return parts
