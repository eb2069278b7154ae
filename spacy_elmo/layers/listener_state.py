"""What a listener keeps between two calls, and the messages for docs without layers it may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional
from weakref import WeakSet

import srsly
from spacy.tokens import Doc
from thinc.api import Model, deserialize_attr, serialize_attr

from ..extensions import get_layers
from .encoder import BatchLayers

if TYPE_CHECKING:
    from .listener import SharedBatch
    from .upstream import Upstream

ANY = "*"


@dataclass(eq=False)
class ListenerState:
    """What a listener keeps between two calls.

    saved_checksum (Optional[str]): Checksum of the upstream's weights when the listener was saved.
    upstream (Optional[Upstream]): The component that it listens to.
    others (WeakSet[Upstream]): Its upstreams in other pipelines, with which the component that
        listens is shared (`source=`).
    batch (Optional[SharedBatch]): The last batch that it was given.
    """

    saved_checksum: Optional[str] = None
    upstream: Optional[Upstream] = None
    others: WeakSet[Upstream] = field(default_factory=WeakSet)
    batch: Optional[SharedBatch] = None

    def checksums(self) -> list[str]:
        """RETURNS (list[str]): Checksums of the weights whose layers the listener may read. The one
        of the present upstream comes first."""
        upstreams = [] if self.upstream is None else [self.upstream, *self.others]
        checksums = [checksum for one in upstreams if (checksum := one.checksum) is not None]
        return checksums or ([] if self.saved_checksum is None else [self.saved_checksum])

    def __reduce__(self) -> tuple:
        return ListenerState, tuple(self.checksums()[:1])

    def __deepcopy__(self, memo: dict[int, Any]) -> ListenerState:
        """A task alone is copied for `nlp.rehearse`, where both copies read the same layers."""
        upstream = memo.get(id(self.upstream), self.upstream)
        return ListenerState(next(iter(self.checksums()), None), upstream)


@serialize_attr.register(ListenerState)
def _serialize_state(_: Any, state: ListenerState, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps(next(iter(state.checksums()), None))


@deserialize_attr.register(ListenerState)
def _deserialize_state(state: ListenerState, data: bytes, name: str, model: Model) -> ListenerState:
    state.saved_checksum = srsly.msgpack_loads(data)
    return state


def describe_missing_layers(model: Model[list[Doc], BatchLayers], docs: Sequence[Doc]) -> str:
    """RETURNS (str): Why a listener cannot read layers from docs, and what to do."""
    upstream = model.attrs["link"].upstream
    listener, name = describe_listener(model), describe_upstream(model)
    if upstream is not None and upstream.is_removed:
        return (
            f"{listener} has lost the {name}, which was removed from the pipeline: add one, or "
            "call nlp.replace_listeners before removing it"
        )
    if upstream is not None and not upstream.keep_layers:
        return (
            f"{listener} needs the layers of the {name}, which has keep_layers = false, so that "
            "there are none on the docs: set keep_layers = true"
        )
    if any(get_layers(doc) is not None for doc in docs):
        return (
            f"{listener} needs the layers of the {name}, but those on the doc were computed with "
            "other weights, or by another component: the component must run before the listener "
            "(it is missing, disabled or excluded, or its weights have changed since)"
        )
    return (
        f"{listener} found no ELMo layers on a doc: the {name} must run before it (it is missing, "
        "disabled or excluded, its keep_layers is false, or it has another name, to which the "
        "listener's `upstream` must be set)"
    )


def describe_listener(model: Model[list[Doc], BatchLayers]) -> str:
    upstream = model.attrs["link"].upstream
    if upstream is None:
        return "a listener"
    for component, listeners in upstream.listener_map.items():
        if model in listeners:
            return f"the listener of {component!r}"
    return "a listener"


def describe_upstream(model: Model[list[Doc], BatchLayers]) -> str:
    upstream = model.attrs["link"].upstream
    name = model.attrs["settings"].upstream if upstream is None else upstream.name
    return "elmo component" if name == ANY else f"elmo component {name!r}"
