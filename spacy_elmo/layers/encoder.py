"""Docs in, biLM activations out. Below this file there are only texts and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional, Union, cast

import numpy
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Ops, torch2xp, xp2torch
from thinc.types import ArgsKwargs, Floats2d, Floats3d

from ..bilm import BiLM
from ..inference import Session, Settings, current_session, release_session
from ..inference.settings import Precision, check_precision
from ..segmenters import Segmenter
from .activation_cache import ActivationCache
from .mixes import Mix
from .shim import ElmoShim

NAME = "elmo_encoder"


class BatchLayers(NamedTuple):
    """Activations of a batch of docs, one doc after the other.

    layers (Floats3d): Shape (L+1, tokens of all docs, 2P).
    lengths (list[int]): Tokens of each doc.
    frozen (bool): Whether the biLM is frozen, so that nobody needs the gradient of the layers.
    """

    layers: Floats3d
    lengths: list[int]
    frozen: bool = False

    def split(self) -> list[Floats3d]:
        """RETURNS (list): A view (L+1, tokens, 2P) for each doc."""
        return split_tokens(self.layers, self.lengths)


class DocVectors(NamedTuple):
    """What the biLM computed for one doc.

    layers (Optional[Floats3d]): Shape (L+1, tokens, 2P), if they are kept.
    tokens (Floats2d): The mix, shape (tokens, width).
    """

    layers: Optional[Floats3d]
    tokens: Floats2d


def ElmoEncoder(
    load: Union[BiLM, Callable[[], BiLM], None],
    segmenter: Segmenter,
    settings: Settings,
    *,
    mixed_precision: bool = False,
    language: Optional[str] = None,
) -> Model[list[Doc], BatchLayers]:
    """Run a biLM over docs. Whitespace tokens get zeros.

    segmenter (Segmenter): Cuts docs into the sequences that the biLM reads.
    load, settings, mixed_precision, language: See `ElmoShim`.

    The biLM is on the device of thinc's current ops, that of the model, from whichever thread it is
    used later. The attribute `grad_factor` (1) scales the gradient that reaches the biLM; with 0 it
    is frozen.
    """
    shim = ElmoShim(load, settings, mixed_precision, language)
    # A layer of its own, as in all pipelines that were saved.
    bilm: Model[Any, Any] = Model("pytorch", _run_shim, shims=[shim], dims={"nI": None, "nO": None})
    return Model(
        NAME,
        forward,
        init=init,
        layers=[bilm],
        attrs={"segmenter": segmenter, "settings": settings, "grad_factor": 1.0},
    )


def _run_shim(model: Model, inputs: tuple, is_train: bool) -> tuple[Any, Callable]:
    shim = cast(ElmoShim, model.shims[0])
    kwargs = {"mixed_precision": shim.mixed_precision}
    return shim(ArgsKwargs(args=inputs, kwargs=kwargs), is_train)


def forward(
    model: Model[list[Doc], BatchLayers], docs: list[Doc], is_train: bool
) -> tuple[BatchLayers, Callable]:
    if not is_train or not model.attrs["grad_factor"]:
        return encode_layers(model, docs), lambda d_layers: docs
    bilm, ops = get_bilm(model), model.ops
    sequences = Sequences.cut(docs, model.attrs["segmenter"])
    lengths = [len(doc) for doc in docs]
    if not len(sequences.tokens):
        shape = bilm.config.n_activations, sum(lengths), bilm.config.output_dim
        return BatchLayers(ops.alloc3f(*shape), lengths), lambda d_layers: docs
    inputs = (*sequences.types(), sequences.lengths)
    outputs, backprop_bilm = model.layers[0](inputs, is_train)
    values: Any = torch2xp(outputs, ops=ops)
    kept = ops.xp.asarray(numpy.flatnonzero(sequences.kept))
    rows = ops.xp.asarray(sequences.tokens[sequences.kept])
    layers = ops.xp.zeros((len(values), sum(lengths), values.shape[2]), dtype=values.dtype)
    layers[:, rows] = values[:, kept]

    def backprop(d_layers: Any) -> list[Doc]:
        d_values = ops.xp.zeros_like(values)
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
    session, ops = get_session(model), model.ops
    sequences = Sequences.cut(docs, model.attrs["segmenter"])
    lengths = [len(doc) for doc in docs]
    if cache is None:
        layers: Any = ops.alloc3f(session.n_layers, sum(lengths), session.width)
        for rows, values in sequences.run(session, ops):
            layers[:, ops.xp.asarray(rows)] = values
        return BatchLayers(layers, lengths, frozen=True)
    # The cache is in main memory. To a GPU, all sequences go at once.
    layers = numpy.zeros((session.n_layers, sum(lengths), session.width), dtype="float32")
    cache.bind(session)
    keys, kept_rows = sequences.keys()
    cached = [cache.get(key) for key in keys]
    missing = [number for number, activations in enumerate(cached) if activations is None]
    if missing:
        for rows, values in sequences.select(missing).run(session, ops):
            layers[:, rows] = ops.to_numpy(values)
    for key, rows, activations in zip(keys, kept_rows, cached):
        # `put` may round.
        layers[:, rows] = cache.put(key, layers[:, rows]) if activations is None else activations
    return BatchLayers(ops.asarray3f(layers), lengths, frozen=True)


def encode(
    model: Model[list[Doc], BatchLayers],
    docs: Sequence[Doc],
    mix: Mix,
    *,
    keep_layers: bool = True,
    cache: Optional[ActivationCache] = None,
) -> list[DocVectors]:
    """Predict in bounded memory: the mix is applied to one batch of tokens at a time, so that
    without `keep_layers` the activations of all layers of all tokens are never in memory together.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    mix (Mix): From (L+1, tokens, 2P) to (tokens, width), token by token.
    keep_layers (bool): Whether to return the layers.
    cache (Optional[ActivationCache]): See `encode_layers`.
    """
    session, ops = get_session(model), model.ops
    lengths = [len(doc) for doc in docs]
    shape = session.n_layers, sum(lengths), session.width
    if cache is None:
        batches: Any = Sequences.cut(docs, model.attrs["segmenter"]).run(session, ops)
    else:
        batches = [(numpy.arange(shape[1]), encode_layers(model, docs, cache).layers)]
    layers: Any = ops.alloc3f(*shape) if keep_layers else None
    tokens: Any = None
    for rows, values in batches:
        if keep_layers:
            layers[:, ops.xp.asarray(rows)] = values
        mixed = mix.predict(mix.ops.asarray3f(values))
        if tokens is None:
            tokens = mix.ops.alloc2f(shape[1], mixed.shape[1])
        tokens[mix.ops.xp.asarray(rows)] = mixed
    if tokens is None:  # No words. A token of zeros gives the width.
        width = mix.predict(mix.ops.alloc3f(shape[0], 1, shape[2])).shape[1]
        tokens = mix.ops.alloc2f(shape[1], width)
    if len(docs) == 1:
        return [DocVectors(layers, tokens)]
    # Copies, because a view of one doc would keep the whole batch in memory.
    token_copies = [array.copy() for array in split_tokens(tokens, lengths)]
    layer_copies = (
        [array.copy() for array in split_tokens(layers, lengths)]
        if keep_layers
        else [None] * len(docs)
    )
    return list(map(DocVectors, layer_copies, token_copies))


def get_shim(model: Model[list[Doc], BatchLayers]) -> ElmoShim:
    """RETURNS (ElmoShim): What holds the encoder's biLM."""
    return cast(ElmoShim, model.layers[0].shims[0])


def get_bilm(model: Model[list[Doc], BatchLayers]) -> BiLM:
    """RETURNS (BiLM): The encoder's biLM, loaded if it was not needed yet.
    RAISES (ValueError): If there are no weights."""
    return get_shim(model).load_bilm()


def set_bilm(model: Model[list[Doc], BatchLayers], bilm: BiLM) -> None:
    """Give the encoder another biLM, which moves to the encoder's device."""
    get_shim(model).set_bilm(bilm)


def get_session(model: Model[list[Doc], BatchLayers]) -> Session:
    """RETURNS (Session): What runs the encoder's biLM with its present weights."""
    shim = get_shim(model)
    return current_session(shim.bilm_for_session(), shim.usable_settings)


def set_precision(model: Model[list[Doc], BatchLayers], precision: Precision) -> None:
    """Let the encoder run in another precision than its settings say.
    RAISES (ValueError): If its device does not have it."""
    shim = get_shim(model)
    settings = replace(shim.settings, precision=precision)
    bilm = get_bilm(model)
    check_precision(precision, bilm.device)
    if settings != shim.usable_settings:
        release_session(bilm, shim.usable_settings)
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
            for indices, kept_slice in segmenter(doc):
                tokens.append(indices + n_tokens)
                kept.append(numpy.zeros(len(indices), dtype=bool))
                kept[-1][kept_slice] = True
                lengths.append(len(indices))
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

    def keys(self) -> tuple[list[tuple[bytes, bytes]], list[numpy.ndarray]]:
        """RETURNS (tuple): For each sequence, what distinguishes it from others, whichever docs
        they come from; and the numbers of its tokens that are kept."""
        keys, kept_rows = [], []
        orth, end = self.orth[self.tokens], 0
        for length in self.lengths.tolist():
            start, end = end, end + length
            kept = self.kept[start:end]
            keys.append((orth[start:end].tobytes(), kept.tobytes()))
            kept_rows.append(self.tokens[start:end][kept])
        return keys, kept_rows

    def select(self, numbers: Sequence[int]) -> Sequences:
        """RETURNS (Sequences): Some of the sequences of the same docs."""
        chosen = numpy.repeat(numpy.isin(numpy.arange(len(self.lengths)), numbers), self.lengths)
        lengths = self.lengths[list(numbers)]
        return Sequences(self.docs, self.orth, self.tokens[chosen], self.kept[chosen], lengths)


def split_tokens(array: Any, lengths: Sequence[int]) -> list:
    """Views of an array (..., tokens, width), one for each number of tokens."""
    ends = numpy.cumsum(lengths).tolist()
    return [array[..., end - length : end, :] for end, length in zip(ends, lengths)]
