"""A future PyTorch that has kept no more than it promises."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from spacy_elmo import torch_private
from spacy_elmo.inference import Session, Settings, current_session

from .conftest import SENTENCES, WIDER, max_difference, random_bilm

TEXTS = [words for words, _ in SENTENCES]
# The largest difference to the vectors of the present PyTorch.
TOLERANCE = {"float32": 1e-6, "float16": 1e-6, "bfloat16": 0.02, "int8": 1e-6}


class FuturePyTorch:
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=None), mkldnn=torch.backends.mkldnn)

    def __getattr__(self, name):
        if name == "ops" or (name[0] == "_" and name != "__version__"):
            raise AttributeError(name)
        return getattr(torch, name)


@pytest.fixture
def future(monkeypatch):
    """Call this to get there."""
    torch_private.warn_once.cache_clear()

    def begin():
        monkeypatch.setattr(torch_private, "torch", FuturePyTorch())
        monkeypatch.setattr(torch_private, "CHANGES", "gone")

    yield begin
    torch_private.warn_once.cache_clear()


@pytest.mark.parametrize("precision", TOLERANCE)
def test_vectors_of_every_precision(with_bfloat16, future, precision):
    """With one warning, however many products there are."""
    expected = Session(random_bilm(WIDER), Settings(precision)).embed(TEXTS)
    exact = Session(random_bilm(WIDER), Settings("float32")).embed(TEXTS)
    future()
    with pytest.warns(UserWarning, match="plain ones are used, which are slower") as caught:
        found = Session(random_bilm(WIDER), Settings(precision)).embed(TEXTS)
    assert len(caught) == 1
    for layers, usual, best in zip(found, expected, exact):
        assert max_difference(layers, usual) <= TOLERANCE[precision]
        assert max_difference(layers, best) <= max(1e-6, 1.5 * max_difference(usual, best))


@pytest.mark.filterwarnings("ignore:PyTorch")
def test_changed_weights_are_noticed(future):
    future()
    bilm = random_bilm()
    before = current_session(bilm).embed(TEXTS)
    assert all(map(torch.equal, before, current_session(bilm).embed(TEXTS)))
    with torch.no_grad():
        bilm.lstm.forward_layers[0].gate_weight.mul_(2)
    assert max_difference(before[0], current_session(bilm).embed(TEXTS)[0]) > 1e-3


def test_a_processor_without_the_operators(monkeypatch):
    """They are there, but raise errors."""

    class Refusing:
        def __getattr__(self, name):
            return self

        def __call__(self, *args):
            raise RuntimeError("Didn't find engine")

    monkeypatch.setattr(torch, "ops", Refusing())
    torch_private.warn_once.cache_clear()
    weight = torch.randn(4, 3)
    with pytest.warns(UserWarning, match="plain ones are used"):
        assert torch_private.onednn_product(weight, None, True) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_private.onednn_product(weight, None, True) is None
    torch_private.warn_once.cache_clear()


@pytest.mark.filterwarnings("error")
def test_tf32_without_a_setting(future):
    future()
    with torch_private.tf32_products():
        assert torch.backends.cuda.matmul.fp32_precision != "tf32"
