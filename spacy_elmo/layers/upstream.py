"""The upstream of listeners: runs a biLM over docs, and shares the layers with other components."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Callable, Optional, cast

from spacy.language import Language
from spacy.pipeline import (
    DependencyParser,
    EntityLinker,
    SentenceRecognizer,
    Sentencizer,
    Tok2Vec,
)
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model, Optimizer
from thinc.layers.chain import init as init_chain
from thinc.types import Floats3d

from .. import extensions
from ..bilm import BiLM
from ..inference import Session
from ..pooling import Pooling
from .activation_cache import ActivationCache
from .batch_layers import BatchLayers
from .encoder import encode, get_bilm, get_session, get_shim
from .listener import ANY, ListenerState, SharedBatch
from .listener import NAME as LISTENER
from .mix_docs import check_gradient
from .mixes import Mix

# `pipe` collects this many batches of tokens before it runs: the more docs, the more sequences of
# similar length.
_BATCHES_PER_BUFFER = 3


class RunState:
    """What a component keeps only in the running process: the docs of the last update, until
    `end_training`, its batch, if the biLM is not frozen, and what `check_gradient` keeps. A copy
    and a pickle are empty."""

    def __init__(self) -> None:
        self.docs: Sequence[Doc] = ()
        self.batch: Optional[SharedBatch] = None
        self.gradient_check = SimpleNamespace(sum=0.0, n=0)
        self.linked: tuple[Any, list[str]] = None, []

    def __reduce__(self) -> tuple:
        return RunState, ()


@dataclass(eq=False, repr=False)
class Upstream(Tok2Vec):
    """Predicts for the user, and gives batches to the components that listen (see
    `layers.listener`)."""

    # The settings of `Elmo`. They are no strings (`annotations` of `__future__`): the config system
    # would look for their names in the module of `Elmo`.
    nlp: Language
    name: str = field()  # Else the attribute of the class above counts as a default.
    model: Model[list[Doc], BatchLayers] = field()
    mix: Mix
    keep_layers: bool
    set_vectors: bool
    batch_size: int
    frozen: bool
    optimizer: Optional[Optimizer]
    activation_cache: Optional[ActivationCache]
    pooling: Optional[Pooling]
    _run: RunState = field(default_factory=RunState, init=False)

    def __setstate__(self, state: Any) -> None:
        """Connect the listeners of a copy or of a pickle to it: their states have no upstream."""
        super().__setstate__(state)
        for listener in self.listeners:
            listener.attrs["link"].upstream = self

    @property
    def bilm(self) -> BiLM:
        """The biLM."""
        return get_bilm(self.model)

    @property
    def layer_shape(self) -> tuple[int, int]:
        """L+1 and 2P."""
        config = get_shim(self.model).stored_bilm().config
        return config.n_activations, config.output_dim

    @property
    def is_trainable(self) -> bool:
        return not self.frozen

    @property
    def checksum(self) -> Optional[str]:
        """A checksum of the present weights, the same in every process; None without weights."""
        return get_session(self.model).checksum if get_shim(self.model).has_weights else None

    def predict(
        self, docs: Iterable[Doc], *, keep_layers: Optional[bool] = None
    ) -> list[BatchLayers]:
        """RETURNS (list): The layers and the mix of each doc, as arrays of the model's ops.
        `keep_layers` overrides the component's setting."""
        docs = list(docs)
        if any(not cast(Any, doc.vocab).lex_attr_getters for doc in docs):
            raise ValueError(
                "a doc's vocab knows neither whitespace nor lower case: make the doc with that of "
                "a pipeline, such as Doc(nlp.vocab, ...) or DocBin.get_docs(nlp.vocab)"
            )
        # Evaluations during training use the cache, too. One that rounds is only for the docs of
        # updates: the vectors of other docs must be exact.
        cache = self.activation_cache if self.frozen and self._run.docs else None
        if cache is not None and cache.half_precision:
            is_training = set(map(id, docs)) <= set(map(id, self._run.docs))
            cache = cache if is_training else None
        keeps = self.keep_layers if keep_layers is None else keep_layers
        settings: Any = {"keep_layers": keeps, "cache": cache}
        if docs:  # Else there need not be weights.
            fitted = get_shim(self.model).stored_bilm().pooling
            settings["pooling"] = fitted if self.pooling is None else self.pooling(fitted)
        batch = encode(self.model, docs, self.mix, **settings)
        # Parts are copies, because a view of one doc would keep the whole batch in memory.
        return [batch] if len(docs) == 1 else batch.split()

    def pipe(
        self,
        stream: Iterable[Doc],
        *,
        batch_size: Optional[int] = None,
        keep_layers: Optional[bool] = None,
    ) -> Iterator[Doc]:
        """Process a stream, sequences of similar length together: at most `batch_size` docs, and
        tokens for a few batches of the LSTMs. `keep_layers` overrides the component's setting.
        YIELDS (Doc): The docs in order, without those that fail, which the error handler gets."""
        max_docs = min(batch_size or self.batch_size, self.batch_size)
        shim = get_shim(self.model)
        max_tokens = _BATCHES_PER_BUFFER * shim.settings.max_tokens(shim.device)
        batch: list[Doc] = []
        n_tokens = 0
        for doc in stream:
            batch.append(doc)
            n_tokens += len(doc)
            if len(batch) >= max_docs or n_tokens >= max_tokens:
                yield from self._annotate(batch, keep_layers)
                batch, n_tokens = [], 0
        yield from self._annotate(batch, keep_layers)

    def _annotate(self, docs: list[Doc], keep_layers: Optional[bool]) -> Iterator[Doc]:
        """If a batch fails, its docs are processed one by one."""
        try:
            self.set_annotations(docs, self.predict(docs, keep_layers=keep_layers) if docs else [])
        except Exception as error:
            if len(docs) == 1:
                self.get_error_handler()(self.name, self, docs, error)
                return
            for doc in docs:
                yield from self._annotate([doc], keep_layers)
        else:
            yield from docs

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[BatchLayers]) -> None:
        """Write vectors to the docs."""
        for doc, one in zip(docs, scores):
            checksum = cast(Session, one.session).checksum
            extensions.write(doc, self.name, checksum, one.layers, one.mixed, one.pooled)
            if self.set_vectors:
                extensions.install_vectors(doc)

    def find_listeners(self, component: Any) -> None:
        """Connect the listeners in a component's model: those that name this component, and those
        that listened to it before it was renamed, or were saved. The last connection counts."""
        # spaCy empties the map before it calls this with each later component in turn.
        if self._run.linked[0] is not self.listener_map:
            self._run.linked = self.listener_map, []
        between = self._run.linked[1]
        model = getattr(component, "model", None)
        nodes = model.walk() if isinstance(model, Model) else ()
        for listener in (cast(Tok2VecListener, node) for node in nodes if node.name == LISTENER):
            state: ListenerState = listener.attrs["link"]
            is_known = state.upstream is self
            # Weights are read only if the listener was saved.
            if state.upstream is None and state.saved_checksum is not None:
                is_known = state.saved_checksum == self.checksum
            if is_known or listener.attrs["settings"].upstream in (ANY, self.name):
                if state.upstream is not None:
                    # A task of another pipeline, such as `add_pipe(source=...)` brings.
                    if state.upstream is not self and listener.attrs["settings"].upstream != ANY:
                        state.saved_checksum = state.checksum
                    state.upstream.remove_listener(listener, component.name)
                state.upstream, state.between = self, tuple(between)
                self.add_listener(listener, component.name)
                if isinstance(component, EntityLinker) and component.model.init is init_chain:
                    component.model.init = _init_entity_linker
        if isinstance(component, (DependencyParser, SentenceRecognizer, Sentencizer)):
            between.append(component.name)

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Give the batch's layers to the listeners. If the biLM is not frozen, the sum of their
        gradients goes back into it as soon as the last one has sent its own. The component's loss
        is the sum of their squares. The biLM has no dropout."""
        losses = {} if losses is None else losses
        if not self.frozen:
            losses.setdefault(self.name, 0.0)
        if self._run.batch is not None:
            self._run.batch.finish()  # A listener may have been left out.
        self._run.docs = docs = [example.predicted for example in examples]
        states: set[ListenerState] = {listener.attrs["link"] for listener in self.listeners}
        if not states:
            return losses
        backprop = None
        if self.frozen:
            layers = encode(self.model, docs, cache=self.activation_cache)
        else:
            layers, backprop_model = self.model(docs, is_train=True)
            backprop = self._fine_tuning(backprop_model, losses)
        batch = SharedBatch(docs, layers, states, backprop)
        for state in states:
            state.batch = batch
        if not self.frozen:
            self._run.batch = batch
        if sgd is not None:
            self.finish_update(sgd)
        return losses

    def _fine_tuning(self, backprop_model: Callable, losses: dict[str, float]) -> Callable:
        """RETURNS (Callable): See `SharedBatch.backprop`."""
        check = self._run.gradient_check

        def backprop(d_layers: Optional[Floats3d], sgd: Optional[Optimizer]) -> None:
            self._run.batch = None
            if d_layers is not None:
                squares = self.model.ops.xp.vdot(d_layers, d_layers)
                what = f"{self.name}: the gradient of the biLM's layers"
                is_cpu = self.model.ops.device_type == "cpu"
                losses[self.name] += check_gradient(check, squares, what, sync=is_cpu)
                backprop_model(d_layers)
            if sgd is not None:
                self.finish_update(sgd)

        return backprop

    def train_without_update(self, docs: Sequence[Doc], listener: str) -> None:
        """Let a listener train while this component gets no updates: it is excluded from training,
        or only the listener's component is trained, as `spacy debug model` does."""
        if not self.frozen:
            raise ValueError(
                f"{self.name!r} is to be fine-tuned (frozen = false), but gets no updates before "
                f"{listener}: put it earlier in the pipeline and take it out of "
                "training.frozen_components, or set frozen = true. nlp.rehearse gives it no "
                "updates: call nlp.replace_listeners before nlp.resume_training"
            )
        self._run.docs = docs

    def finish_update(self, sgd: Optimizer) -> None:
        """Update the biLM, if it is not frozen, with the component's own optimizer or else with
        `sgd`. `nlp.update` calls this before the listeners have sent their gradients. Then the
        update happens when they are complete."""
        batch = self._run.batch
        if batch is not None and not batch.started:
            batch.sgd = sgd
        elif not self.frozen:
            if batch is not None:
                batch.finish()
            self.model.finish_update(self.optimizer or sgd)
            if self.optimizer is not None:
                self.optimizer.step_schedules()

    def end_training(self) -> None:
        """Free cached activations and the last batch. Its gradients update the biLM first, if a
        listener was left out."""
        if self._run.batch is not None and self._run.batch.started:
            self._run.batch.finish()
        self._run = RunState()
        if self.activation_cache is not None:
            self.activation_cache.clear()
        for listener in self.listeners:
            listener.attrs["link"].batch = None


def _init_entity_linker(model: Model, X: Any = None, Y: Any = None) -> None:
    """Ask the tok2vec for the width of its vectors. spaCy asks when the model is made: a listener
    does not know its upstream then."""
    if model.has_ref("tok2vec"):
        tok2vec = model.get_ref("tok2vec").initialize(X=X)
        for node in model.walk():
            if node.name == "maxout" and node.has_dim("nO") is None:
                node.set_dim("nO", tok2vec.get_dim("nO"))
    init_chain(model, X, Y)
