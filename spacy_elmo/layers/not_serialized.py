"""Values in a thinc model's `attrs` that are not saved with the model.

A model that is loaded keeps those it was built with, so that a saved pipeline can be loaded with
other settings.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TypeVar

from thinc.api import deserialize_attr, serialize_attr

T = TypeVar("T")


def not_serialized(kind: type[T]) -> type[T]:
    """Leave values of a class out of saved models. Usable as a decorator."""
    serialize_attr.register(kind, lambda _, value, name, model: b"")
    deserialize_attr.register(kind, lambda default, value, name, model: default)
    return kind


@not_serialized
class LayerSettings(SimpleNamespace):
    """The settings of a layer."""
