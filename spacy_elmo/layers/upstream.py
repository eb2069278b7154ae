"""The upstream of listeners: runs a biLM over docs, and shares the layers with other components."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional, cast

from spacy.language import Language
from spacy.pipeline import Tok2Vec
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model, Optimizer
from thinc.types import Floats3d

from .. import extensions
from ..bilm import BiLM
from .activation_cache import ActivationCache
from .batch_layers import BatchLayers
from .encoder import encode, get_bilm, get_session, get_shim
from .entity_linker import infer_width
from .listener import ANY, ListenerState, SharedBatch, doc_keys, join_layers
from .listener import NAME as LISTENER
from .mix_docs import GradientCheck
from .mixes import Mix

# `pipe` collects this many batches of tokens before it runs: the more docs, the more sequences of
# similar length.
_BATCHES_PER_BUFFER = 3


class RunState:
    """What a component keeps only in the running process. A copy and a pickle are empty.

    pipeline (Callable): Returns the pipeline of the component, or None.
    docs (Sequence[Doc]): The docs of the last update. Empty: no training since `end_training`.
    batch (Optional[SharedBatch]): The batch of the last update, if the biLM is not frozen.
    gradient_check (GradientCheck): For the gradients that reach the biLM.
    """

    def __init__(self) -> None:
        self.pipeline: Callable[[], Optional[Language]] = lambda: None
        self.end_training()

    def end_training(self) -> None:
        self.docs: Sequence[Doc] = ()
        self.batch: Optional[SharedBatch] = None
        self.gradient_check = GradientCheck()

    def __reduce__(self) -> tuple:
        return RunState, ()


class Upstream(Tok2Vec):
    """Predicts for the user, and gives batches to the components that listen (see
    `layers.listener`)."""

    # The config system checks the settings of `Elmo` by these, with the names of its module.
    model: Model[list[Doc], BatchLayers]
    mix: Mix
    keep_layers: bool
    set_vectors: bool
    batch_size: int
    frozen: bool
    optimizer: Optional[Optimizer]
    activation_cache: Optional[ActivationCache]
    _run: RunState

    def __setstate__(self, state: Any) -> None:
        """Connect the listeners of a copy or of a pickle to it: their states have no upstream."""
        super().__setstate__(state)
        for listener in self.listeners:
            listener.attrs["link"].upstream = self

    @property
    def bilm(self) -> BiLM:
        """The biLM. RAISES (ValueError): If there are no weights yet."""
        return get_bilm(self.model)

    @property
    def layer_shape(self) -> tuple[int, int]:
        """L+1 and 2P. RAISES (ValueError): If there are no weights yet."""
        config = get_shim(self.model).stored_bilm().config
        return config.n_activations, config.output_dim

    @property
    def is_trainable(self) -> bool:
        return not self.frozen

    @property
    def is_removed(self) -> bool:
        """Whether the component was removed from its pipeline."""
        nlp = self._run.pipeline()
        return nlp is not None and all(component is not self for _, component in nlp.components)

    @property
    def is_enabled(self) -> bool:
        """Whether the component runs in its pipeline."""
        nlp = self._run.pipeline()
        return nlp is None or any(component is self for _, component in nlp.pipeline)

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
        # Evaluations during training use the cache, too. One that rounds (half_precision) is only
        # for the docs of updates: the vectors of other docs must be exact.
        cache = self.activation_cache if self.frozen and self._run.docs else None
        if cache is not None and cache.half_precision:
            training_docs = set(map(id, self._run.docs))
            if any(id(doc) not in training_docs for doc in docs):
                cache = None
        keeps = self.keep_layers if keep_layers is None else keep_layers
        batch = encode(self.model, docs, self.mix, keep_layers=keeps, cache=cache)
        # Copies, because a view of one doc would keep the whole batch in memory.
        return [batch] if len(docs) == 1 else [part.copy() for part in batch.split()]

    def pipe(
        self,
        stream: Iterable[Doc],
        *,
        batch_size: Optional[int] = None,
        keep_layers: Optional[bool] = None,
    ) -> Iterator[Doc]:
        """Process a stream, sequences of similar length together.

        batch_size (Optional[int]): Docs in a batch, if less than the component's setting.
        keep_layers (Optional[bool]): Overrides the component's setting.
        YIELDS (Doc): The docs in order, without those that fail, which the error handler gets.
        """
        for docs in self.batch_docs(stream, batch_size):
            yield from self._annotate(docs, keep_layers)

    def batch_docs(
        self,
        docs: Iterable[Doc],
        batch_size: Optional[int] = None,
        n_batches: int = _BATCHES_PER_BUFFER,
    ) -> Iterator[list[Doc]]:
        """Cut a stream: at most `batch_size` docs, and tokens for a few batches of the LSTMs.

        batch_size (Optional[int]): Docs in a batch, if less than the component's setting.
        n_batches (int): How many batches of the LSTMs.
        """
        max_docs = min(batch_size or self.batch_size, self.batch_size)
        shim = get_shim(self.model)
        max_tokens = n_batches * shim.settings.max_tokens(shim.device)
        batch: list[Doc] = []
        n_tokens = 0
        for doc in docs:
            batch.append(doc)
            n_tokens += len(doc)
            if len(batch) >= max_docs or n_tokens >= max_tokens:
                yield batch
                batch, n_tokens = [], 0
        if batch:
            yield batch

    def _annotate(self, docs: list[Doc], keep_layers: Optional[bool]) -> Iterator[Doc]:
        """If a batch fails, its docs are processed one by one."""
        try:
            self.set_annotations(docs, self.predict(docs, keep_layers=keep_layers))
        except Exception as error:
            if len(docs) == 1:
                self.get_error_handler()(self.name, self, docs, error)
                return
        else:
            yield from docs
            return
        for doc in docs:
            yield from self._annotate([doc], keep_layers)

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[BatchLayers]) -> None:
        """Write vectors to the docs."""
        docs = list(docs)
        if not docs:  # Then there need not be weights.
            return
        checksum = get_session(self.model).checksum
        for doc, one in zip(docs, scores):
            extensions.write(doc, self.name, checksum, one.layers, one.mixed)
            if self.set_vectors:
                extensions.install_vectors(doc)

    def find_listeners(self, component: Any) -> None:
        """Connect the listeners in a component's model: those that name this component, and those
        that listened to it before it was renamed, or were saved. The last connection counts."""
        model = getattr(component, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if node.name != LISTENER:
                continue
            listener = cast(Tok2VecListener, node)
            state: ListenerState = node.attrs["link"]
            if node.attrs["settings"].upstream in (ANY, self.name) or self._had_listener(state):
                if state.upstream is not None:
                    state.upstream.remove_listener(listener, component.name)
                state.upstream = self
                self.add_listener(listener, component.name)
                infer_width(component)

    def _had_listener(self, state: ListenerState) -> bool:
        """Whether a listener that names no component, or another one, listened to this one."""
        if state.upstream is not None:
            return state.upstream is self
        return state.saved_checksum is not None and state.saved_checksum == self.checksum

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Give the batch's layers to the listeners. If the biLM is not frozen, the sum of their
        gradients goes back into it as soon as the last one has sent its own.

        examples, drop, sgd: As for any component. The biLM has no dropout.
        losses (Optional[dict]): Gets the sum of the squared gradients that reach a fine-tuned biLM,
            under the name of the component. On a GPU it lags behind (see `GradientCheck`).
        RETURNS (dict): The losses.
        """
        losses = {} if losses is None else losses
        if not self.frozen:
            losses.setdefault(self.name, 0.0)
        if self._run.batch is not None:
            self._run.batch.finish()  # A listener may have been left out.
        self._run.docs = docs = [example.predicted for example in examples]
        states: set[ListenerState] = {listener.attrs["link"] for listener in self.listeners}
        if not states:
            return losses
        if self.frozen:
            layers = encode(self.model, docs, cache=self.activation_cache, expected=True)
            backprop = None
        else:
            layers, backprop = self._begin_fine_tuning(docs, losses)
        batch = SharedBatch(docs, doc_keys(docs), layers, states, backprop)
        for state in states:
            state.batch = batch
        if backprop is not None:
            self._run.batch = batch
        if sgd is not None:
            self.finish_update(sgd)
        return losses

    def _begin_fine_tuning(
        self, docs: list[Doc], losses: dict[str, float]
    ) -> tuple[BatchLayers, Callable]:
        """RETURNS (tuple): The layers, and a function that takes the sum of their gradients: see
        `SharedBatch.backprop`."""
        layers, backprop_model = self.model(docs, is_train=True)
        ops, check = self.model.ops, self._run.gradient_check

        def backprop(d_layers: Optional[Floats3d], sgd: Optional[Optimizer]) -> None:
            self._run.batch = None
            if d_layers is not None:
                squares = ops.xp.vdot(d_layers, d_layers)
                what = f"{self.name}: the gradient of the biLM's layers"
                losses[self.name] += check.add(squares, what, sync=ops.device_type == "cpu")
                backprop_model(d_layers)
            if sgd is not None:
                self.finish_update(sgd)

        return layers, backprop

    def predict_layers(self, docs: Sequence[Doc]) -> BatchLayers:
        """Get the layers for a listener that is trained without an update of this component, whose
        biLM is frozen. Those that the component has written to the docs are used."""
        self._run.docs = docs
        layers = [extensions.get_layers(doc, self.name, self.checksum) for doc in docs]
        if layers and all(array is not None for array in layers):
            return join_layers(self.model.ops, layers)
        return encode(self.model, docs, cache=self.activation_cache, expected=True)

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
        self._run.end_training()
        if self.activation_cache is not None:
            self.activation_cache.clear()
        for listener in self.listeners:
            listener.attrs["link"].batch = None
