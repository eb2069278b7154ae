"""The layer that a task's component uses as its tok2vec: it reads the layers of a shared biLM.

The layers of the upstream component reach a listener in one of two ways. During training the
upstream hands over each batch, and collects the gradients of all listeners in a `SharedBatch`. At
prediction, and if the upstream gets no updates, the listener reads them from the docs. Where they
are missing, the upstream computes them.

The events of one update, if the biLM is fine-tuned with two listeners:

    nlp.update
      Elmo.update                 runs the biLM, gives the `SharedBatch` to each `ListenerState`
      Elmo.finish_update          too early: the batch keeps the optimizer
      first task's update
        forward                   takes the layers of the batch; the mix and the task run on them
        backprop                  adds its gradient to the batch
      second task's update
        forward, backprop         the same; the sum is complete:
          SharedBatch.finish      sends the sum back through the biLM
          Elmo.finish_update      updates the weights with the optimizer that was kept

If a task is left out (`nlp.update(exclude=...)`), the sum stays incomplete: it goes back through
the biLM at the next `Elmo.update`. If the biLM is frozen, nothing goes back.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import srsly
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Optimizer, deserialize_attr, serialize_attr
from thinc.types import Floats3d

from ..extensions import get_layers
from .batch_layers import BatchLayers

if TYPE_CHECKING:
    from .upstream import Upstream

NAME = "elmo_listener"
ANY = "*"

Listener = Model[list[Doc], BatchLayers]


@dataclass(eq=False)
class ListenerState:
    """What a listener keeps between two calls, in its model's attributes: a copy of a thinc model
    loses its class. A copy has no batch, a pickle no upstream either.

    saved_checksum (Optional[str]): Checksum of the upstream's weights when the listener was saved,
        or when it got another upstream.
    between (Sequence[str]): The components after the upstream and before the listener that set
        sentence boundaries.
    """

    saved_checksum: Optional[str] = None
    upstream: Optional[Upstream] = None
    between: Sequence[str] = ()
    batch: Optional[SharedBatch] = None

    @property
    def checksum(self) -> Optional[str]:
        """Checksum of the weights whose layers it may read. If None, upstream names decide."""
        present = None if self.upstream is None else self.upstream.checksum
        return present or self.saved_checksum

    def __reduce__(self) -> tuple:
        return ListenerState, (self.checksum,)

    def __deepcopy__(self, memo: dict[int, Any]) -> ListenerState:
        """A task alone is copied for `nlp.rehearse`, where both copies read the same layers."""
        return ListenerState(self.checksum, memo.get(id(self.upstream), self.upstream))


@serialize_attr.register(ListenerState)
def _serialize_state(_: Any, state: ListenerState, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps(state.checksum)


@deserialize_attr.register(ListenerState)
def _deserialize_state(state: ListenerState, data: bytes, name: str, model: Model) -> ListenerState:
    state.saved_checksum = srsly.msgpack_loads(data)
    return state


@dataclass(eq=False)
class SharedBatch:
    """The layers of one batch for the listeners, and the sum of their gradients.

    docs (Sequence[Doc]): The docs, and as `keys` the word types of each, to notice changes.
    waiting (set[ListenerState]): The listeners that have not taken the layers yet.
    backprop (Optional[Callable]): Takes the sum of the gradients (L+1, tokens, 2P), or None if no
        listener has sent one, and the optimizer. None if the biLM is frozen, and after the call.
    sgd (Optional[Optimizer]): Updates the weights as soon as the sum is complete.
    started (bool): Whether a listener has taken the layers.
    n_pending (int): The listeners that have taken the layers and not yet sent a gradient.
    """

    docs: Sequence[Doc]
    layers: BatchLayers
    waiting: set[ListenerState] = field(default_factory=set)
    backprop: Optional[Callable[[Optional[Floats3d], Optional[Optimizer]], None]] = None
    sgd: Optional[Optimizer] = None
    started: bool = False
    n_pending: int = 0
    gradient: Optional[Floats3d] = None

    def __post_init__(self) -> None:
        self.keys = doc_keys(self.docs)

    def accumulate(self, gradient: Floats3d) -> list:
        """Add a listener's gradient; the last one sends the sum into the biLM. RETURNS: []."""
        if self.backprop is None:
            raise ValueError(
                "a listener sent a gradient after its batch had gone back through the biLM: it "
                "must finish a batch before the upstream gets the next"
            )
        self.gradient = gradient if self.gradient is None else self.gradient + gradient
        self.n_pending -= 1
        if not self.waiting and not self.n_pending:
            self.finish()
        return []

    def finish(self) -> None:
        """Send the sum into the biLM, complete or not. Does nothing the second time."""
        backprop, self.backprop = self.backprop, None
        if backprop is not None:
            backprop(self.gradient, self.sgd)
        self.gradient = None


def doc_keys(docs: Sequence[Doc]) -> list[bytes]:
    """RETURNS (list[bytes]): The word types of each doc."""
    return [doc.to_array(ORTH).tobytes() for doc in docs]


def make_source(upstream: Union[str, Listener], grad_factor: float) -> Listener:
    """RETURNS (Model): From docs to the layers of an "elmo" component that is named, or "*" for
    any; or an `ElmoEncoder`, the task's own biLM. See `ElmoListener`."""
    if not isinstance(upstream, str):
        upstream.attrs["gradient"] = SimpleNamespace(factor=grad_factor)
        return upstream
    settings = SimpleNamespace(upstream=upstream, grad_factor=grad_factor)
    return Model(NAME, forward, attrs={"settings": settings, "link": ListenerState()})


def forward(model: Listener, docs: Sequence[Doc], is_train: bool) -> tuple[BatchLayers, Callable]:
    state: ListenerState = model.attrs["link"]
    batch, upstream = state.batch, state.upstream
    _check_weights(model)
    # A batch of a fine-tuned biLM can be taken twice, until its gradient goes back.
    if batch is not None and not (is_train and (state in batch.waiting or batch.backprop)):
        batch = None
    if batch is not None and batch.keys != doc_keys(docs):
        if any(doc is other for doc in docs for other in batch.docs):
            raise ValueError(
                f"{_describe(model)} is trained on docs that differ from those that the elmo "
                "component was trained on: no component between them may retokenise, leave out or "
                "reorder docs"
            )
        batch = None  # It waits since an update that has left out this listener.
    if batch is None:
        if is_train and upstream is not None:
            upstream.train_without_update(docs, _describe(model))
        return _read_layers(model, docs), lambda d_layers: []
    batch.started = True
    batch.waiting.discard(state)
    if batch.backprop is None:
        return batch.layers, lambda d_layers: []
    batch.n_pending += 1
    factor = model.attrs["settings"].grad_factor
    return batch.layers, lambda d_layers: batch.accumulate(d_layers * factor)


def _read_layers(model: Listener, docs: Sequence[Doc]) -> BatchLayers:
    """Read the layers from the docs. The upstream computes those that are not there."""
    state: ListenerState = model.attrs["link"]
    upstream, checksum = state.upstream, state.checksum
    name = model.attrs["settings"].upstream if upstream is None else upstream.name
    linked = upstream is not None
    layers: list[Any] = [get_layers(doc, name, checksum, by_name=linked) for doc in docs]
    missing = [doc for doc, array in zip(docs, layers) if array is None]
    if missing:
        component = "elmo component" if name == ANY else f"elmo component {name!r}"
        if upstream is None:
            raise ValueError(
                f"a listener needs the layers of the {component}, which is not before it in the "
                "pipeline, and the doc has no layers of its weights: add it or correct the "
                "listener's `upstream`, which is the component's name or '*'"
            )
        if not upstream.keep_layers:
            raise ValueError(
                f"{_describe(model)} needs the layers of the {component}, which has keep_layers = "
                "false, so that there are none on docs: set keep_layers = true"
            )
        if state.between and any(x.is_sent_start for doc in missing for x in doc[1:]):
            warnings.warn(
                f"{_describe(model)} lets the biLM run where {name!r} has not, on docs with "
                f"sentence boundaries that {name!r} does not see: they are set after it, by "
                f"{', '.join(state.between)}. The vectors are others than where {name!r} runs: "
                "enable it (in training: put it into annotating_components), or set sentence "
                "boundaries before it",
                stacklevel=2,
            )
        computed = iter(upstream.predict(missing))
        layers = [next(computed).layers if array is None else array for array in layers]
    if not layers:
        n_layers, width = (0, 0) if upstream is None else upstream.layer_shape
        return BatchLayers(model.ops.alloc3f(n_layers, 0, width), [], frozen=True)
    lengths = [array.shape[1] for array in layers]
    arrays = list(map(model.ops.asarray3f, layers))  # Those of stored docs are in main memory.
    return BatchLayers(model.ops.xp.concatenate(arrays, axis=1), lengths, frozen=True)


def _check_weights(model: Listener) -> None:
    """Compare, once, the weights of the upstream with those that the listener was saved with."""
    state: ListenerState = model.attrs["link"]
    if state.upstream is None or state.saved_checksum is None:
        return
    saved, state.saved_checksum = state.saved_checksum, None
    if saved != state.upstream.checksum:
        warnings.warn(
            f"{_describe(model)} was trained with other weights than those of "
            f"{state.upstream.name!r}, and may predict anything: use its own, or train it anew",
            stacklevel=2,
        )


def _describe(model: Listener) -> str:
    """RETURNS (str): A listener and the component that it belongs to."""
    listeners = model.attrs["link"].upstream.listener_map
    names = [name for name, models in listeners.items() if model in models]
    return f"the listener of {names[0]!r}" if names else "a listener"
