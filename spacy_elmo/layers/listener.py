"""What a downstream component puts where its tok2vec goes: the other end of a shared biLM.

The layers that the upstream component computed reach a listener on one of two ways. During
training the upstream sends each batch, and collects the gradients of all listeners in a
`TrainingBatch`. At prediction, and if the upstream is frozen and annotates, they stand on the docs.

A copy of a thinc model loses its class, so a listener is a plain Model whose state is a `Link` in
its attributes, which no copy and no pickle takes along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Callable, Optional, Protocol

from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Ops
from thinc.types import Floats2d, Floats3d

from ..extensions import layers_of
from .encoder import NAME as ENCODER
from .encoder import DocLayers, FrozenLayers, get_bilm, split_tokens
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

    @property
    def layer_shape(self) -> tuple[int, int]: ...

    def layers_on_demand(self, docs: Sequence[Doc]) -> Optional[DocLayers]: ...


class TrainingBatch:
    """The layers of one batch on their way to the listeners, and the gradients on their way back.

    docs (Sequence[Doc]): The docs.
    layers (DocLayers): What the upstream computed for them.
    links (Sequence[Link]): The listeners that may take them, and send a gradient.
    backprop (Optional[Callable]): Takes the sum of the gradients (L+1, tokens, 2P). None if the
        biLM is frozen.
    """

    def __init__(
        self,
        docs: Sequence[Doc],
        layers: DocLayers,
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
    """A listener's connection to its upstream."""

    def __init__(self) -> None:
        self.upstream: Optional[Upstream] = None
        self.end_training()

    def end_training(self) -> None:
        """Forget everything but the upstream."""
        self.batch: Optional[TrainingBatch] = None
        # Zeros for the docs that a component is initialised with: other layers read off the width
        # of their input from a prediction, for which the biLM need not run. `spacy debug model`
        # predicts such docs also after it has trained on them.
        self.sample: Optional[TrainingBatch] = None
        # An upstream that only annotates would not know.
        self.is_training = False

    def __deepcopy__(self, memo: dict) -> Link:
        return Link()

    def __reduce__(self) -> tuple:
        return Link, ()


class GradientCheck(NotSerialized):
    """Refuses gradients that are NaN or infinite. On a GPU, looking at a number waits for all that
    is computed before it: there, only every hundredth call looks, at the sum of them all."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._n_calls = 0
        self._what = ""

    def add(self, ops: Ops, value: Any, what: str) -> None:
        """Check a gradient, at once or later.

        ops (Ops): What the gradient was computed with.
        value (Any): A number that is not finite if the gradient is not.
        what (str): What to call it in the error.
        RAISES (ValueError): If this gradient, or one before, is not finite.
        """
        self._sum = self._sum + value  # Once it is not finite, it never is again.
        self._what = what
        self._n_calls += 1
        if ops.device_type == "cpu" or self._n_calls == _CHECK_EVERY:
            self.look()

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

    def __deepcopy__(self, memo: dict) -> GradientCheck:
        return GradientCheck()

    def __reduce__(self) -> tuple:
        return GradientCheck, ()


@dataclass(frozen=True)
class ListenerSettings(NotSerialized):
    """upstream, grad_factor: See `LayersListener`."""

    upstream: str
    grad_factor: float


def LayersListener(upstream: str = ANY, grad_factor: float = 1.0) -> Model[list[Doc], DocLayers]:
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


def is_listener(model: Model, upstream: str) -> bool:
    """RETURNS (bool): Whether the model listens to the component of this name."""
    return model.name == NAME and model.attrs["settings"].upstream in (ANY, upstream)


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
    encoder: Model[list[Doc], DocLayers], listener: Model[list[Doc], DocLayers], upstream: Upstream
) -> Model[list[Doc], DocLayers]:
    """What `nlp.replace_listeners` puts where the listener was: a copy of the upstream's model."""
    factor = listener.attrs["settings"].grad_factor
    encoder.attrs["grad_factor"] = 0.0 if upstream.frozen else factor
    return encoder


def init(model: Model[list[Doc], DocLayers], X: Any = None, Y: Any = None) -> None:
    if X is None:
        return
    link: Link = model.attrs["link"]
    if link.upstream is None:
        raise ValueError(
            f"a listener has no {_described(model)} before it in the pipeline: add one, or correct "
            "the listener's `upstream`, which is the component's name or '*'"
        )
    n_layers, width = link.upstream.layer_shape
    lengths = [len(doc) for doc in X]
    layers = model.ops.alloc3f(n_layers, sum(lengths), width)
    link.sample = TrainingBatch(X, DocLayers(layers, lengths), [link])


def forward(
    model: Model[list[Doc], DocLayers], docs: Sequence[Doc], is_train: bool
) -> tuple[DocLayers, Callable]:
    link: Link = model.attrs["link"]
    link.is_training = link.is_training or is_train
    batch = link.batch
    if not is_train or batch is None or batch.keys != [_key(doc) for doc in docs]:
        if is_train and link.upstream is not None and (batch is None or batch.was_taken_by(link)):
            # Somebody trains the component alone, as `spacy debug model` does.
            layers_now = link.upstream.layers_on_demand(docs)
            if layers_now is not None:
                return FrozenLayers(*layers_now), lambda d_layers: []
        layers = [_layers(model, doc, is_train) for doc in docs]
        return _join(model, layers), lambda d_layers: []
    give_back = batch.take(link)
    if batch.frozen:
        return FrozenLayers(*batch.layers), lambda d_layers: []
    factor = model.attrs["settings"].grad_factor

    def backprop(d_layers: Floats3d) -> list:
        give_back(d_layers * factor)
        return []

    return batch.layers, backprop


def _layers(model: Model[list[Doc], DocLayers], doc: Doc, is_train: bool) -> Floats3d:
    """What stands on the doc. At prediction, also what the upstream has just sent for it, because
    a component may annotate during training with an upstream that does not."""
    link: Link = model.attrs["link"]
    layers = layers_of(doc, model.attrs["settings"].upstream)
    if layers is not None:
        if is_train and link.upstream is not None and not link.upstream.frozen:
            raise ValueError(
                f"{link.upstream.name!r} is to be fine-tuned (frozen = false), but gets no "
                "updates: take it out of training.frozen_components, or set frozen = true"
            )
        return layers
    if not is_train:
        for batch in (link.batch, link.sample):
            if batch is not None and _key(doc) in batch.keys:
                return batch.layers.split()[batch.keys.index(_key(doc))]
    raise ValueError(_no_layers(model, is_train))


def _no_layers(model: Model[list[Doc], DocLayers], is_train: bool) -> str:
    link: Link = model.attrs["link"]
    name = _described(model)
    if not is_train:
        return (
            f"a listener found no ELMo layers on a doc: the {name} must run before it (it is "
            "missing, disabled or excluded, or its keep_layers is false)"
        )
    if link.batch is None:
        return (
            f"a listener is trained, but got nothing from the {name}. If that is in "
            "training.frozen_components, put it into training.annotating_components, too; else it "
            "must come earlier in the pipeline"
        )
    return (
        f"a listener is trained on docs that differ from those the {name} has seen: no component "
        "between them may retokenise, leave out or reorder docs"
    )


def _described(model: Model[list[Doc], DocLayers]) -> str:
    upstream = model.attrs["settings"].upstream
    return "elmo component" if upstream == ANY else f"elmo component {upstream!r}"


def _join(model: Model[list[Doc], DocLayers], layers: Sequence[Floats3d]) -> DocLayers:
    if not layers:
        upstream = model.attrs["link"].upstream
        n_layers, width = (0, 0) if upstream is None else upstream.layer_shape
        return DocLayers(model.ops.alloc3f(n_layers, 0, width), [])
    lengths = [array.shape[1] for array in layers]
    return DocLayers(model.ops.xp.concatenate(layers, axis=1), lengths)


def _key(doc: Doc) -> bytes:
    """Tells docs apart by their tokens."""
    return doc.to_array(ORTH).tobytes()


def mix_docs(mix: Mix) -> Model[DocLayers, list[Floats2d]]:
    """Apply a mix to a batch of docs."""
    return Model(
        _MIX_DOCS,
        _mix_forward,
        init=_mix_init,
        layers=[mix],
        dims={"nO": None},
        attrs={"gradient_check": GradientCheck()},
    )


def _mix_init(model: Model, X: Optional[DocLayers] = None, Y: Any = None) -> None:
    mix = model.layers[0]
    if X is None:
        mix.initialize()
        return
    mix.initialize(X=X.layers)
    model.set_dim("nO", mix.predict(X.layers).shape[1])


def _mix_forward(
    model: Model[DocLayers, list[Floats2d]], X: DocLayers, is_train: bool
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
