"""What a frozen biLM computed for the docs of the training data, kept from epoch to epoch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Optional

import numpy
from spacy.util import registry

from ..bilm.validation import check_range


@registry.misc("spacy-elmo.ActivationCache.v1")
@dataclass(eq=False)
class ActivationCache:
    """Activations by doc, in main memory, also if the biLM is on a GPU. Entries are never evicted:
    every doc recurs once per epoch, so that evicting the oldest would always evict the one needed
    next. A copy, or a pickle, of a cache is empty.

    memory_mb (float): Bound of what is kept, in MiB.
    half_precision (bool): Keep float16: half the bytes, values rounded to 11 bits.
    RAISES (ValueError): If the bound is negative.
    """

    memory_mb: float = 1024
    half_precision: bool = False

    def __post_init__(self) -> None:
        check_range("activation cache: memory_mb", self.memory_mb, 0)
        self.clear()

    def __reduce__(self) -> tuple:
        return type(self), (self.memory_mb, self.half_precision)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget everything, and free memory."""
        self._entries: dict[Any, numpy.ndarray] = {}
        self._source: Any = None
        self.n_bytes = 0

    def bind(self, source: Any) -> None:
        """Set the source of the activations, an object that is replaced when its results change.
        Another source clears the cache."""
        if self._source is None or source is not self._source():
            self.clear()
            self._source = weakref.ref(source)

    def get(self, key: Any) -> Optional[numpy.ndarray]:
        """RETURNS (Optional[ndarray]): What was put, perhaps as float16. Must not be changed."""
        return self._entries.get(key)

    def put(self, key: Any, activations: numpy.ndarray) -> numpy.ndarray:
        """Keep activations, shape (L+1, tokens, 2P), if there is room for them. RETURNS (ndarray):
        They, rounded to float16 also if there was no room: values do not depend on that."""
        if self.half_precision:
            activations = activations.astype("float16")
        n_bytes = self.n_bytes + activations.nbytes
        if key not in self._entries and n_bytes <= self.memory_mb * 2**20:
            self._entries[key] = activations
            self.n_bytes = n_bytes
        return activations
