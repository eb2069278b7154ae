"""Docs in, biLM activations out. Below this file there are only texts and tensors."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Union, cast

import numpy
import torch
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, PyTorchShim, PyTorchWrapper_v3, torch2xp, xp2torch
from thinc.types import ArgsKwargs, Floats2d, Floats3d
from thinc.util import get_torch_default_device

from ..bilm import BiLM
from ..bilm.formats import native
from ..bilm.model import DEFAULT_CACHE_BYTES, DEFAULT_MAX_TOKENS
from ..bilm.precision import Precision, check_precision
from ..bilm.type_cache import TypeCache
from ..segmenters import Segmenter
from .mixes import Mix

_LOADING = threading.Lock()

# A forked process (`nlp.pipe(n_process=2)`) inherits no threads of the OpenMP pool, and waits for
# them forever once it wants more than one. PyTorch's own worker processes do the same.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@dataclass(frozen=True)
class Settings:
    """What a config says about running a biLM; not part of its weights. See `BiLM`."""

    precision: Precision = "float32"
    max_tokens_per_batch: int = DEFAULT_MAX_TOKENS
    type_cache_mb: float = DEFAULT_CACHE_BYTES / 2**20
    stateful: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens_per_batch < 1:
            raise ValueError(
                f"max_tokens_per_batch must be 1 or more, found {self.max_tokens_per_batch}"
            )
        if self.type_cache_mb < 0:
            raise ValueError(f"type_cache_mb must be 0 or more, found {self.type_cache_mb}")

    def apply(self, bilm: BiLM) -> BiLM:
        check_precision(self.precision, bilm.device)
        bilm.precision = self.precision
        bilm.max_tokens = self.max_tokens_per_batch
        bilm.stateful = self.stateful
        bilm.type_cache = TypeCache(int(self.type_cache_mb * 2**20))
        return bilm


class NoWeights(torch.nn.Module):
    """Stands in for the biLM until it is needed: loading a saved pipeline replaces it unread.

    load (Optional[Callable]): Makes the biLM. None: the weights are yet to come.
    """

    def __init__(self, load: Optional[Callable[[], BiLM]]) -> None:
        super().__init__()
        self.load = load
        self.loaded: Optional[BiLM] = None

    def get(self) -> BiLM:
        """RETURNS (BiLM): Always the same. RAISES (ValueError): If there is nothing to load."""
        if self.load is None:
            raise ValueError(
                "the elmo component has no weights yet: name some in its config "
                '(nlp.add_pipe("elmo", config={"model": {"weights": "path/to/folder"}})), '
                "call load_weights() on the component, or load a pipeline that holds them"
            )
        with _LOADING:
            if self.loaded is None:
                self.loaded = self.load()
        return self.loaded


class Activations(NamedTuple):
    """What the biLM computed for one doc.

    layers (Optional[Floats3d]): Shape (L+1, tokens, 2P), if asked for.
    tokens (Optional[Floats2d]): The mix, shape (tokens, width), if there was one.
    """

    layers: Optional[Floats3d]
    tokens: Optional[Floats2d]


def ElmoEncoder(
    module: Union[BiLM, NoWeights], segmenter: Segmenter, settings: Settings
) -> Model[list[Doc], list[Floats3d]]:
    """Run a biLM over docs. Its output is one (L+1, tokens, 2P) array per doc, in which whitespace
    tokens are zero.

    module (Union[BiLM, NoWeights]): The biLM, or what stands in for it.
    segmenter (Segmenter): Cuts docs into the sequences that the biLM reads.
    settings (Settings): How to run it.
    RAISES (ValueError): If the precision is not for the current device.
    """
    check_precision(settings.precision, get_torch_default_device())
    if isinstance(module, BiLM):
        settings.apply(module)
    bilm: Model[Any, Any] = PyTorchWrapper_v3(
        module,
        convert_inputs=_convert_inputs,
        convert_outputs=_convert_outputs,
        serialize_model=_serialize,
        deserialize_model=partial(_deserialize, settings=settings),
    )
    return Model(
        "elmo_encoder",
        forward,
        init=init,
        layers=[bilm],
        attrs={"segmenter": segmenter, "settings": settings},
    )


def forward(
    model: Model[list[Doc], list[Floats3d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats3d], Callable]:
    get_bilm(model)
    batch = _Batch.from_docs(docs, model.attrs["segmenter"])
    (layers, _), backprop_bilm = model.layers[0](batch.inputs(), is_train)
    outputs = batch.split(layers)

    def backprop(d_outputs: list[Floats3d]) -> list[Doc]:
        backprop_bilm(model.ops.xp.concatenate(d_outputs, axis=1))
        return docs

    return outputs, backprop


def init(
    model: Model[list[Doc], list[Floats3d]], X: Any = None, Y: Any = None
) -> Model[list[Doc], list[Floats3d]]:
    get_bilm(model)
    return model


def encode(
    model: Model[list[Doc], list[Floats3d]],
    docs: Sequence[Doc],
    *,
    mix: Optional[Mix] = None,
    keep_layers: bool = True,
) -> list[Activations]:
    """Predict in bounded memory: the mix is applied to one batch of tokens at a time, so that
    without `keep_layers` the activations of all layers never stand side by side.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    mix (Optional[Mix]): From (L+1, tokens, 2P) to (tokens, width), token by token.
    keep_layers (bool): Whether to return the layers.
    RETURNS (list): The activations of each doc.
    """
    get_bilm(model)
    batch = _Batch.from_docs(docs, model.attrs["segmenter"])
    reduce = None if mix is None else partial(_apply_mix, mix)
    inputs = batch.inputs(keep_layers=keep_layers, reduce=reduce)
    layers, tokens = model.layers[0].predict(inputs)
    nothing = [None] * len(docs)
    return [
        Activations(*pair)
        for pair in zip(
            nothing if layers is None else batch.split(layers),
            nothing if tokens is None else batch.split(tokens),
        )
    ]


def get_bilm(model: Model[list[Doc], list[Floats3d]]) -> BiLM:
    """RETURNS (BiLM): The encoder's biLM, made now if it was not needed yet.
    RAISES (ValueError): If there are no weights."""
    module = cast(PyTorchShim, model.layers[0].shims[0])._model
    if isinstance(module, NoWeights):
        module = module.get()
        set_bilm(model, module)
    return module


def set_bilm(model: Model[list[Doc], list[Floats3d]], bilm: BiLM) -> None:
    """Give the encoder another biLM, which moves to the encoder's device."""
    shim = cast(PyTorchShim, model.layers[0].shims[0])
    shim._model = model.attrs["settings"].apply(bilm.to(shim.device))


@dataclass
class _Batch:
    """The tokens of some docs as the biLM wants them."""

    types: list[str]
    index: numpy.ndarray
    lengths: list[int]
    targets: numpy.ndarray
    doc_lengths: list[int]

    @classmethod
    def from_docs(cls, docs: Sequence[Doc], segmenter: Segmenter) -> _Batch:
        doc_lengths = [len(doc) for doc in docs]
        starts = numpy.cumsum([0, *doc_lengths])
        tokens, targets, lengths = [], [], []
        for doc, start in zip(docs, starts.tolist()):
            for sequence in segmenter(doc):
                rows = sequence.tokens + start
                kept = numpy.full_like(rows, -1)
                kept[sequence.start : sequence.end] = rows[sequence.start : sequence.end]
                tokens.append(rows)
                targets.append(kept)
                lengths.append(len(rows))
        flat = numpy.concatenate(tokens) if tokens else numpy.zeros(0, dtype=numpy.int64)
        orths = [doc.to_array(ORTH) for doc in docs]
        orth = numpy.concatenate(orths)[flat] if len(flat) else flat
        _, first, index = numpy.unique(orth, return_index=True, return_inverse=True)
        # The text comes from the type's first token: docs may have different vocabs.
        where = numpy.searchsorted(starts, flat[first], side="right") - 1
        return cls(
            types=[
                docs[d][i].text
                for d, i in zip(where.tolist(), (flat[first] - starts[where]).tolist())
            ],
            index=index.reshape(-1),
            lengths=lengths,
            targets=numpy.concatenate(targets) if targets else flat,
            doc_lengths=doc_lengths,
        )

    def inputs(self, **kwargs: Any) -> ArgsKwargs:
        kwargs.update(targets=self.targets, n_rows=sum(self.doc_lengths))
        return ArgsKwargs(args=(self.types, self.index, self.lengths), kwargs=kwargs)

    def split(self, array: Any) -> list:
        """Cut an array (..., tokens, width) into docs. Copies, because a view of one doc would
        keep the whole batch in memory."""
        if len(self.doc_lengths) == 1:
            return [array]
        ends = numpy.cumsum(self.doc_lengths).tolist()
        return [
            array[..., end - length : end, :].copy() for end, length in zip(ends, self.doc_lengths)
        ]


def _apply_mix(mix: Mix, layers: torch.Tensor) -> torch.Tensor:
    mixed = mix.predict(cast(Floats3d, torch2xp(layers)))
    return xp2torch(mixed, device=layers.device)


def _convert_inputs(
    model: Model, inputs: ArgsKwargs, is_train: bool
) -> tuple[ArgsKwargs, Callable]:
    return inputs, lambda d_inputs: d_inputs


def _convert_outputs(model: Model, inputs_outputs: tuple, is_train: bool) -> tuple[Any, Callable]:
    _, (layers, tokens) = inputs_outputs

    def backprop(d_layers: Floats3d) -> ArgsKwargs:
        gradient = xp2torch(d_layers, device=layers.device)
        return ArgsKwargs(args=((layers,),), kwargs={"grad_tensors": (gradient,)})

    arrays = tuple(None if tensor is None else torch2xp(tensor) for tensor in (layers, tokens))
    return arrays, backprop


def _serialize(module: Union[BiLM, NoWeights]) -> bytes:
    if isinstance(module, NoWeights):
        if module.load is None:
            return b""
        # The saved pipeline must not need the original files, even if this one never ran.
        module = module.get()
    return native.to_bytes(module)


def _deserialize(
    module: Union[BiLM, NoWeights], data: bytes, device: torch.device, *, settings: Settings
) -> Union[BiLM, NoWeights]:
    if not data:  # Saved before it had weights.
        return module
    return settings.apply(native.from_bytes(data).to(device))
