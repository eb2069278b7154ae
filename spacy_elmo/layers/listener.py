"""What a downstream component puts where its tok2vec goes: the other end of a shared biLM.

The layers that the upstream component computed reach a listener in one of two ways. During training
the upstream hands over each batch, and collects the gradients of all listeners in a
`TrainingBatch`. At prediction, and if the upstream is frozen and annotates, the listener reads them
from the docs.

What happens to a batch, if the biLM is fine-tuned with two listeners:

    nlp.update
      Elmo.update                 runs the biLM, gives each `Link` the `TrainingBatch`
      Elmo.finish_update          too early: the optimizer is kept for later
      first task's update
        forward                   takes the layers of the batch; the mix and the task run on them
        backprop                  adds its gradient to the batch
      second task's update
        forward, backprop         the same; the sum is complete now:
          TrainingBatch.finish    sends the sum back through the biLM
          Elmo._apply_postponed   updates the weights with the optimizer that was kept

If a task is left out (`nlp.update(exclude=...)`), nobody says so: the sum that has come so far goes
back through the biLM at the next `Elmo.update`. If the biLM is frozen, nothing goes back.

Which layers on a doc are a listener's own? Those that were computed with the weights of its
upstream, as their checksum tells, whatever the upstream is called. A listener without an upstream
(because the component is excluded) takes those of the weights that its upstream had when the
pipeline was saved. So docs that the same pipeline stored can be read, but layers that were left by
another pipeline are refused. If no weights are known, the upstream's name decides.

A copy of a thinc model loses its class, so a listener is a plain Model whose state is a `Link` in
its attributes. A copy and a pickle of a link are without an upstream, and without a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Callable, Optional, Protocol
from weakref import WeakSet

import srsly
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Ops, deserialize_attr, serialize_attr
from thinc.types import Floats2d, Floats3d

from ..extensions import layers_of
from .encoder import NAME as ENCODER
from .encoder import BatchLayers, FrozenLayers, get_bilm, split_tokens
from .mixes import Mix, begin_mix
from .not_serialized import NotSerialized

ANY = "*"
NAME = "elmo_listener"
_MIX_DOCS = "mix_docs"

# Gradients between two checks on a GPU.
_CHECK_EVERY = 100


class Upstream(Protocol):
    """The component that a listener listens to."""

    name: str
    frozen: bool
    keep_layers: bool

    @property
    def checksum(self) -> Optional[str]: ...

    @property
    def is_removed(self) -> bool: ...

    @property
    def layer_shape(self) -> tuple[int, int]: ...

    def layers_on_demand(self, docs: Sequence[Doc]) -> Optional[BatchLayers]: ...


class TrainingBatch:
    """The layers of one batch on their way to the listeners, and the gradients on their way back.

    docs (Sequence[Doc]): The docs.
    layers (BatchLayers): What the upstream computed for them.
    links (Sequence[Link]): The listeners that may take them, and send a gradient.
    backprop (Optional[Callable]): Takes the sum of the gradients (L+1, tokens, 2P). None if the
        biLM is frozen.
    """

    def __init__(
        self,
        docs: Sequence[Doc],
        layers: BatchLayers,
        links: Sequence[Link],
        backprop: Optional[Callable[[Floats3d], Any]] = None,
    ) -> None:
        self.keys = [_key(doc) for doc in docs]
        self.layers = layers
        self.frozen = backprop is None
        self._backprop = backprop
        self._gradient: Optional[Floats3d] = None
        self._not_taken = set(links)
        self._not_returned = 0
        self.started = False  # Whether any listener has taken the layers.

    def take(self, link: Link) -> Callable[[Floats3d], None]:
        """RETURNS (Callable): Takes the listener's gradient. The last one that is due sends the sum
        into the biLM."""
        self._not_taken.discard(link)
        self._not_returned += 1
        self.started = True
        return self._add

    def was_taken_by(self, link: Link) -> bool:
        return link not in self._not_taken

    def _add(self, gradient: Floats3d) -> None:
        if self._backprop is None:
            raise ValueError(
                "a listener sent a gradient after its batch had gone back through the biLM: it "
                "must finish a batch before the upstream gets the next"
            )
        if self._gradient is None:
            self._gradient = gradient
        else:
            self._gradient += gradient
        self._not_returned -= 1
        if self.complete:
            self.finish()

    @property
    def complete(self) -> bool:
        """Whether all listeners have sent their gradients."""
        return not self._not_taken and not self._not_returned

    def finish(self) -> None:
        """Send what has come so far into the biLM. Does nothing the second time."""
        backprop, self._backprop = self._backprop, None
        if backprop is not None and self._gradient is not None:
            backprop(self._gradient)
        self._gradient = None


class Link:
    """A listener's connection to its upstream.

    saved_checksum (Optional[str]): The checksum of the upstream's weights when the listener was
        saved.
    """

    def __init__(self, saved_checksum: Optional[str] = None) -> None:
        self.saved_checksum = saved_checksum
        self.upstream: Optional[Upstream] = None
        # Upstreams in other pipelines that share the listener's component (`source=`).
        self.others: WeakSet[Upstream] = WeakSet()
        self.component: Optional[str] = None
        self.end_training()

    def end_training(self) -> None:
        """Forget everything but the upstream."""
        self.batch: Optional[TrainingBatch] = None
        # Zeros for the initialisation docs: other layers infer the width of their input from a
        # prediction, and the biLM need not run for that. `spacy debug model` predicts such docs
        # also after it has trained on them.
        self.sample: Optional[TrainingBatch] = None

    def connect(self, upstream: Upstream, component: str) -> Optional[Upstream]:
        """Set the upstream.

        component (str): The name of the component that listens.
        RETURNS (Optional[Upstream]): The one before, if it was another.
        """
        self.component = component
        previous, self.upstream = self.upstream, upstream
        if previous is None or previous is upstream:
            return None
        self.others.discard(upstream)
        self.others.add(previous)
        return previous

    def checksums(self) -> list[str]:
        """RETURNS (list): Checksums of the weights whose layers are the listener's own, the present
        upstream's first."""
        upstreams = [] if self.upstream is None else [self.upstream, *self.others]
        found = [one for one in (upstream.checksum for upstream in upstreams) if one is not None]
        return found or ([] if self.saved_checksum is None else [self.saved_checksum])

    def __deepcopy__(self, memo: dict) -> Link:
        return Link(*self.checksums()[:1])

    def __reduce__(self) -> tuple:
        return Link, tuple(self.checksums()[:1])


@serialize_attr.register(Link)
def _serialize_link(_: Any, link: Link, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps(next(iter(link.checksums()), None))


@deserialize_attr.register(Link)
def _deserialize_link(link: Link, data: bytes, name: str, model: Model) -> Link:
    link.saved_checksum = srsly.msgpack_loads(data)
    return link


class GradientCheck(NotSerialized):
    """Refuses gradients that are NaN or infinite. On a GPU, looking at a number waits for all that
    is computed before it: there, only every hundredth call looks, at the sum of them all."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._seen = 0.0
        self._n_calls = 0
        self._what = ""

    def add(self, ops: Ops, value: Any, what: str) -> float:
        """Check a gradient, at once or later.

        ops (Ops): What the gradient was computed with.
        value (Any): A number that is not finite if the gradient is not.
        what (str): What to call it in the error.
        RETURNS (float): The sum of all values that were looked at and not returned before.
        RAISES (ValueError): If this gradient, or one before, is not finite.
        """
        self._sum = self._sum + value  # Once it is not finite, it never is again.
        self._what = what
        self._n_calls += 1
        if ops.device_type == "cpu" or self._n_calls == _CHECK_EVERY:
            self.look()
        seen, self._seen = self._seen, 0.0
        return seen

    def look(self) -> None:
        """RAISES (ValueError): If any gradient since the last look was not finite."""
        if not self._n_calls:
            return
        total = float(self._sum)
        self._sum, self._n_calls = 0.0, 0
        if not isfinite(total):
            raise ValueError(
                f"{self._what} is NaN or infinite: lower the learning rate, or clip gradients "
                "(training.optimizer.grad_clip)"
            )
        self._seen += total

    def __deepcopy__(self, memo: dict) -> GradientCheck:
        return GradientCheck()

    def __reduce__(self) -> tuple:
        return GradientCheck, ()


@dataclass(frozen=True)
class ListenerSettings(NotSerialized):
    """upstream, grad_factor: See `LayersListener`."""

    upstream: str
    grad_factor: float


def LayersListener(upstream: str = ANY, grad_factor: float = 1.0) -> Model[list[Doc], BatchLayers]:
    """The layers that an "elmo" component computes for the docs.

    upstream (str): Its name, or "*" for any.
    grad_factor (float): Scales the gradient that goes back to the biLM, if that is not frozen.
    """
    return Model(
        NAME,
        forward,
        init=init,
        attrs={"settings": ListenerSettings(upstream, float(grad_factor)), "link": Link()},
    )


def is_listener(model: Model, name: str, upstream: Upstream) -> bool:
    """RETURNS (bool): Whether the model listens to this component, which has this name now."""
    if model.name != NAME:
        return False
    link: Link = model.attrs["link"]
    return model.attrs["settings"].upstream in (ANY, name) or link.upstream is upstream


def replace_listener_cfg(upstream: dict, listener: dict, *, frozen: bool) -> dict:
    """What `nlp.replace_listeners` writes into the config: the listener's own block, with the
    upstream's model instead of its name.

    RAISES (ValueError): If the block is not one of ours.
    """
    name = str(listener.get("@architectures"))
    if name.split(".")[0] != "spacy-elmo":
        raise ValueError(
            f"cannot replace a listener inside {name}: model.tok2vec must be "
            "spacy-elmo.ElmoListener.v1 or spacy-elmo.ElmoTok2Vec.v1"
        )
    if frozen:
        listener = {**listener, "grad_factor": 0.0}
    return {**listener, "upstream": upstream}


def replace_listener(
    encoder: Model[list[Doc], BatchLayers],
    listener: Model[list[Doc], BatchLayers],
    upstream: Upstream,
) -> Model[list[Doc], BatchLayers]:
    """What `nlp.replace_listeners` puts where the listener was: a copy of the upstream's model."""
    factor = listener.attrs["settings"].grad_factor
    encoder.attrs["grad_factor"] = 0.0 if upstream.frozen else factor
    return encoder


def init(model: Model[list[Doc], BatchLayers], X: Any = None, Y: Any = None) -> None:
    if X is None:
        return
    link: Link = model.attrs["link"]
    if link.upstream is None:
        raise ValueError(
            f"a listener has no {_described(model)} before it in the pipeline: add one, or correct "
            "the listener's `upstream`, which is the component's name or '*'"
        )
    if not link.upstream.keep_layers:
        raise ValueError(_no_layers_kept(link, link.upstream))
    n_layers, width = link.upstream.layer_shape
    lengths = [len(doc) for doc in X]
    layers = model.ops.alloc3f(n_layers, sum(lengths), width)
    link.sample = TrainingBatch(X, BatchLayers(layers, lengths), [link])


def forward(
    model: Model[list[Doc], BatchLayers], docs: Sequence[Doc], is_train: bool
) -> tuple[BatchLayers, Callable]:
    link: Link = model.attrs["link"]
    if not is_train:
        return _join(model, _layers_of_docs(model, docs, is_train)), lambda d_layers: []
    batch, upstream = link.batch, link.upstream
    used_up = batch is not None and batch.was_taken_by(link)
    if used_up and upstream is not None and upstream.is_removed:
        batch = link.batch = None  # No other will come, and this one is of an earlier update.
    if batch is None or batch.keys != [_key(doc) for doc in docs]:
        if upstream is not None and (batch is None or used_up):
            # Somebody trains the component alone, as `spacy debug model` does.
            layers = upstream.layers_on_demand(docs)
            if layers is not None:
                return FrozenLayers(*layers), lambda d_layers: []
        return _join(model, _layers_of_docs(model, docs, is_train)), lambda d_layers: []
    give_back = batch.take(link)
    if batch.frozen:
        return FrozenLayers(*batch.layers), lambda d_layers: []
    factor = model.attrs["settings"].grad_factor

    def backprop(d_layers: Floats3d) -> list:
        give_back(d_layers * factor)
        return []

    return batch.layers, backprop


def _layers_of_docs(
    model: Model[list[Doc], BatchLayers], docs: Sequence[Doc], is_train: bool
) -> list[Floats3d]:
    """What is on the docs. At prediction, also what the upstream has just handed over for them,
    because a component may annotate during training with an upstream that does not."""
    link: Link = model.attrs["link"]
    upstream = link.upstream
    name = model.attrs["settings"].upstream if upstream is None else upstream.name
    checksums = link.checksums()
    found = []
    for doc in docs:
        layers = layers_of(doc, name, checksums)
        if layers is not None and is_train and upstream is not None and not upstream.frozen:
            raise ValueError(
                f"{upstream.name!r} is to be fine-tuned (frozen = false), but gets no "
                "updates: take it out of training.frozen_components, or set frozen = true"
            )
        for batch in () if is_train else (link.batch, link.sample):
            if layers is None and batch is not None and _key(doc) in batch.keys:
                layers = batch.layers.split()[batch.keys.index(_key(doc))]
        if layers is None:
            raise ValueError(_no_layers(model, doc, is_train))
        found.append(layers)
    return found


def _no_layers(model: Model[list[Doc], BatchLayers], doc: Doc, is_train: bool) -> str:
    link: Link = model.attrs["link"]
    name = _described(model)
    listener = "a listener" if link.component is None else f"the listener of {link.component!r}"
    if link.upstream is not None and link.upstream.is_removed:
        return (
            f"{listener} has lost the {name}, which was removed from the pipeline: add one, or "
            "call nlp.replace_listeners before removing it"
        )
    if not is_train:
        if link.upstream is not None and not link.upstream.keep_layers:
            return _no_layers_kept(link, link.upstream)
        if layers_of(doc) is not None:
            return (
                f"{listener} needs the layers of the {name}, but those on the doc were computed "
                "with other weights, or by another component: the component must run before the "
                "listener (it is missing, disabled or excluded, or its weights have changed since)"
            )
        return (
            f"{listener} found no ELMo layers on a doc: the {name} must run before it (it is "
            "missing, disabled or excluded, or its keep_layers is false)"
        )
    if link.batch is None:
        return (
            f"{listener} is trained, but got nothing from the {name}. If that is in "
            "training.frozen_components, put it into training.annotating_components, too; else it "
            "must come earlier in the pipeline"
        )
    return (
        f"{listener} is trained on docs that differ from those the {name} has seen: no component "
        "between them may retokenise, leave out or reorder docs"
    )


def _no_layers_kept(link: Link, upstream: Upstream) -> str:
    return (
        f"{link.component!r} listens to {upstream.name!r}, which has keep_layers = false, so that "
        "there are no layers on the docs: set keep_layers = true"
    )


def _described(model: Model[list[Doc], BatchLayers]) -> str:
    link: Link = model.attrs["link"]
    name = model.attrs["settings"].upstream
    if link.upstream is not None:
        name = link.upstream.name
    return "elmo component" if name == ANY else f"elmo component {name!r}"


def _join(model: Model[list[Doc], BatchLayers], layers: Sequence[Floats3d]) -> BatchLayers:
    if not layers:
        upstream = model.attrs["link"].upstream
        n_layers, width = (0, 0) if upstream is None else upstream.layer_shape
        return BatchLayers(model.ops.alloc3f(n_layers, 0, width), [])
    lengths = [array.shape[1] for array in layers]
    return BatchLayers(model.ops.xp.concatenate(layers, axis=1), lengths)


def _key(doc: Doc) -> bytes:
    """Tells docs apart by their tokens."""
    return doc.to_array(ORTH).tobytes()


def mix_docs(mix: Mix) -> Model[BatchLayers, list[Floats2d]]:
    """Apply a mix to a batch of docs."""
    return Model(
        _MIX_DOCS,
        _mix_forward,
        init=_mix_init,
        layers=[mix],
        dims={"nO": None},
        attrs={"gradient_check": GradientCheck()},
    )


def _mix_init(model: Model, X: Optional[BatchLayers] = None, Y: Any = None) -> None:
    mix = model.layers[0]
    if X is None:
        mix.initialize()
        return
    mix.initialize(X=X.layers)
    model.set_dim("nO", mix.predict(X.layers).shape[1])


def _mix_forward(
    model: Model[BatchLayers, list[Floats2d]], X: BatchLayers, is_train: bool
) -> tuple[list[Floats2d], Callable]:
    check: GradientCheck = model.attrs["gradient_check"]
    if not is_train:
        check.look()
    mix, frozen = model.layers[0], isinstance(X, FrozenLayers)
    Y, backprop_mix = begin_mix(mix, X.layers, is_train, frozen=frozen)
    if model.has_dim("nO") and Y.shape[1] != model.get_dim("nO") and X.lengths:
        raise ValueError(
            f"this model reads ELMo vectors of width {model.get_dim('nO')}, but its upstream's "
            f"biLM gives {Y.shape[1]}: use the biLM it was trained on, or train it anew"
        )

    def backprop(dY: list[Floats2d]) -> Optional[Floats3d]:
        flat = model.ops.flatten(dY) if dY else model.ops.alloc2f(*Y.shape)
        what = f"the gradient of the ELMo vectors (mix: {mix.name})"
        check.add(model.ops, model.ops.xp.sum(flat), what)
        return backprop_mix(flat)

    return split_tokens(Y, X.lengths), backprop


def mixes_of(model: Model) -> Iterator[tuple[str, Mix]]:
    """YIELDS (tuple): The mixes that a component's model applies, and where: "input" or "output"
    of an `ElmoTok2Vec`, else the empty string."""
    places = {}
    for node in model.walk():
        for place in ("input", "output"):
            mix = node.maybe_get_ref(f"{place}_mix") if f"{place}_mix" in node.ref_names else None
            if mix is not None:
                places[mix.id] = place
        if node.name == _MIX_DOCS:
            yield places.get(node.id, ""), node.layers[0]


def n_layers_of(model: Model) -> int:
    """RETURNS (int): L+1 of the biLM that a component's model listens to or holds; 0 for none."""
    for node in model.walk():
        if node.name == NAME and node.attrs["link"].upstream is not None:
            return node.attrs["link"].upstream.layer_shape[0]
        if node.name == ENCODER:
            return get_bilm(node).config.n_activations
    return 0
