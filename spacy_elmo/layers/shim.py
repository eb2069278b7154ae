"""The biLM as thinc sees it: loaded on first use, moved to a device, trained, saved."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Optional, Union

import srsly
import torch
from thinc.api import Optimizer, PyTorchShim

from .. import inference
from ..bilm import BiLM
from ..bilm.forking import no_fork
from ..bilm.formats import native
from ..inference.settings import check_precision
from .not_serialized import NotSerialized

# Threads that use an encoder for the first time load its weights one after the other.
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Settings(inference.Settings, NotSerialized):
    """What a config says about running a biLM; not part of its weights.

    mixed_precision (bool): Fine-tune with bfloat16 products; weights, gradients and results stay
        float32.
    """

    mixed_precision: bool = False


@contextmanager
def _ordinary_tensors() -> Iterator[None]:
    """What is made here can be trained, and has data, whatever mode and default device the caller
    has set: weights that are read in `torch.inference_mode` could never be changed."""
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class LazyBiLM(torch.nn.Module):
    """Placeholder that loads the biLM on first use. When a saved pipeline is loaded, it is replaced
    before it loads anything.

    load (Optional[Callable]): Makes the biLM. None: the encoder has no weights yet.
    language (Optional[str]): The language of the text that they were trained on, if known.

    The attribute `warning` is shown when the weights are loaded.
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

    def get(self) -> BiLM:
        """RETURNS (BiLM): Always the same. RAISES (ValueError): If there is nothing to load."""
        if self.load is None:
            raise ValueError(
                "the elmo component has no weights yet: name some in its config "
                '(nlp.add_pipe("elmo", config={"model": {"weights": "path/to/folder"}})), '
                "call load_weights() on the component, or load a pipeline that holds them"
            )
        with no_fork(), _LOADING:
            if not self._loaded:
                with _ordinary_tensors():
                    # Random weights are of the default dtype, which may be float64.
                    self._loaded.append(self.load().float())
                if self.warning is not None:
                    warnings.warn(self.warning, stacklevel=2)
        return self._loaded[0]


class ElmoShim(PyTorchShim):
    """Holds the biLM, or what loads it, for thinc: moves, trains and saves it.

    module (Union[BiLM, LazyBiLM]): The biLM.
    settings (Settings): How to run it.

    The attribute `usable_settings` has a precision that the device has: that of the settings, or
    float32.
    """

    def __init__(self, module: Union[BiLM, LazyBiLM], settings: Settings) -> None:
        with _ordinary_tensors():
            super().__init__(module)
        self.settings = self.usable_settings = settings
        if isinstance(module, BiLM):
            self.set_bilm(module)

    def set_bilm(self, bilm: BiLM) -> None:
        """Take another biLM, which moves to the encoder's device. A precision that the device does
        not have becomes float32, with a warning: a pipeline that was saved on a GPU must load on a
        CPU, and the other way round."""
        with _ordinary_tensors():
            bilm = bilm.to(self.device)
        self.usable_settings = self.settings
        try:
            check_precision(self.settings.precision, bilm.device)
        except ValueError as error:
            warnings.warn(f"{error}; the biLM runs in float32", stacklevel=2)
            self.usable_settings = replace(self.settings, precision="float32")
        bilm.lstm.kernel = self.settings.kernel
        self._model = bilm

    def finish_update(self, optimizer: Optimizer) -> None:
        super().finish_update(optimizer)
        if isinstance(self._model, BiLM):
            self._model.invalidate()  # thinc writes to the weights behind PyTorch's back.

    def to_device(self, device_type: str, device_id: int) -> None:
        with _ordinary_tensors():
            super().to_device(device_type, device_id)
        if isinstance(self._model, BiLM):
            self.set_bilm(self._model)

    def to_bytes(self) -> bytes:
        module = self._model
        if isinstance(module, LazyBiLM) and module.load is not None:
            # The saved pipeline must not need the original files, even if this one never ran.
            module = module.get()
        state = native.to_bytes(module) if isinstance(module, BiLM) else b""
        return srsly.msgpack_dumps({"config": self.cfg, "state": state})

    def from_bytes(self, bytes_data: bytes) -> ElmoShim:
        message = srsly.msgpack_loads(bytes_data)
        self.cfg = message["config"]
        if message["state"]:  # Else it was saved before it had weights.
            with _ordinary_tensors():
                bilm = native.from_bytes(message["state"])
            self.set_bilm(bilm)
        return self
