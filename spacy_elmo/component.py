"""The "elmo" pipeline component."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional, Union, cast

from spacy.language import Language
from spacy.pipeline import Tok2Vec
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer
from thinc.types import Floats3d

from . import extensions
from .bilm import BiLM
from .layers.activation_cache import ActivationCache
from .layers.encoder import (
    BatchLayers,
    DocVectors,
    encode,
    encode_layers,
    get_bilm,
    get_lazy_bilm,
    get_session,
    set_bilm,
)
from .layers.listener import (
    GradientCheck,
    TrainingBatch,
    is_listener,
    replace_listener,
    replace_listener_cfg,
)
from .layers.mixes import Mix
from .weights import load_bilm

DEFAULT_CONFIG_STR = """
[elmo]
keep_layers = true
set_vectors = false
batch_size = 1000
frozen = true
optimizer = null

[elmo.activation_cache]
@misc = "spacy-elmo.ActivationCache.v1"
memory_mb = 1024
half_precision = false
folder = null
folder_mb = null

[elmo.model]
@architectures = "spacy-elmo.PretrainedBiLM.v1"
weights = "en_elmo_sm"
precision = "float32"
max_tokens_per_batch = 2048
type_cache_mb = 64
stateful = false
mixed_precision = false

[elmo.model.segmenter]
@misc = "spacy-elmo.sentences.v1"
window = 512
overlap = 64

[elmo.mix]
@layers = "spacy-elmo.FrozenMix.v1"
weights = null
gamma = 1.0
seed = null
"""
DEFAULT_CONFIG = Config().from_str(DEFAULT_CONFIG_STR)

# Batches' worth of tokens that `pipe` collects before it runs: the more, the more alike in length
# are the sequences of a batch.
_BATCHES_PER_BUFFER = 3

# A doc of more tokens is hardly one sentence.
_LONG_SENTENCE = 100


@Language.factory(
    "elmo",
    assigns=["doc._.elmo_layers", "doc._.elmo_tokens", "doc._.elmo", "span._.elmo", "token._.elmo"],
    default_config=DEFAULT_CONFIG["elmo"],
)
def make_elmo(
    nlp: Language,
    name: str,
    model: Model[list[Doc], BatchLayers],
    mix: Mix,
    keep_layers: bool,
    set_vectors: bool,
    batch_size: int,
    frozen: bool,
    optimizer: Optional[Optimizer],
    activation_cache: Optional[ActivationCache],
) -> Elmo:
    lazy_bilm = get_lazy_bilm(model)
    if lazy_bilm is not None and lazy_bilm.language not in (None, nlp.lang) and nlp.lang != "xx":
        # A saved pipeline has its own weights: these may never be needed.
        lazy_bilm.warning = (
            f"the weights of {name!r} were trained on text in {lazy_bilm.language!r}, but the "
            f"pipeline's language is {nlp.lang!r}: name others in the config (model.weights)"
        )
    elmo = Elmo(
        nlp.vocab,
        model,
        name,
        mix=mix,
        keep_layers=keep_layers,
        set_vectors=set_vectors,
        batch_size=batch_size,
        frozen=frozen,
        optimizer=optimizer,
        activation_cache=activation_cache,
    )
    elmo.set_pipeline(nlp)
    return elmo


def pipe_settings(nlp: Language, elmo: Elmo, *, keep_layers: bool = True) -> dict[str, Any]:
    """Arguments for `nlp.pipe` with which the pipeline stops after the component, so that no later
    component overwrites or removes its arrays. The pipeline itself is not changed.

    nlp (Language): The pipeline.
    elmo (Elmo): One of its components.
    keep_layers (bool): Whether to write the layers of all docs, whatever the component's setting.
    RETURNS (dict): `disable` and `component_cfg`.
    RAISES (ValueError): If the component is disabled.
    """
    if elmo.name not in nlp.pipe_names:
        raise ValueError(f"the component {elmo.name!r} is disabled, only {nlp.pipe_names} run")
    after = nlp.pipe_names[nlp.pipe_names.index(elmo.name) + 1 :]
    return {"disable": after, "component_cfg": {elmo.name: {"keep_layers": keep_layers}}}


@contextlib.contextmanager
def _clear_errors(name: str, source: Any) -> Iterator[None]:
    """What damaged data make spaCy, thinc and msgpack raise says neither what it is about nor
    where."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise ValueError(f"cannot load the component {name!r} from {source}: {reason}") from error


class _Training:
    """Training state kept between updates. Not copied and not pickled.

    before (Optional[_Training]): A state of the same component, for what outlasts a training: the
        pipeline that it was made or initialised for, and the elmo components that follow it there.
    """

    def __init__(self, before: Optional[_Training] = None) -> None:
        self.pipeline: Optional[weakref.ref[Language]] = before.pipeline if before else None
        self.followers: weakref.WeakSet[Elmo] = before.followers if before else weakref.WeakSet()
        self.docs: Sequence[Doc] = ()
        self.initialized = False
        self.batch: Optional[TrainingBatch] = None
        self.postponed: Optional[Optimizer] = None
        self.gradient_check = GradientCheck()

    def __reduce__(self) -> tuple:
        return _Training, ()


class Elmo(Tok2Vec):
    """Runs a biLM over docs and writes its activations to the docs (see `extensions`), for users
    and for components that listen (see `layers.listener`).

    vocab (Vocab): The shared vocabulary.
    model (Model): An `ElmoEncoder`, as the architectures build it.
    name (str): The name of the component.
    mix (Mix): From all layers to the vectors of `doc._.elmo_tokens`.
    keep_layers (bool): Keep the activations of all layers on the doc, too.
    set_vectors (bool): Make `.vector` and `.similarity()` use ELMo. These hooks live in the
        process that made the doc: docs from `nlp.pipe(n_process=2)` come without them.
    batch_size (int): Docs that `pipe` collects at most before it runs.
    frozen (bool): Training the components that listen leaves the biLM as it is.
    optimizer (Optional[Optimizer]): For the biLM, if it is not frozen; None for the pipeline's.
    activation_cache (Optional[ActivationCache]): Keeps what a frozen biLM computes while the
        components that listen are trained, until `end_training`.
    RAISES (ValueError): If batch_size is not positive, or the mix has weights to be trained.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], BatchLayers],
        name: str = "elmo",
        *,
        mix: Mix,
        keep_layers: bool = True,
        set_vectors: bool = False,
        batch_size: int = 1000,
        frozen: bool = True,
        optimizer: Optional[Optimizer] = None,
        activation_cache: Optional[ActivationCache] = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"{name}: batch_size must be 1 or more, found {batch_size}")
        if any(node.param_names for node in mix.walk()):
            raise ValueError(
                f"{name}: nothing would train a {mix.name} as the component's own mix: choose "
                "FrozenMix, SingleLayer or ConcatLayers, and give trained mixes to listeners"
            )
        self.vocab = vocab
        self.model = model
        self.name = name
        self.mix = mix
        self.keep_layers = keep_layers
        self.set_vectors = set_vectors
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.activation_cache = activation_cache
        self.listener_map = {}
        self._training = _Training()
        self._warned = False
        self.frozen = frozen
        model.attrs["replace_listener"] = replace_listener
        model.attrs["replace_listener_cfg"] = partial(replace_listener_cfg, frozen=frozen)
        # All settings are in the config; nothing here may override it when loading.
        self.cfg: dict[str, Any] = {}

    @property
    def bilm(self) -> BiLM:
        """The biLM. RAISES (ValueError): If there are no weights yet."""
        return get_bilm(self.model)

    @property
    def is_trainable(self) -> bool:
        return not self.frozen

    @property
    def checksum(self) -> Optional[str]:
        """A checksum of the present weights, by which listeners tell whose layers are on a doc. It
        is the same in every process and for a saved pipeline. None if there are no weights."""
        lazy_bilm = get_lazy_bilm(self.model)
        if lazy_bilm is not None and lazy_bilm.load is None:
            return None
        return get_session(self.model).checksum

    def set_pipeline(self, nlp: Language) -> None:
        """Remember the pipeline, to notice when the component is removed from it."""
        self._training.pipeline = weakref.ref(nlp)

    @property
    def is_removed(self) -> bool:
        """Whether it is known that the component is in its pipeline no more."""
        pipeline = self._training.pipeline
        nlp = None if pipeline is None else pipeline()
        return nlp is not None and all(component is not self for _, component in nlp.components)

    @property
    def layer_shape(self) -> tuple[int, int]:
        """L+1 and 2P. RAISES (ValueError): If there are no weights yet."""
        return self.bilm.config.n_activations, self.bilm.config.output_dim

    def load_weights(self, weights: Union[str, Path]) -> None:
        """Use other weights.

        weights (Union[str, Path]): A name, a folder, or a file of weights.
        RAISES (ValueError): If there is no such thing, or it cannot be read.
        """
        set_bilm(self.model, load_bilm(weights))

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Elmo:
        """See spaCy. RAISES (ValueError): If the bytes are damaged."""
        with _clear_errors(self.name, "bytes"):
            return super().from_bytes(bytes_data, exclude=exclude)

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> Elmo:
        """See spaCy. RAISES (ValueError): If a file is damaged."""
        with _clear_errors(self.name, path):
            return super().from_disk(path, exclude=exclude)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        weights: Optional[str] = None,
    ) -> None:
        """Read the weights, if that has not happened yet: what training has made of them stays,
        until `load_weights`.

        weights (Optional[str]): From `[initialize.components.elmo]`; goes before those that the
            `model` block names.
        RAISES (ValueError): If there are no weights.
        """
        if nlp is not None:
            self.set_pipeline(nlp)
        if weights is not None:
            self.load_weights(weights)
        self.model.initialize()
        self.bilm.unfreeze()
        self._training.initialized = True

    def predict(
        self, docs: Iterable[Doc], *, keep_layers: Optional[bool] = None
    ) -> list[DocVectors]:
        """Run the biLM.

        docs (Iterable[Doc]): The docs.
        keep_layers (Optional[bool]): Goes before the component's setting.
        RETURNS (list): Each doc's activations, as arrays of the model's ops.
        """
        docs = list(docs)
        self._warn_of_long_sentences(docs)
        return encode(
            self.model,
            docs,
            mix=self.mix,
            keep_layers=self.keep_layers if keep_layers is None else keep_layers,
            cache=self._cache(docs),
        )

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[DocVectors]) -> None:
        """Write activations to the docs."""
        checksum = self.checksum
        assert checksum is not None
        for doc, activations in zip(docs, scores):
            extensions.write_layers(doc, self.name, checksum, activations.layers)
            extensions.set_tokens(doc, activations.tokens)
            if self.set_vectors:
                extensions.install_vectors(doc)

    def pipe(
        self,
        stream: Iterable[Doc],
        *,
        batch_size: Optional[int] = None,
        keep_layers: Optional[bool] = None,
    ) -> Iterator[Doc]:
        """Process a stream, sequences of similar length together.

        If a batch fails, its docs are tried one by one, so that the error handler sees only
        those that fail alone.

        stream (Iterable[Doc]): The docs.
        batch_size (Optional[int]): Docs to collect at most, if less than the component's setting.
        keep_layers (Optional[bool]): Goes before the component's setting.
        YIELDS (Doc): The docs in order, without those the error handler took.
        """
        self._training.gradient_check.look()
        most_docs = min(batch_size or self.batch_size, self.batch_size)
        most_tokens = _BATCHES_PER_BUFFER * self.model.attrs["settings"].max_tokens_per_batch
        buffer: list[Doc] = []
        n_tokens = 0
        for doc in stream:
            buffer.append(doc)
            n_tokens += len(doc)
            if len(buffer) >= most_docs or n_tokens >= most_tokens:
                yield from self._annotate(buffer, keep_layers)
                buffer, n_tokens = [], 0
        yield from self._annotate(buffer, keep_layers)

    def _annotate(self, docs: list[Doc], keep_layers: Optional[bool]) -> Iterator[Doc]:
        if not docs:
            return
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

    def _warn_of_long_sentences(self, docs: Sequence[Doc]) -> None:
        """Warn once, if a doc is so long that it should have sentence boundaries, but has none."""
        if self._warned or not getattr(self.model.attrs["segmenter"], "by_sentence", False):
            return
        for doc in docs:
            if len(doc) > _LONG_SENTENCE and not doc.has_annotation("SENT_START"):
                self._warned = True
                warnings.warn(
                    f"{self.name!r} reads a text of {len(doc)} tokens without sentence boundaries, "
                    "not sentence by sentence: this can be several times slower, and gives other "
                    "vectors. Add a component that sets them before it, as with "
                    f'nlp.add_pipe("sentencizer", before="{self.name}"), or choose a segmenter '
                    "that is made for whole texts in the config (model.segmenter): "
                    "spacy-elmo.docs.v1 or spacy-elmo.strided.v1 (shown once per component)",
                    stacklevel=2,
                )
                return

    def find_listeners(self, component: Any) -> None:
        """Connect the listeners in a component's model that listen to this component: by its name,
        or because they did before it was renamed."""
        if isinstance(component, Elmo):
            self._training.followers.add(component)
        model = getattr(component, "model", None)
        if not isinstance(model, Model):
            return
        for node in model.walk():
            if is_listener(node, self.name, self):
                listener = cast(Tok2VecListener, node)
                previous = node.attrs["link"].connect(self, component.name)
                # Of several components in one pipeline, the last one before the listener has it.
                if isinstance(previous, Elmo) and self in previous._training.followers:
                    previous.remove_listener(listener, component.name)
                    node.attrs["link"].others.discard(previous)
                self.add_listener(listener, component.name)

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Send the batch's layers to the listeners. If the biLM is not frozen, the sum of their
        gradients goes back into it as soon as the last one has sent its own.

        examples, sgd: As for any component. The biLM has no dropout while it is fine-tuned.
        losses (Optional[dict]): If the biLM is not frozen, gets the sum of the squared gradients
            that reach it, under the name of the component. On a GPU it lags behind, by up to 100
            updates: reading a number there waits for all that is computed before it.
        RETURNS (dict): The losses.
        RAISES (ValueError): Later, from a listener, if the gradients are NaN or infinite.
        """
        losses = {} if losses is None else losses
        if not self.frozen:
            losses.setdefault(self.name, 0.0)
        training = self._training
        self._close_batch()
        training.docs = docs = [example.predicted for example in examples]
        if not self.listeners:
            return losses
        self._warn_of_long_sentences(docs)
        links = [listener.attrs["link"] for listener in self.listeners]
        if self.frozen:
            batch = TrainingBatch(docs, encode_layers(self.model, docs, self._cache(docs)), links)
        else:
            layers, backprop_model = self.model(docs, is_train=True)

            def backprop(d_layers: Floats3d) -> None:
                losses[self.name] += training.gradient_check.add(
                    self.model.ops,
                    self.model.ops.xp.vdot(d_layers, d_layers),
                    f"{self.name}: the gradient of the biLM's layers",
                )
                backprop_model(d_layers)
                self._apply_postponed()

            batch = TrainingBatch(docs, layers, links, backprop)
        training.batch = batch
        for link in links:
            link.batch = batch
        if sgd is not None:
            self.finish_update(sgd)
        return losses

    def layers_on_demand(self, docs: Sequence[Doc]) -> Optional[BatchLayers]:
        """For a listener that is trained without an update of this component.

        RETURNS (Optional[BatchLayers]): None if the component is fine-tuned, was removed from the
            pipeline, or was not initialised (it is in `training.frozen_components`, and must then
            be in `training.annotating_components`).
        """
        if not self.frozen or self.is_removed:
            return None
        self._training.docs = docs
        if not self._training.initialized:
            return None
        return encode_layers(self.model, docs, self._cache(docs))

    def finish_update(self, sgd: Optimizer) -> None:
        """Update the biLM with the gradients that have come, if it is not frozen.

        Some callers (`nlp.update`) call this before the listeners have had their turn. Then it
        happens when they are done.

        sgd (Optimizer): The pipeline's optimizer; the component's own goes before it.
        """
        if self.frozen:
            return
        batch = self._training.batch
        if batch is not None and not batch.started:
            self._training.postponed = sgd
            return
        self._close_batch()
        self._apply_gradients(sgd)

    def end_training(self) -> None:
        """Free what only training needs: cached activations, and the last batch."""
        self._training = _Training(self._training)
        if self.activation_cache is not None:
            self.activation_cache.clear()
        for listener in self.listeners:
            listener.attrs["link"].end_training()

    def _close_batch(self) -> None:
        batch, self._training.batch = self._training.batch, None
        if batch is not None:
            batch.finish()
        self._apply_postponed()

    def _apply_postponed(self) -> None:
        sgd, self._training.postponed = self._training.postponed, None
        if sgd is not None:
            self._apply_gradients(sgd)

    def _apply_gradients(self, sgd: Optimizer) -> None:
        self.model.finish_update(self.optimizer or sgd)
        if self.optimizer is not None:
            self.optimizer.step_schedules()

    def _cache(self, docs: Sequence[Doc]) -> Optional[ActivationCache]:
        """The cache, if it may be used for these docs: from the first update to `end_training`, so
        that evaluations read the same texts once, too. A cache that rounds (half_precision) is for
        the docs of updates alone: vectors of other docs must be exact."""
        cache, trained = self.activation_cache, self._training.docs
        if cache is None or not self.frozen or self.model.attrs["settings"].stateful:
            return None
        if cache.half_precision:
            # A component that annotates in training predicts the docs of the last update.
            numbers = {id(doc) for doc in trained}
            return cache if all(id(doc) in numbers for doc in docs) else None
        return cache if trained else None
