"""Values in a thinc model's `attrs` that are not saved with the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from thinc.api import Model, deserialize_attr, serialize_attr


class NotSerialized:
    """Base class of attributes that come from the config or belong to the running process. They are
    not saved. A model that is loaded keeps those it was built with, so that a saved pipeline can be
    loaded with other settings.
    """


class LayerSettings(NotSerialized, SimpleNamespace):
    """The settings of a layer."""


@serialize_attr.register(NotSerialized)
def _serialize(_: Any, value: Any, name: str, model: Model) -> bytes:
    return b""


@deserialize_attr.register(NotSerialized)
def _deserialize(default: NotSerialized, value: Any, name: str, model: Model) -> NotSerialized:
    return default
