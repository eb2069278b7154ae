"""Values computed from a module's weights: rebuilt when the weights change, never saved."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdRef

from .forking import Lock


def fingerprint(module: nn.Module) -> Hashable:
    """Identify the present weights of a module, without reading them.

    PyTorch counts in-place changes of a tensor. It does not count those made through
    `parameter.data`: whoever makes them calls `BiLM.invalidate`. Nor does it count those of an
    inference tensor: a module with such weights (moved or read in `torch.inference_mode`) is never
    the same as before, so that everything derived from it is computed at every call.
    """
    return tuple(
        (WeakIdRef(p), p.data_ptr(), object() if p.is_inference() else p._version)
        for p in module.parameters()
    )


class Derived:
    """A thread-safe slot for one value derived from weights. A copy or a pickle of it is empty."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: Hashable = None
        self._value: Any = None

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """RETURNS: The value built for this key, building it if the key has changed."""
        with self._lock:
            if self._value is None or self._key != key:
                self._value = None  # Free the old value first: both may be large.
                self._value = build()
                self._key = key
            return self._value

    def clear(self) -> None:
        with self._lock:
            self._key = self._value = None

    def __reduce__(self) -> tuple:
        return Derived, ()
