"""What runs on a GPU, on PyTorch's meta device: shapes and devices without values. Code that waits
for a value, or mixes in tensors of another device, gets an error there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.inference import Settings, current_session

from ..conftest import TINY, TINY_WORDS, WORDS

ORIGINAL = BiLMConfig(
    LSTMConfig(dim=4096, projection_dim=512, n_layers=2),
    CharCNNConfig(
        filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        n_highway=2,
        embedding_dim=16,
    ),
)
SENTENCES = [["The", "bank", "of", "the", "river"], [], ["</S>"], ["money"] * 40]
PRECISIONS = ("float32", "tf32", "bfloat16")


def on_device(config: BiLMConfig) -> BiLM:
    with torch.device("meta"):
        return BiLM(config, WORDS if config.char_cnn is None else None)


@pytest.mark.parametrize(
    "config, precision, stateful",
    # All pairs.
    [
        (ORIGINAL, "float32", False),
        (ORIGINAL, "tf32", True),
        (ORIGINAL, "bfloat16", False),
        (TINY_WORDS, "float32", True),
        (TINY_WORDS, "tf32", False),
        (TINY_WORDS, "bfloat16", True),
    ],
)
def test_inference_stays_on_the_device(config: BiLMConfig, precision: str, stateful: bool):
    bilm = on_device(config)
    for max_tokens in (2048, 7):
        session = current_session(bilm, Settings(precision, max_tokens, stateful=stateful))
        for tokens, layers in zip(SENTENCES, session.embed(SENTENCES), strict=True):
            assert layers.shape == (3, len(tokens), config.output_dim)
            assert (layers.device.type, layers.dtype) == ("meta", torch.float32)


@pytest.mark.parametrize("config", [ORIGINAL, TINY_WORDS], ids=["original", "words"])
def test_training_stays_on_the_device(config: BiLMConfig):
    bilm = on_device(config)
    layers = bilm(["the", "bank"], numpy.array([0, 1, 0]), [2, 0, 1])
    layers.sum().backward()
    assert layers.device.type == "meta"
    assert all(weight.grad.device.type == "meta" for weight in bilm.parameters())


# ----------------------------------------------------------------------------------- TF32 products


def state() -> tuple:
    """What PyTorch's old and new interfaces say. It raises if they contradict each other."""
    matmul = torch.backends.cuda.matmul
    return matmul.allow_tf32, torch.get_float32_matmul_precision(), matmul.fp32_precision


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"


aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.matmul, aten.linear)


class InTheMiddle(TorchDispatchMode):
    """Calls a function once, at the first matrix product."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket in PRODUCTS:
            function, self.function = self.function, lambda: None
            function()
        return operator(*args, **(kwargs or {}))


def run(bilm: BiLM, precision: str, inside) -> None:
    """Call a function in the middle of inference."""
    with InTheMiddle(inside):
        current_session(bilm, Settings(precision)).embed([["the"]])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tf32_is_on_inside_only(precision: str):
    before, states = state(), []
    run(on_device(TINY), precision, lambda: states.append(state()))
    assert [allowed for allowed, *_ in states] == [precision == "tf32"]
    assert state() == before


@pytest.mark.parametrize("user", ["tf32", "ieee"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_the_users_own_precision_stays_in_the_new_interface(user: str, everywhere: bool):
    matmul = torch.backends.cuda.matmul
    (torch.backends if everywhere else matmul).fp32_precision = user
    precisions = []
    run(on_device(TINY), "tf32", lambda: precisions.append(matmul.fp32_precision))
    assert precisions == ["tf32"] and matmul.fp32_precision == user
    if everywhere:
        torch.backends.fp32_precision = "tf32" if user == "ieee" else "ieee"
        assert matmul.fp32_precision == torch.backends.fp32_precision


def test_tf32_in_two_threads():
    """The first one that enters is the first one that leaves. Calls of one biLM take turns."""
    before, states = state(), []
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    bilms = on_device(TINY), on_device(TINY)

    def second_enters():
        first_in.set()
        assert second_in.wait(60)

    def first_leaves():
        second_in.set()
        assert first_out.wait(60)
        states.append(state())

    def first():
        run(bilms[0], "tf32", second_enters)
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(60)
    run(bilms[1], "tf32", first_leaves)
    thread.join()
    assert states[0][0] and state() == before
