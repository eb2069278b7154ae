"""Docs in, biLM activations out. Below this file there are only texts and tensors."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Union, cast, get_args

import numpy
import torch
from spacy.attrs import ORTH
from spacy.tokens import Doc
from thinc.api import Model, Optimizer, PyTorchShim, PyTorchWrapper_v3, torch2xp, xp2torch
from thinc.types import ArgsKwargs, Floats2d, Floats3d

from ..bilm import BiLM
from ..bilm.derived import fingerprint
from ..bilm.forking import FORK_GATE, Lock
from ..bilm.formats import native
from ..bilm.model import DEFAULT_CACHE_BYTES, DEFAULT_MAX_TOKENS
from ..bilm.precision import Precision, check_precision
from ..bilm.type_cache import TypeCache
from ..segmenters import Segmenter
from .activation_cache import ActivationCache
from .mixes import Mix
from .not_serialized import NotSerialized

NAME = "elmo_encoder"


@dataclass(frozen=True)
class Settings(NotSerialized):
    """What a config says about running a biLM; not part of its weights. See `BiLM`.

    RAISES (ValueError): If a value is impossible on any device.
    """

    precision: Precision = "float32"
    max_tokens_per_batch: int = DEFAULT_MAX_TOKENS
    type_cache_mb: float = DEFAULT_CACHE_BYTES / 2**20
    stateful: bool = False
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"unknown precision {self.precision!r}: choose one of "
                f"{', '.join(get_args(Precision))}"
            )
        if self.max_tokens_per_batch < 1:
            raise ValueError(
                f"max_tokens_per_batch must be 1 or more, found {self.max_tokens_per_batch}"
            )
        if self.type_cache_mb < 0:
            raise ValueError(f"type_cache_mb must be 0 or more, found {self.type_cache_mb}")

    def apply(self, bilm: BiLM) -> BiLM:
        """Set up a biLM. A precision that its device does not have becomes float32, with a warning:
        a pipeline that was saved on a GPU must load on a CPU, and the other way round."""
        bilm.precision = self.precision
        try:
            check_precision(self.precision, bilm.device)
        except ValueError as error:
            warnings.warn(f"{error}; the biLM runs in float32", stacklevel=2)
            bilm.precision = "float32"
        bilm.max_tokens = self.max_tokens_per_batch
        bilm.stateful = self.stateful
        bilm.mixed_precision = self.mixed_precision
        bilm.type_cache = TypeCache(int(self.type_cache_mb * 2**20))
        return bilm


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """What is made here can be trained, and has data, whatever mode and default device the caller
    has set: weights that are read in `torch.inference_mode` could never be changed."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class NoWeights(torch.nn.Module):
    """Stands in for the biLM until it is needed: loading a saved pipeline replaces it unread.

    load (Optional[Callable]): Makes the biLM. None: the weights are yet to come.
    language (Optional[str]): The language of the text that they were trained on, if known.

    The attribute `warning` is what to say when they are needed after all.
    """

    def __init__(self, load: Optional[Callable[[], BiLM]], language: Optional[str] = None) -> None:
        super().__init__()
        self.load = load
        self.language = language
        self.warning: Optional[str] = None
        # In a list, because PyTorch would register it as a part of this module, and thinc would
        # take its device for that of the encoder.
        self._loaded: list[BiLM] = []
        # An empty weight, which is where the encoder is, also after `to_gpu`.
        with _ordinary_tensors():
            empty = torch.empty(0, dtype=torch.float32)
            self._weight = torch.nn.Parameter(empty, requires_grad=False)
        self._lock = Lock()

    @property
    def device(self) -> torch.device:
        return self._weight.device

    def get(self) -> BiLM:
        """RETURNS (BiLM): Always the same. RAISES (ValueError): If there is nothing to load."""
        if self.load is None:
            raise ValueError(
                "the elmo component has no weights yet: name some in its config "
                '(nlp.add_pipe("elmo", config={"model": {"weights": "path/to/folder"}})), '
                "call load_weights() on the component, or load a pipeline that holds them"
            )
        with self._lock:
            if not self._loaded:
                with _ordinary_tensors():
                    # Random weights are of the default dtype, which may be float64.
                    self._loaded.append(self.load().float())
                if self.warning is not None:
                    warnings.warn(self.warning, stacklevel=2)
        return self._loaded[0]


class _Shim(PyTorchShim):
    settings: Settings

    def finish_update(self, optimizer: Optimizer) -> None:
        super().finish_update(optimizer)
        if isinstance(self._model, BiLM):
            self._model.invalidate()  # thinc writes to the weights behind PyTorch's back.

    def to_device(self, device_type: str, device_id: int) -> None:
        with _ordinary_tensors():
            super().to_device(device_type, device_id)
        if isinstance(self._model, BiLM):
            self._model.reset_states()
            self.settings.apply(self._model)


class DocLayers(NamedTuple):
    """Activations of a batch of docs, one doc after the other.

    layers (Floats3d): Shape (L+1, tokens of all docs, 2P).
    lengths (list[int]): Tokens of each doc.
    """

    layers: Floats3d
    lengths: list[int]

    def split(self) -> list[Floats3d]:
        """RETURNS (list): A view (L+1, tokens, 2P) for each doc."""
        return split_tokens(self.layers, self.lengths)


class FrozenLayers(DocLayers):
    """Layers of a frozen biLM: nobody needs their gradient."""


class Activations(NamedTuple):
    """What the biLM computed for one doc.

    layers (Optional[Floats3d]): Shape (L+1, tokens, 2P), if asked for.
    tokens (Optional[Floats2d]): The mix, shape (tokens, width), if there was one.
    """

    layers: Optional[Floats3d]
    tokens: Optional[Floats2d]


def ElmoEncoder(
    module: Union[BiLM, NoWeights], segmenter: Segmenter, settings: Settings
) -> Model[list[Doc], DocLayers]:
    """Run a biLM over docs. Whitespace tokens get zeros.

    module (Union[BiLM, NoWeights]): The biLM, or what stands in for it.
    segmenter (Segmenter): Cuts docs into the sequences that the biLM reads.
    settings (Settings): How to run it.

    The biLM is on the device of thinc's current ops, that of the model, from whichever thread it is
    used later. The attribute `grad_factor` (1) scales the gradient that reaches the biLM; with 0 it
    is frozen.
    """
    with _ordinary_tensors():
        bilm: Model[Any, Any] = PyTorchWrapper_v3(
            module,
            convert_inputs=_convert_inputs,
            convert_outputs=_convert_outputs,
            serialize_model=_serialize,
            deserialize_model=partial(_deserialize, settings=settings),
        )
    if isinstance(module, BiLM):
        settings.apply(module)
    shim = bilm.shims[0]
    shim.__class__ = _Shim  # The wrapper has no parameter for it.
    cast(_Shim, shim).settings = settings
    return Model(
        NAME,
        forward,
        init=init,
        layers=[bilm],
        attrs={
            "segmenter": segmenter,
            "settings": settings,
            "grad_factor": 1.0,
        },
    )


def forward(
    model: Model[list[Doc], DocLayers], docs: list[Doc], is_train: bool
) -> tuple[DocLayers, Callable]:
    if not is_train or not model.attrs["grad_factor"]:
        return FrozenLayers(*encode_layers(model, docs)), lambda d_layers: docs
    get_bilm(model)
    sequences = _Sequences.cut(docs, model.attrs["segmenter"])
    (layers, _), backprop_bilm = model.layers[0](sequences.inputs(), is_train)

    def backprop(d_layers: Floats3d) -> list[Doc]:
        backprop_bilm(d_layers * model.attrs["grad_factor"])
        return docs

    return DocLayers(layers, sequences.doc_lengths), backprop


def init(
    model: Model[list[Doc], DocLayers], X: Any = None, Y: Any = None
) -> Model[list[Doc], DocLayers]:
    get_bilm(model)
    return model


@FORK_GATE
def encode_layers(
    model: Model[list[Doc], DocLayers],
    docs: Sequence[Doc],
    cache: Optional[ActivationCache] = None,
) -> DocLayers:
    """Predict the activations of all layers.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    cache (Optional[ActivationCache]): Activations of sequences seen before, and where to put those
        of new ones.
    RETURNS (DocLayers): The activations.
    """
    get_bilm(model)
    sequences = _Sequences.cut(docs, model.attrs["segmenter"])
    if cache is None:
        layers, _ = model.layers[0].predict(sequences.inputs())
    else:
        layers = _with_cache(model, sequences, cache)
    return DocLayers(layers, sequences.doc_lengths)


def _with_cache(
    model: Model[list[Doc], DocLayers], sequences: _Sequences, cache: ActivationCache
) -> Floats3d:
    bilm = get_bilm(model)
    # Other weights may come to lie where freed ones lay, which a fingerprint cannot tell.
    cache.bind((weakref.ref(bilm), fingerprint(bilm), bilm.precision))
    keys = sequences.keys()
    found = [cache.get(key) for key in keys]
    missing = [i for i, activations in enumerate(found) if activations is None]
    if missing:
        part = sequences.select(missing)
        computed, _ = model.layers[0].predict(part.inputs(pad=False))
        # The cache is in main memory. From a GPU, and back to it, all sequences go at once.
        parts = split_tokens(model.ops.to_numpy(computed), part.kept_lengths())
        for i, activations in zip(missing, parts):
            found[i] = cache.put(keys[i], activations)
    config = bilm.config
    n_tokens = sum(sequences.doc_lengths)
    layers: Any = numpy.zeros((config.n_activations, n_tokens, config.output_dim), dtype="float32")
    for rows, kept, activations in zip(sequences.rows, sequences.kept, found):
        layers[:, rows[kept]] = activations
    return model.ops.asarray3f(layers)


@FORK_GATE
def encode(
    model: Model[list[Doc], DocLayers],
    docs: Sequence[Doc],
    *,
    mix: Optional[Mix] = None,
    keep_layers: bool = True,
    cache: Optional[ActivationCache] = None,
) -> list[Activations]:
    """Predict in bounded memory: the mix is applied to one batch of tokens at a time, so that
    without `keep_layers` the activations of all layers never stand side by side.

    model (Model): An `ElmoEncoder`.
    docs (Sequence[Doc]): The docs.
    mix (Optional[Mix]): From (L+1, tokens, 2P) to (tokens, width), token by token.
    keep_layers (bool): Whether to return the layers.
    cache (Optional[ActivationCache]): See `encode_layers`.
    RETURNS (list): The activations of each doc.
    """
    if cache is not None:
        layers = encode_layers(model, docs, cache)
        tokens = None if mix is None else mix.predict(mix.ops.asarray3f(layers.layers))
        arrays = (layers.layers if keep_layers else None, tokens)
        return _per_doc(arrays, layers.lengths)
    get_bilm(model)
    sequences = _Sequences.cut(docs, model.attrs["segmenter"])
    reduce = None if mix is None else partial(_apply_mix, mix)
    inputs = sequences.inputs(keep_layers=keep_layers, reduce=reduce)
    return _per_doc(model.layers[0].predict(inputs), sequences.doc_lengths)


def _per_doc(arrays: Iterable[Any], lengths: list[int]) -> list[Activations]:
    parts = (
        [None] * len(lengths) if array is None else _own(split_tokens(array, lengths))
        for array in arrays
    )
    return [Activations(*pair) for pair in zip(*parts)]


def get_no_weights(model: Model[list[Doc], DocLayers]) -> Optional[NoWeights]:
    """RETURNS (Optional[NoWeights]): What stands in for the encoder's biLM, if there is none."""
    module = cast(PyTorchShim, model.layers[0].shims[0])._model
    return module if isinstance(module, NoWeights) else None


def get_bilm(model: Model[list[Doc], DocLayers]) -> BiLM:
    """RETURNS (BiLM): The encoder's biLM, made now if it was not needed yet.
    RAISES (ValueError): If there are no weights."""
    if (no_weights := get_no_weights(model)) is not None:
        set_bilm(model, no_weights.get())
    return cast(PyTorchShim, model.layers[0].shims[0])._model


def set_bilm(model: Model[list[Doc], DocLayers], bilm: BiLM) -> None:
    """Give the encoder another biLM, which moves to the encoder's device."""
    shim = cast(PyTorchShim, model.layers[0].shims[0])
    with _ordinary_tensors():
        bilm = bilm.to(shim.device)
    shim._model = model.attrs["settings"].apply(bilm)


@dataclass
class _Sequences:
    """The sequences of some docs, as the biLM reads them.

    docs (list[Doc]): The docs.
    orth (ndarray): Word types of all their tokens.
    rows (list[ndarray]): Each sequence's tokens, as numbers in the concatenation of all docs.
    kept (list[slice]): The part of each sequence whose vectors are kept.
    """

    docs: Sequence[Doc]
    orth: numpy.ndarray
    rows: list[numpy.ndarray]
    kept: list[slice]

    @classmethod
    def cut(cls, docs: Sequence[Doc], segmenter: Segmenter) -> _Sequences:
        rows, kept = [], []
        start = 0
        for doc in docs:
            for sequence in segmenter(doc):
                rows.append(sequence.tokens + start)
                kept.append(slice(sequence.start, sequence.end))
            start += len(doc)
        nothing = numpy.zeros(0, dtype=numpy.uint64)
        orth = numpy.concatenate([nothing, *(doc.to_array(ORTH) for doc in docs)])
        return cls(docs, orth, rows, kept)

    @property
    def doc_lengths(self) -> list[int]:
        return [len(doc) for doc in self.docs]

    def kept_lengths(self) -> list[int]:
        return [kept.stop - kept.start for kept in self.kept]

    def keys(self) -> list[tuple]:
        """RETURNS (list): What tells the sequences apart, whichever docs they come from."""
        return [
            (self.orth[rows].tobytes(), kept.start, kept.stop)
            for rows, kept in zip(self.rows, self.kept)
        ]

    def select(self, numbers: Sequence[int]) -> _Sequences:
        """RETURNS (_Sequences): Some of the sequences of the same docs."""
        rows = [self.rows[i] for i in numbers]
        return _Sequences(self.docs, self.orth, rows, [self.kept[i] for i in numbers])

    def inputs(self, *, pad: bool = True, **kwargs: Any) -> ArgsKwargs:
        """What `BiLM.forward` wants.

        pad (bool): A row for every token of the docs. Else only for those that are kept.
        """
        flat = _concatenate(self.rows)
        _, first, index = numpy.unique(self.orth[flat], return_index=True, return_inverse=True)
        # The text comes from the type's first token: docs may have different vocabs.
        ends = numpy.cumsum(self.doc_lengths)
        where = numpy.searchsorted(ends, flat[first], side="right")
        starts = (ends - self.doc_lengths)[where] if len(where) else where
        types = [
            self.docs[d][i].text for d, i in zip(where.tolist(), (flat[first] - starts).tolist())
        ]
        is_kept = numpy.zeros(len(flat), dtype=bool)
        lengths = [len(rows) for rows in self.rows]
        for start, kept in zip(numpy.cumsum(lengths) - lengths, self.kept):
            is_kept[start + kept.start : start + kept.stop] = True
        kept_rows = flat if pad else numpy.cumsum(is_kept) - 1
        n_rows = len(self.orth) if pad else int(is_kept.sum())
        kwargs.update(targets=numpy.where(is_kept, kept_rows, -1), n_rows=n_rows)
        return ArgsKwargs(args=(types, index.reshape(-1), lengths), kwargs=kwargs)


def _concatenate(arrays: Iterable[numpy.ndarray]) -> numpy.ndarray:
    return numpy.concatenate([numpy.zeros(0, dtype=numpy.int64), *arrays])


def split_tokens(array: Any, lengths: Sequence[int]) -> list:
    """Views of an array (..., tokens, width), one for each number of tokens."""
    ends = numpy.cumsum(lengths).tolist()
    return [array[..., end - length : end, :] for end, length in zip(ends, lengths)]


def _own(parts: list) -> list:
    """Copies, because a view of one doc would keep the whole batch in memory."""
    return parts if len(parts) == 1 else [part.copy() for part in parts]


def _apply_mix(mix: Mix, layers: torch.Tensor) -> torch.Tensor:
    # On a GPU, the mix runs on CuPy's current stream. By default that is PyTorch's, too: the null
    # stream, so that one waits for the other. thinc's layers do not support other streams.
    mixed = mix.predict(cast(Floats3d, torch2xp(layers, ops=mix.ops)))
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

    arrays = tuple(
        None if tensor is None else torch2xp(tensor, ops=model.ops) for tensor in (layers, tokens)
    )
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
    # Not `device`, which is that of the calling thread's ops.
    with _ordinary_tensors():
        bilm = native.from_bytes(data).to(module.device)
    return settings.apply(bilm)
