"""The "elmo" pipeline component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer
from thinc.types import Floats3d

from . import extensions
from .bilm import BiLM
from .bundled import load_weights
from .layers.encoder import Activations, Mix, encode, get_bilm, set_bilm

DEFAULT_CONFIG_STR = """
[elmo]
keep_layers = true
set_vectors = false
batch_size = 1000

[elmo.model]
@architectures = "spacy-elmo.PretrainedBiLM.v1"
weights = null
precision = "float32"
max_tokens_per_batch = 2048
type_cache_mb = 64
stateful = false

[elmo.model.segmenter]
@misc = "spacy-elmo.sentences.v1"
window = 512
overlap = 64

[elmo.mix]
@layers = "spacy-elmo.FrozenMix.v1"
weights = null
gamma = 1.0
"""
DEFAULT_CONFIG = Config().from_str(DEFAULT_CONFIG_STR)

# Batches' worth of tokens that `pipe` collects before it runs: the more, the more alike in length
# are the sequences of a batch.
_BATCHES_PER_BUFFER = 3


@Language.factory(
    "elmo",
    assigns=["doc._.elmo_layers", "doc._.elmo_tokens", "doc._.elmo", "span._.elmo", "token._.elmo"],
    default_config=DEFAULT_CONFIG["elmo"],
)
def make_elmo(
    nlp: Language,
    name: str,
    model: Model[list[Doc], list[Floats3d]],
    mix: Mix,
    keep_layers: bool,
    set_vectors: bool,
    batch_size: int,
) -> Elmo:
    return Elmo(
        nlp.vocab,
        model,
        name,
        mix=mix,
        keep_layers=keep_layers,
        set_vectors=set_vectors,
        batch_size=batch_size,
    )


class Elmo(TrainablePipe):
    """Runs a biLM over docs and writes its activations to the docs (see `extensions`).

    vocab (Vocab): The shared vocabulary.
    model (Model): An `ElmoEncoder`, as the architectures build it.
    name (str): The name of the component.
    mix (Mix): From all layers to the vectors of `doc._.elmo_tokens`.
    keep_layers (bool): Keep the activations of all layers on the doc, too.
    set_vectors (bool): Make `.vector` and `.similarity()` use ELMo. These hooks live in the
        process that made the doc: docs from `nlp.pipe(n_process=2)` come without them.
    batch_size (int): Docs that `pipe` collects at most before it runs.
    RAISES (ValueError): If batch_size is not positive.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], list[Floats3d]],
        name: str = "elmo",
        *,
        mix: Mix,
        keep_layers: bool = True,
        set_vectors: bool = False,
        batch_size: int = 1000,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"{name}: batch_size must be 1 or more, found {batch_size}")
        self.vocab = vocab
        self.model = model
        self.name = name
        self.mix = mix
        self.keep_layers = keep_layers
        self.set_vectors = set_vectors
        self.batch_size = batch_size
        # All settings are in the config; nothing here may override it when loading.
        self.cfg: dict[str, Any] = {}

    @property
    def bilm(self) -> BiLM:
        """The biLM. RAISES (ValueError): If there are no weights yet."""
        return get_bilm(self.model)

    def load_weights(self, weights: Union[str, Path]) -> None:
        """Use other weights.

        weights (Union[str, Path]): A name, a folder, or a file of weights.
        RAISES (ValueError): If there is no such thing, or it cannot be read.
        """
        set_bilm(self.model, load_weights(weights))

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        weights: Optional[str] = None,
    ) -> None:
        """Read the weights, if that has not happened yet.

        weights (Optional[str]): From `[initialize.components.elmo]`; goes before those that the
            `model` block names.
        RAISES (ValueError): If there are no weights.
        """
        if weights is not None:
            self.load_weights(weights)
        self.model.initialize()

    def predict(self, docs: Iterable[Doc]) -> list[Activations]:
        """RETURNS (list): Each doc's activations, as arrays of the current ops."""
        return encode(self.model, list(docs), mix=self.mix, keep_layers=self.keep_layers)

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Activations]) -> None:
        """Write activations to the docs."""
        for doc, activations in zip(docs, scores):
            if self.keep_layers:
                doc._.elmo_layers = activations.layers
            doc._.elmo_tokens = activations.tokens
            if self.set_vectors:
                extensions.install_vectors(doc)

    def pipe(self, stream: Iterable[Doc], *, batch_size: Optional[int] = None) -> Iterator[Doc]:
        """Process a stream, sequences of similar length together.

        If a batch fails, its docs are tried one by one, so that the error handler sees only
        those that fail alone.

        stream (Iterable[Doc]): The docs.
        batch_size (Optional[int]): Docs to collect at most, if less than the component's setting.
        YIELDS (Doc): The docs in order, without those the error handler took.
        """
        most_docs = min(batch_size or self.batch_size, self.batch_size)
        most_tokens = _BATCHES_PER_BUFFER * self.model.attrs["settings"].max_tokens_per_batch
        buffer: list[Doc] = []
        n_tokens = 0
        for doc in stream:
            buffer.append(doc)
            n_tokens += len(doc)
            if len(buffer) >= most_docs or n_tokens >= most_tokens:
                yield from self._annotate(buffer)
                buffer, n_tokens = [], 0
        yield from self._annotate(buffer)

    def _annotate(self, docs: list[Doc]) -> Iterator[Doc]:
        if not docs:
            return
        try:
            self.set_annotations(docs, self.predict(docs))
        except Exception as error:
            if len(docs) == 1:
                self.get_error_handler()(self.name, self, docs, error)
                return
        else:
            yield from docs
            return
        for doc in docs:
            yield from self._annotate([doc])

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """The biLM is frozen: there is nothing to learn, and no loss."""
        return {} if losses is None else losses
