"""The biLM as thinc sees it: loaded on first use, moved to a device, trained, saved."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Optional, Union

import srsly
import torch
from thinc.api import Optimizer, PyTorchShim

from ..bilm import BiLM
from ..bilm.formats import native
from ..bilm.threads import no_fork
from ..inference import Settings
from ..inference.settings import check_precision
from .not_serialized import not_serialized

# Threads that use an encoder for the first time load its weights one after the other.
_LOADING = threading.RLock()

not_serialized(Settings)


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """What is made here can be trained, and has data, whatever mode and default device the caller
    has set: weights that are read in `torch.inference_mode` could never be changed."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class ElmoShim(PyTorchShim):
    """Holds the biLM for thinc: loads, moves, trains and saves it.

    load (Union[BiLM, Callable, None]): The biLM, or what makes it at its first use. A saved
        pipeline replaces the biLM before that. None: the encoder has no weights yet.
    settings (Settings): How to run it.
    mixed_precision (bool): Fine-tune with bfloat16 products; weights, gradients and results stay
        float32.
    language (Optional[str]): The language of the text that it was trained on, if known.

    Weights that a pipeline stores as int8 stay in 8 bits while the precision is int8 and nothing
    else needs them (`BiLM.is_int8`): `load_bilm` makes float32 weights of them.

    The attribute `usable_settings` has a precision that the device has: that of the settings, or
    float32. The attribute `warning` is shown when the biLM is loaded.
    """

    def __init__(
        self,
        load: Union[BiLM, Callable[[], BiLM], None],
        settings: Settings,
        mixed_precision: bool = False,
        language: Optional[str] = None,
    ) -> None:
        # Until the biLM is loaded, an empty weight has the device of the encoder, also after
        # `to_gpu`.
        with _ordinary_tensors():
            empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            super().__init__(torch.nn.ParameterList([empty]))
        self.load = load
        self.settings = self.usable_settings = settings
        self.mixed_precision = mixed_precision
        self.language = language
        self.warning: Optional[str] = None

    @property
    def has_weights(self) -> bool:
        """Whether there is a biLM, or something to load."""
        return self.load is not None or isinstance(self._model, BiLM)

    def load_bilm(self) -> BiLM:
        """RETURNS (BiLM): Always the same, loaded if it was not needed yet.
        RAISES (ValueError): If there are no weights."""
        with no_fork(), _LOADING, _ordinary_tensors():
            bilm = self.bilm_for_session()
            bilm.dequantize()
            return bilm

    def bilm_for_session(self) -> BiLM:
        """RETURNS (BiLM): The same one. Its weights may be in 8 bits, which are all that a session
        of the present settings needs.
        RAISES (ValueError): If there are no weights."""
        if isinstance(self._model, BiLM):
            return self._model
        with no_fork(), _LOADING:
            if not isinstance(self._model, BiLM):
                self.set_bilm(self._read())
            return self._model

    def _read(self) -> BiLM:
        """RETURNS (BiLM): The biLM before it moves to the encoder's device: always the same,
        because its weights may be random.
        RAISES (ValueError): If there are no weights."""
        if self.load is None:
            raise ValueError(
                "the elmo component has no weights yet: name some in its config "
                '(nlp.add_pipe("elmo", config={"model": {"weights": "path/to/folder"}})), '
                "call load_weights() on the component, or load a pipeline that holds them"
            )
        if not isinstance(self.load, BiLM):
            with _ordinary_tensors():
                # Random weights are of the default dtype, which may be float64.
                self.load = self.load().float()
            if self.warning is not None:
                warnings.warn(self.warning, stacklevel=2)
        return self.load

    def set_bilm(self, bilm: BiLM) -> None:
        """Take another biLM, which moves to the encoder's device. A precision that the device does
        not have becomes float32, with a warning: a pipeline that was saved on a GPU must load on a
        CPU, and the other way round."""
        device = self.device
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
        self._model, self.load = bilm, None

    def finish_update(self, optimizer: Optimizer) -> None:
        super().finish_update(optimizer)
        if isinstance(self._model, BiLM):
            self._model.invalidate()  # PyTorch does not count the changes that thinc makes.

    def to_device(self, device_type: str, device_id: int) -> None:
        with _ordinary_tensors():
            if isinstance(self._model, BiLM):
                self._model.dequantize()
            super().to_device(device_type, device_id)
        if isinstance(self._model, BiLM):
            self.set_bilm(self._model)

    def to_bytes(self) -> bytes:
        state = b""
        if self.has_weights:
            # The saved pipeline must not need the original files, even if this one never ran.
            with no_fork(), _LOADING:
                bilm = self._model if isinstance(self._model, BiLM) else self._read()
            state = native.to_bytes(bilm)
        return srsly.msgpack_dumps({"config": self.cfg, "state": state})

    def from_bytes(self, bytes_data: bytes) -> ElmoShim:
        message = srsly.msgpack_loads(bytes_data)
        self.cfg = message["config"]
        if message["state"]:  # Else it was saved before it had weights.
            with _ordinary_tensors():
                bilm = native.from_bytes(message["state"], keep_int8=True)
            self.set_bilm(bilm)
        return self
