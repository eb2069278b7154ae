"""The biLM as thinc sees it. Below this file there are only texts and tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Optional, Union, cast

import numpy
import srsly
import torch
from spacy.tokens import Doc
from thinc.api import Model, Ops, Optimizer, PyTorchShim, Shim, torch2xp, xp2torch
from thinc.types import ArgsKwargs, Floats3d

from ..bilm import BiLM
from ..bilm.mixed_precision import usable_mixed_precision
from ..formats import safetensors_format
from ..inference import Session, Settings, current_session
from ..inference.settings import Precision, check_precision
from ..parallel import no_fork, start
from ..pooling import WordPooling
from ..segmenters import Segmenter, Sequences
from .activation_cache import ActivationCache
from .batch_layers import BatchLayers
from .mixes import Mix, with_trained

NAME = "elmo_encoder"

# Threads that use an encoder for the first time load its weights one after the other.
_LOADING = threading.RLock()

Encoder = Model[list[Doc], BatchLayers]


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """Make tensors that can be trained, whatever mode and default device the caller has set."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class ElmoShim(PyTorchShim):
    """Holds the biLM for thinc: loads, moves, trains and saves it.

    load (Union[BiLM, Callable, None]): The biLM, or what makes it at its first use; None if there
        are no weights yet. It is `pending` until then.
    settings (Settings): How to run it; `usable_settings` have a precision that the device has.

    `warning` is shown when the biLM is loaded. `untrained` are the weights before training changed
    them, in main memory.
    """

    def __init__(
        self,
        load: Union[BiLM, Callable[[], BiLM], None],
        settings: Settings,
        mixed_precision: bool = False,
        language: Optional[str] = None,
    ) -> None:
        # Until the biLM is loaded, an empty weight keeps the device.
        with _ordinary_tensors():
            empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            super().__init__(torch.nn.ParameterList([empty]))
        self.pending = load
        self.settings = self.usable_settings = settings
        self.mixed_precision = mixed_precision
        self.language = language
        self.warning: Optional[str] = None
        self.untrained: dict[str, torch.Tensor] = {}

    @property
    def has_weights(self) -> bool:
        """Whether there is a biLM, or something to load."""
        return self.pending is not None or isinstance(self._model, BiLM)

    def facts(self) -> dict[str, str]:
        """RETURNS (dict): Facts for users, as text. This does not read the weights."""
        bilm = self._model if isinstance(self._model, BiLM) else self.pending
        if isinstance(bilm, BiLM):
            return bilm.facts(self.usable_settings.precision)
        return {"weights": "no weights yet" if bilm is None else "weights not read yet"}

    def float32_bilm(self) -> BiLM:
        """RETURNS (BiLM): The biLM, read at the first call. int8 weights become float32."""
        bilm = self.stored_bilm()
        if self.usable_settings.precision == "int8":  # No other one leaves int8 weights.
            with no_fork(), _LOADING, _ordinary_tensors():
                bilm.dequantize()
        return bilm

    def stored_bilm(self) -> BiLM:
        """RETURNS (BiLM): The biLM, read at the first call. int8 weights stay if they run."""
        if not isinstance(self._model, BiLM):
            with no_fork(), _LOADING:
                if not isinstance(self._model, BiLM):  # Another thread may have been first.
                    self.set_bilm(self._read())
        return self._model

    def _read(self) -> BiLM:
        """RETURNS (BiLM): The biLM, not moved to a device."""
        if isinstance(self._model, BiLM):
            return self._model
        if self.pending is None:
            raise ValueError(
                "the elmo component has no weights yet: name some in its config "
                '(nlp.add_pipe("elmo", config={"model": {"weights": "path/to/folder"}})), '
                "call load_weights() on the component, or load a pipeline that holds them"
            )
        if isinstance(self.pending, BiLM):
            return self.pending
        with _ordinary_tensors():
            bilm = self.pending().float()
        if self.warning is not None:
            warnings.warn(self.warning, stacklevel=2)
        return bilm

    def set_bilm(self, bilm: BiLM) -> None:
        """Take another biLM, and move it to the encoder's device. A precision that the device does
        not have becomes float32, with a warning."""
        device = self.device
        if bilm is not self._model:
            self.untrained = {}
        self.usable_settings = self.settings
        try:
            check_precision(self.settings.precision, device)
        except ValueError as error:
            warnings.warn(f"{error}; the biLM runs in float32", stacklevel=2)
            self.usable_settings = replace(self.settings, precision="float32")
        with _ordinary_tensors():
            if self.usable_settings.precision != "int8":
                bilm.dequantize()
            if not bilm.is_int8:  # Else it is on the CPU, as int8 is.
                bilm = bilm.to(device)
        bilm.lstm.kernel = self.settings.kernel
        self._model, self.pending = bilm, None

    def copy(self) -> ElmoShim:
        """RETURNS (ElmoShim): A copy. Its own id separates the moments that optimizers keep."""
        shim = super().copy()
        with Shim.global_id_lock:
            Shim.global_id += 1
            shim.id = Shim.global_id
        return shim

    def restore(self) -> None:
        """Give the biLM the weights that it had before it was trained."""
        if isinstance(self._model, BiLM):
            self._model.zero_grad()
            self._model.load_state_dict(self.untrained, strict=False)
        self.untrained = {}

    def finish_update(self, optimizer: Optimizer) -> None:
        for name, weight in self._model.named_parameters():
            if weight.grad is not None and name not in self.untrained:
                self.untrained[name] = weight.detach().clone().cpu()
        super().finish_update(optimizer)
        if isinstance(self._model, BiLM):
            self._model.invalidate()  # PyTorch does not count the changes that thinc makes.

    def to_device(self, device_type: str, device_id: int) -> None:
        is_loaded = isinstance(self._model, BiLM)
        with _ordinary_tensors():
            if is_loaded:
                self._model.dequantize()
            super().to_device(device_type, device_id)
        if is_loaded:
            self.set_bilm(self._model)

    def to_bytes(self) -> bytes:
        state = b""
        if self.has_weights:
            # The saved pipeline must not need the original files, even if this one never ran.
            with no_fork(), _LOADING:
                bilm = self._read()
            state = safetensors_format.to_bytes(bilm)
        return srsly.msgpack_dumps({"config": self.cfg, "state": state})

    def from_bytes(self, bytes_data: bytes) -> ElmoShim:
        message = srsly.msgpack_loads(bytes_data)
        self.cfg = message["config"]
        if message["state"]:  # Else it was saved before it had weights.
            with _ordinary_tensors():
                bilm = safetensors_format.from_bytes(message["state"], keep_int8=True)
            self.set_bilm(bilm)
        return self


def ElmoEncoder(shim: ElmoShim, segmenter: Segmenter) -> Encoder:
    """Run a biLM over docs, on the device of thinc's current ops, from whichever thread it is used
    later. Whitespace tokens get zeros. The factor of the attribute `gradient` scales the gradient
    that reaches the biLM; with 0 it is frozen."""
    attrs = {"segmenter": segmenter, "gradient": SimpleNamespace(factor=1.0)}
    return Model(NAME, forward, init=init, shims=[shim], attrs=attrs)


def forward(model: Encoder, docs: list[Doc], is_train: bool) -> tuple[BatchLayers, Callable]:
    ops, factor = model.ops, model.attrs["gradient"].factor
    if not is_train or not factor:
        return encode(model, docs), lambda d_layers: docs
    sequences = Sequences.cut(docs, model.attrs["segmenter"])
    if not len(sequences.tokens):
        return encode(model, docs)._replace(frozen=False), lambda d_layers: docs
    shim = get_shim(model)
    # Not when the biLM is set: a pipeline that only predicts must not warn.
    mixed_precision = usable_mixed_precision(shim.mixed_precision, shim.float32_bilm().device)
    inputs = (*sequences.types(), sequences.lengths)
    outputs, backprop_bilm = shim(ArgsKwargs(inputs, {"mixed_precision": mixed_precision}), True)
    kept, rows = (
        torch.from_numpy(numbers).to(outputs.device)
        for numbers in (numpy.flatnonzero(sequences.kept), sequences.tokens[sequences.kept])
    )
    layers = outputs.new_zeros(len(outputs), len(sequences.orth), outputs.shape[2])
    layers = layers.index_copy(1, rows, outputs[:, kept])

    def backprop(d_layers: Any) -> list[Doc]:
        gradient = xp2torch(d_layers * factor, device=layers.device).to(layers.dtype)
        backprop_bilm(ArgsKwargs(args=((layers,),), kwargs={"grad_tensors": (gradient,)}))
        return docs

    values: Any = torch2xp(layers, ops=ops)
    return BatchLayers(values, [len(doc) for doc in docs]), backprop


def init(model: Encoder, X: Any = None, Y: Any = None) -> None:
    get_shim(model).restore()
    get_bilm(model)


def encode(
    model: Encoder,
    docs: Sequence[Doc],
    mix: Optional[Mix] = None,
    *,
    keep_layers: bool = True,
    cache: Optional[ActivationCache] = None,
    pooling: Optional[WordPooling] = None,
) -> BatchLayers:
    """Predict. Without `keep_layers`, the layers of all tokens are never in memory together. The
    mix gets the trained one that came with the weights."""
    session, ops = get_session(model), model.ops
    layers: Any = None
    mixed: Any = None
    pooled: Any = None
    if cache is not None and docs:
        layers = _encode_cached(model, docs, cache)
        shape = layers.shape
        batches: Any = [(slice(None), layers)]
    else:
        sequences = Sequences.cut(docs, model.attrs["segmenter"])
        shape = session.n_layers, len(sequences.orth), session.width
        layers = ops.alloc3f(*shape) if keep_layers else None
        batches = run_sequences(sequences, session, ops)
    if mix is not None:
        mix = with_trained(mix, session.trained_mix)
        for node in mix.walk():
            node.ops = ops  # `model.to_gpu` moves the model alone. This mix has no weights.
        # A token of zeros gives the width.
        width = mix.predict(ops.alloc3f(shape[0], 1, shape[2])).shape[1]
        mixed = ops.alloc2f(shape[1], width)
    if pooling is not None:
        pooled, pool = pooling.prepare(docs, ops)
        batches = _also(pool, batches, session.device)
    for rows, values in batches:
        if layers is not None and layers is not values:
            layers[:, rows] = values
        if mix is not None:
            mixed[rows] = mix.predict(values)
    lengths = [len(doc) for doc in docs]
    layers = layers if keep_layers else None
    return BatchLayers(layers, lengths, True, mixed, pooled, session)


def _also(
    task: Callable[..., None], batches: Iterable[tuple[Any, Any]], device: torch.device
) -> Iterator[tuple[Any, Any]]:
    """YIELDS (tuple): The batches. A task gets each of them, too, and runs in one of the biLM's
    threads, beside the next batch."""
    waits: list[Callable[[], None]] = []
    for batch in batches:
        waits.append(start(partial(task, *batch), device))
        yield batch
        if len(waits) > 1:
            waits.pop(0)()
    for wait in waits:
        wait()


def _encode_cached(model: Encoder, docs: Sequence[Doc], cache: ActivationCache) -> Floats3d:
    """Take activations from a cache, which is in main memory, and compute those of other docs. To a
    GPU, all docs go at once."""
    cache.bind(get_session(model))
    keys = [Sequences.cut([doc], model.attrs["segmenter"]).key() for doc in docs]
    parts: list[Any] = [cache.get(key) for key in keys]
    missing = [number for number, part in enumerate(parts) if part is None]
    if missing:
        computed = encode(model, [docs[number] for number in missing])
        for number, part in zip(missing, computed.split()):
            parts[number] = cache.put(keys[number], model.ops.to_numpy(part.layers))
    layers: Any = numpy.concatenate(parts, axis=1, dtype="float32")
    return model.ops.asarray3f(layers)


def run_sequences(
    sequences: Sequences, session: Session, ops: Ops
) -> Iterator[tuple[Any, Floats3d]]:
    """YIELDS (tuple): For each batch, the numbers of its tokens that are kept, shape (n,), and all
    layers' activations, shape (L+1, n, 2P)."""
    types, index = sequences.types()
    for tokens, layers in session.batches(types, index, sequences.lengths):
        kept = sequences.kept[tokens]
        # On a GPU, both libraries use the null stream, so that one waits for the other.
        values: Any = torch2xp(layers, ops=ops)
        if not kept.all():
            values = values[:, ops.xp.asarray(numpy.flatnonzero(kept))]
        if values.shape[1]:
            yield ops.xp.asarray(sequences.tokens[tokens[kept]]), values


def get_shim(model: Encoder) -> ElmoShim:
    """RETURNS (ElmoShim): The holder of the encoder's biLM."""
    return cast(ElmoShim, model.shims[0])


def get_bilm(model: Encoder) -> BiLM:
    """RETURNS (BiLM): The encoder's biLM, loaded if it was not needed yet."""
    return get_shim(model).float32_bilm()


def set_bilm(model: Encoder, bilm: BiLM) -> None:
    """Give the encoder another biLM."""
    get_shim(model).set_bilm(bilm)


def get_session(model: Encoder) -> Session:
    """RETURNS (Session): The session for the encoder's present weights."""
    shim = cast(ElmoShim, model.shims[0])
    return current_session(shim.stored_bilm(), shim.usable_settings)


def set_precision(model: Encoder, precision: Precision) -> None:
    """Choose another precision than that of the settings."""
    shim = get_shim(model)
    check_precision(precision, get_bilm(model).device)
    shim.settings = shim.usable_settings = replace(shim.settings, precision=precision)
