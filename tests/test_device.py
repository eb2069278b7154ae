"""Which device a biLM is on, and that what it computes with stays there: without a GPU.

PyTorch's `meta` device stands for the GPU. Its tensors have shapes and no data, and PyTorch refuses
to compute with tensors of two devices, as it does on a GPU. On a real GPU, see `test_gpu`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import spacy
import torch
from spacy.language import Language
from thinc.api import NumpyOps, get_current_ops, set_current_ops

from spacy_elmo.bilm import BiLM
from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_session, set_precision

from .conftest import add_tagger, elmo_pipeline, max_difference, random_bilm, tagged

TEXTS = ["the bank of the river", "", "money \n in the bank", "flows"]


class FakeGPU(NumpyOps):
    """Ops for which thinc puts PyTorch's modules on the meta device."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Like `spacy.require_gpu()`: for this thread only."""

    def default_device() -> torch.device:
        return torch.device("meta" if isinstance(get_current_ops(), FakeGPU) else "cpu")

    monkeypatch.setattr("thinc.shims.pytorch.get_torch_default_device", default_device)
    before = get_current_ops()
    set_current_ops(FakeGPU())
    yield
    set_current_ops(before)


@pytest.fixture
def zeros_from_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without data is copied to the CPU as zeros, so that arrays come out."""
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype, device="cpu")
    )


def bilm_of(nlp: Language) -> BiLM:
    return nlp.get_pipe("elmo").bilm


def precision_of(nlp: Language) -> str:
    return get_session(nlp.get_pipe("elmo").model).settings.precision


def named(folder: Path) -> Language:
    return elmo_pipeline(folder)


def initialized(folder: Path) -> Language:
    nlp = elmo_pipeline(folder)
    nlp.initialize()
    return nlp


def weights_loaded(folder: Path) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": None}}).load_weights(folder)
    return nlp


def saved(folder: Path) -> Language:
    set_current_ops(NumpyOps())
    data = elmo_pipeline(folder).to_bytes()
    set_current_ops(FakeGPU())
    return elmo_pipeline(folder).from_bytes(data)


every_way = pytest.mark.parametrize("make", [named, initialized, weights_loaded, saved])


@every_way
def test_the_bilm_is_on_the_device_of_the_ops(gpu: None, weights_folder: Path, make: Callable):
    assert bilm_of(make(weights_folder)).device.type == "meta"


def test_weights_that_come_in_another_thread(gpu: None, weights_folder: Path):
    """thinc's ops are those of a thread: another one has NumPy's, until somebody says otherwise."""
    nlp = elmo_pipeline(weights_folder)
    with ThreadPoolExecutor() as threads:
        assert not isinstance(threads.submit(get_current_ops).result(), FakeGPU)
        threads.submit(bilm_of, nlp).result()
    assert bilm_of(nlp).device.type == "meta"


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_pipeline_runs_on_its_device(
    gpu: None, zeros_from_meta: None, weights_folder: Path, precision: str
):
    nlp = elmo_pipeline(weights_folder)
    set_precision(nlp.get_pipe("elmo").model, precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        docs = list(nlp.pipe(TEXTS))
    assert precision_of(nlp) == precision
    for doc in docs:
        assert doc._.elmo_layers.shape == (3, len(doc), 12)
        assert doc._.elmo_tokens.shape == (len(doc), 12)


@pytest.mark.parametrize("frozen", [True, False])
def test_training_runs_on_its_device(
    gpu: None, zeros_from_meta: None, weights_folder: Path, frozen: bool
):
    nlp = elmo_pipeline(weights_folder, frozen=frozen)
    add_tagger(nlp)
    examples = tagged(nlp)
    nlp.initialize(lambda: examples)
    for _ in range(2):
        losses = nlp.update(examples, sgd=False, annotates=["elmo"])
    assert losses["tagger"] > 0
    assert bilm_of(nlp).device.type == "meta"


# Precisions of another kind of device


@pytest.mark.parametrize(
    "precision, reason", [("tf32", "not for the device 'cpu'"), ("bfloat16", "brings nothing")]
)
def test_a_pipeline_saved_on_a_gpu_runs_on_a_cpu(
    weights_folder: Path, precision: str, reason: str, without_bfloat16: None
):
    nlp = elmo_pipeline(weights_folder, model={"precision": precision})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = nlp.to_bytes()
    with pytest.warns(UserWarning, match=f"'{precision}'.*{reason}.*runs in float32"):
        nlp = spacy.blank("en").from_config(nlp.config).from_bytes(data)
    [expected] = current_session(random_bilm()).embed([["the", "bank"]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert max_difference(nlp("the bank")._.elmo_layers, expected) < 1e-5
    assert nlp.config["components"]["elmo"]["model"]["precision"] == precision


# What the caller has set for PyTorch


def weights_are_ordinary(bilm: BiLM) -> bool:
    return all(
        not p.is_inference() and p.dtype == torch.float32 and p.device.type == "cpu"
        for p in bilm.parameters()
    )


@pytest.mark.parametrize("make", [named, initialized, weights_loaded])
@pytest.mark.parametrize("setting", ["inference_mode", "default_dtype", "default_device"])
def test_weights_are_ordinary_whatever_the_caller_has_set(
    weights_folder: Path, make: Callable, setting: str
):
    try:
        if setting == "default_dtype":
            torch.set_default_dtype(torch.float64)
        if setting == "default_device":
            torch.set_default_device("meta")
        with torch.inference_mode(setting == "inference_mode"):
            nlp = make(weights_folder)
            layers = nlp("the bank")._.elmo_layers
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert weights_are_ordinary(bilm_of(nlp))
    [expected] = current_session(bilm_of(nlp)).embed([["the", "bank"]])
    assert max_difference(layers, expected) < 1e-5
