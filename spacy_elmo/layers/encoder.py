"""Docs in, biLM activations out. Below this file there are only texts and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, NamedTuple, Optional, Union, cast

import numpy
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Ops, torch2xp, xp2torch
from thinc.types import ArgsKwargs, Floats2d, Floats3d

from ..bilm import BiLM
from ..inference import Session, current_session
from ..inference.settings import Precision, check_precision
from ..segmenters import Segmenter
from .activation_cache import ActivationCache
from .mixes import Mix
from .shim import ElmoShim, LazyBiLM, Settings

NAME = "elmo_encoder"


class BatchLayers(NamedTuple):
    """Activations of a batch of docs, one doc after the other.

    layers (Floats3d): Shape (L+1, tokens of all docs, 2P).
    lengths (list[int]): Tokens of each doc.
    """

    layers: Floats3d
    lengths: list[int]

    def split(self) -> list[Floats3d]:
        """RETURNS (list): A view (L+1, tokens, 2P) for each doc."""
        return split_tokens(self.layers, self.lengths)


class FrozenLayers(BatchLayers):
    """Layers of a frozen biLM: nobody needs their gradient."""


class DocVectors(NamedTuple):
    """What the biLM computed for one doc.

    layers (Optional[Floats3d]): Shape (L+1, tokens, 2P), if asked for.
    tokens (Optional[Floats2d]): The mix, shape (tokens, width), if there was one.
    """

    layers: Optional[Floats3d]
    tokens: Optional[Floats2d]


def ElmoEncoder(
    module: Union[BiLM, LazyBiLM], segmenter: Segmenter, settings: Settings
) -> Model[list[Doc], BatchLayers]:
    """Run a biLM over docs. Whitespace tokens get zeros.

    module (Union[BiLM, LazyBiLM]): The biLM, or what loads it.
    segmenter (Segmenter): Cuts docs into the sequences that the biLM reads.
    settings (Settings): How to run it.

    The biLM is on the device of thinc's current ops, that of the model, from whichever thread it is
    used later. The attribute `grad_factor` (1) scales the gradient that reaches the biLM; with 0 it
    is frozen.
    """
    # A layer of its own, as in all pipelines that were saved.
    bilm: Model[Any, Any] = Model(
        "pytorch",
        _run_shim,
        shims=[ElmoShim(module, settings)],
        dims={"nI": None, "nO": None},
    )
    return Model(
        NAME,
        forward,
        init=init,
        layers=[bilm],
        attrs={"segmenter": segmenter, "settings": settings, "grad_factor": 1.0},
    )


def _run_shim(model: Model, inputs: ArgsKwargs, is_train: bool) -> tuple[Any, Callable]:
    return model.shims[0](inputs, is_train)


def forward(
    model: Model[list[Doc], BatchLayers], docs: list[Doc], is_train: bool
) -> tuple[BatchLayers, Callable]:
    if not is_train or not model.attrs["grad_factor"]:
        return FrozenLayers(*encode_layers(model, docs)), lambda d_layers: docs
    bilm = get_bilm(model)
    sequences = Sequences.cut(docs, model.attrs["segmenter"])
    lengths = [len(doc) for doc in docs]
    if not len(sequences.tokens):
        shape = bilm.config.n_activations, sum(lengths), bilm.config.output_dim
        return BatchLayers(model.ops.alloc3f(*shape), lengths), lambda d_layers: docs
    kwargs = {"mixed_precision": model.attrs["settings"].mixed_precision}
    inputs = ArgsKwargs(args=(*sequences.types(), sequences.lengths), kwargs=kwargs)
    outputs, backprop_bilm = model.layers[0](inputs, is_train)
    values: Any = torch2xp(outputs, ops=model.ops)
    xp = model.ops.xp
    kept = xp.asarray(numpy.flatnonzero(sequences.kept))
    rows = xp.asarray(sequences.tokens[sequences.kept])
    layers: Any = xp.zeros((values.shape[0], sum(lengths), values.shape[2]), dtype=values.dtype)
    layers[:, rows] = values[:, kept]

    def backprop(d_layers: Any) -> list[Doc]:
        d_values = xp.zeros_like(values)
        d_values[:, kept] = d_layers[:, rows] * model.attrs["grad_factor"]
        gradient = xp2torch(d_values, device=outputs.device)
        backprop_bilm(ArgsKwargs(args=((outputs,),), kwargs={"grad_tensors": (gradient,)}))
        return docs

    return BatchLayers(layers, lengths), backprop


def init(
    model: Model[list[Doc], BatchLayers], X: Any = None, Y: Any = None
) -> Model[list[Doc], BatchLayers]:
    get_bilm(model)
    return model


def encode_layers(
    model: Model[list[Doc], BatchLayers],
    docs: Sequence[Doc],
    cache: Optional[ActivationCache] = None,
) -> BatchLayers:
    """Predict the activations of all layers.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    cache (Optional[ActivationCache]): Activations of sequences seen before, and where to put those
        of new ones.
    RETURNS (BatchLayers): The activations.
    """
    session = get_session(model)
    sequences = Sequences.cut(docs, model.attrs["segmenter"])
    lengths = [len(doc) for doc in docs]
    if cache is not None:
        return BatchLayers(_use_cache(cache, session, sequences, model.ops, sum(lengths)), lengths)
    layers: Any = model.ops.alloc3f(session.n_layers, sum(lengths), session.width)
    for rows, values in sequences.run(session, model.ops):
        layers[:, model.ops.xp.asarray(rows)] = values
    return BatchLayers(layers, lengths)


def _use_cache(
    cache: ActivationCache, session: Session, sequences: Sequences, ops: Ops, n_tokens: int
) -> Floats3d:
    # The cache is in main memory. To a GPU, all sequences go at once.
    layers = numpy.zeros((session.n_layers, n_tokens, session.width), dtype="float32")
    cache.bind(session)
    keys = sequences.keys()
    cached = [cache.get(key) for key in keys]
    missing = [number for number, activations in enumerate(cached) if activations is None]
    if missing:
        for rows, values in sequences.select(missing).run(session, ops):
            layers[:, rows] = ops.to_numpy(values)
    for key, rows, activations in zip(keys, sequences.kept_tokens(), cached):
        # `put` may round.
        layers[:, rows] = cache.put(key, layers[:, rows]) if activations is None else activations
    return ops.asarray3f(cast(Any, layers))


def encode(
    model: Model[list[Doc], BatchLayers],
    docs: Sequence[Doc],
    *,
    mix: Optional[Mix] = None,
    keep_layers: bool = True,
    cache: Optional[ActivationCache] = None,
) -> list[DocVectors]:
    """Predict in bounded memory: the mix is applied to one batch of tokens at a time, so that
    without `keep_layers` the activations of all layers never exist side by side.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    mix (Optional[Mix]): From (L+1, tokens, 2P) to (tokens, width), token by token.
    keep_layers (bool): Whether to return the layers.
    cache (Optional[ActivationCache]): See `encode_layers`.
    """
    session = get_session(model)
    lengths = [len(doc) for doc in docs]
    if cache is None:
        batches: Any = Sequences.cut(docs, model.attrs["segmenter"]).run(session, model.ops)
    else:
        batches = [(numpy.arange(sum(lengths)), encode_layers(model, docs, cache).layers)]
    shape = session.n_layers, sum(lengths), session.width
    layers: Any = model.ops.alloc3f(*shape) if keep_layers else None
    tokens: Any = None
    for rows, values in batches:
        if layers is not None:
            layers[:, model.ops.xp.asarray(rows)] = values
        if mix is not None:
            mixed = mix.predict(mix.ops.asarray3f(values))
            if tokens is None:
                tokens = mix.ops.alloc2f(sum(lengths), mixed.shape[1])
            tokens[mix.ops.xp.asarray(rows)] = mixed
    if mix is not None and tokens is None:  # No words. One of zeros tells the width.
        one = mix.predict(mix.ops.alloc3f(shape[0], 1, shape[2]))
        tokens = mix.ops.alloc2f(sum(lengths), one.shape[1])
    if len(docs) == 1:
        return [DocVectors(layers, tokens)]
    # Copies, because a view of one doc would keep the whole batch in memory.
    parts = [
        [None] * len(docs) if array is None else [x.copy() for x in split_tokens(array, lengths)]
        for array in (layers, tokens)
    ]
    return [DocVectors(*pair) for pair in zip(*parts)]


def get_lazy_bilm(model: Model[list[Doc], BatchLayers]) -> Optional[LazyBiLM]:
    """RETURNS (Optional[LazyBiLM]): What loads the encoder's biLM, if that was not needed yet."""
    module = cast(ElmoShim, model.layers[0].shims[0])._model
    return module if isinstance(module, LazyBiLM) else None


def get_bilm(model: Model[list[Doc], BatchLayers]) -> BiLM:
    """RETURNS (BiLM): The encoder's biLM, loaded now if it was not needed yet.
    RAISES (ValueError): If there are no weights."""
    shim = cast(ElmoShim, model.layers[0].shims[0])
    module = shim._model
    if isinstance(module, LazyBiLM):
        module = module.get()
        shim.set_bilm(module)
    return module


def set_bilm(model: Model[list[Doc], BatchLayers], bilm: BiLM) -> None:
    """Give the encoder another biLM, which moves to the encoder's device."""
    cast(ElmoShim, model.layers[0].shims[0]).set_bilm(bilm)


def get_session(model: Model[list[Doc], BatchLayers]) -> Session:
    """RETURNS (Session): What runs the encoder's biLM with its present weights."""
    bilm = get_bilm(model)
    return current_session(bilm, cast(ElmoShim, model.layers[0].shims[0]).usable_settings)


def max_tokens_per_batch(model: Model[list[Doc], BatchLayers]) -> int:
    """RETURNS (int): Of an `ElmoEncoder`, on its device; also before it has weights."""
    shim = cast(ElmoShim, model.layers[0].shims[0])
    return shim.settings.max_tokens(shim.device)


def set_precision(model: Model[list[Doc], BatchLayers], precision: Precision) -> None:
    """Let the encoder run in another precision than its settings say.
    RAISES (ValueError): If its device does not have it."""
    shim = cast(ElmoShim, model.layers[0].shims[0])
    settings = replace(shim.settings, precision=precision)
    bilm = get_bilm(model)
    check_precision(precision, bilm.device)
    bilm.invalidate()  # Frees what is packed in the other precision.
    shim.settings = shim.usable_settings = settings


@dataclass
class Sequences:
    """The sequences of some docs, as the biLM reads them, one after the other.

    docs (Sequence[Doc]): The docs.
    orth (ndarray): Word types of all their tokens.
    tokens (ndarray): What the sequences consist of: numbers of tokens in the concatenation of all
        docs.
    kept (ndarray): Whether the vector is kept, for each of `tokens`.
    lengths (ndarray): Tokens of each sequence.
    """

    docs: Sequence[Doc]
    orth: numpy.ndarray
    tokens: numpy.ndarray
    kept: numpy.ndarray
    lengths: numpy.ndarray

    @classmethod
    def cut(cls, docs: Sequence[Doc], segmenter: Segmenter) -> Sequences:
        tokens, kept, lengths = [numpy.zeros(0, dtype=int)], [numpy.zeros(0, dtype=bool)], []
        n_tokens = 0
        for doc in docs:
            for sequence in segmenter(doc):
                position = numpy.arange(len(sequence.tokens))
                tokens.append(sequence.tokens + n_tokens)
                kept.append((position >= sequence.start) & (position < sequence.end))
                lengths.append(len(position))
            n_tokens += len(doc)
        orth = [numpy.zeros(0, dtype=numpy.uint64), *(doc.to_array(ORTH) for doc in docs)]
        flat = numpy.concatenate(tokens), numpy.concatenate(kept)
        return cls(docs, numpy.concatenate(orth), *flat, numpy.array(lengths, dtype=int))

    def types(self) -> tuple[list[str], numpy.ndarray]:
        """RETURNS (tuple): The distinct texts, and the number of each token's text among them."""
        orth = self.orth[self.tokens]
        _, first, index = numpy.unique(orth, return_index=True, return_inverse=True)
        # The text comes from the type's first token: docs may have different vocabs.
        ends = numpy.cumsum([0, *map(len, self.docs)])
        first_tokens = self.tokens[first]
        numbers = numpy.searchsorted(ends, first_tokens, side="right") - 1
        pairs = zip(numbers.tolist(), (first_tokens - ends[numbers]).tolist())
        return [self.docs[number][i].text for number, i in pairs], index.reshape(-1)

    def run(self, session: Session, ops: Ops) -> Iterator[tuple[numpy.ndarray, Floats3d]]:
        """Run a biLM. YIELDS (tuple): For each batch, the numbers of its tokens that are kept,
        shape (n,), and all layers' activations, shape (L+1, n, 2P)."""
        types, index = self.types()
        for tokens, layers in session.batches(types, index, self.lengths):
            kept = self.kept[tokens]
            # On a GPU, CuPy's current stream must be PyTorch's. By default both are the null
            # stream, so that one waits for the other. thinc's layers do not support other streams.
            values: Any = torch2xp(layers, ops=ops)
            if not kept.all():
                values = values[:, ops.xp.asarray(numpy.flatnonzero(kept))]
            if values.shape[1]:
                yield self.tokens[tokens[kept]], values

    def keys(self) -> list[tuple[bytes, bytes]]:
        """RETURNS (list): What tells the sequences apart, whichever docs they come from."""
        ends = numpy.cumsum(self.lengths)
        # The last part is empty. NumPy splits nothing into one part.
        parts = (numpy.split(values, ends)[:-1] for values in (self.orth[self.tokens], self.kept))
        return [(orth.tobytes(), kept.tobytes()) for orth, kept in zip(*parts)]

    def kept_tokens(self) -> list[numpy.ndarray]:
        """RETURNS (list): The numbers of each sequence's tokens that are kept."""
        ends = numpy.cumsum(self.lengths)
        parts = (numpy.split(values, ends)[:-1] for values in (self.tokens, self.kept))
        return [tokens[kept] for tokens, kept in zip(*parts)]

    def select(self, numbers: Sequence[int]) -> Sequences:
        """RETURNS (Sequences): Some of the sequences of the same docs."""
        chosen = numpy.repeat(numpy.isin(numpy.arange(len(self.lengths)), numbers), self.lengths)
        lengths = self.lengths[list(numbers)]
        return Sequences(self.docs, self.orth, self.tokens[chosen], self.kept[chosen], lengths)


def split_tokens(array: Any, lengths: Sequence[int]) -> list:
    """Views of an array (..., tokens, width), one for each number of tokens."""
    ends = numpy.cumsum(lengths).tolist()
    return [array[..., end - length : end, :] for end, length in zip(ends, lengths)]
