"""Values in a thinc model's `attrs` that are not saved with the model.

They come from the config or belong to the running process. A model that is loaded keeps those it
was built with, so that a saved pipeline can be loaded with other settings.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from thinc.api import Model, deserialize_attr, serialize_attr

T = TypeVar("T")


def not_serialized(kind: type[T]) -> type[T]:
    """Leave values of a class out of saved models. Usable as a decorator."""
    serialize_attr.register(kind, _serialize)
    deserialize_attr.register(kind, _deserialize)
    return kind


def _serialize(_: Any, value: Any, name: str, model: Model) -> bytes:
    return b""


def _deserialize(default: T, value: Any, name: str, model: Model) -> T:
    return default


@not_serialized
class LayerSettings(SimpleNamespace):
    """The settings of a layer."""
