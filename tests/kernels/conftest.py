"""The modules of kernels, each with what it needs to run in a test."""

from __future__ import annotations

from functools import partial

import numpy
import pytest
import torch

from spacy_elmo import kernels
from spacy_elmo.bilm import lstm_layer, model
from spacy_elmo.inference import packed

from ..conftest import needs_extension, needs_triton

GPU = torch.cuda.is_available()


@pytest.fixture
def triton_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels that run where PyTorch's operators would. GPUs round to the nearest
    bfloat16, Triton's interpreter towards zero."""
    if GPU:
        return
    from triton.runtime import interpreter

    from spacy_elmo.kernels import triton_cell

    convert = interpreter._convert_float

    def nearest(values, source, target, mode):
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(values, source, target, mode)
        rounded = torch.from_numpy(numpy.ascontiguousarray(values)).view(torch.float32).bfloat16()
        return rounded.view(torch.int16).numpy().view(numpy.uint16).reshape(values.shape)

    def load(kernel, device, dtype, weight_dtype, batched=False):
        return None if kernel == "torch" else triton_cell

    monkeypatch.setattr(interpreter, "_convert_float", nearest)
    for module in (lstm_layer, packed):
        monkeypatch.setattr(module, "load_kernels", load)
    train_layer = lstm_layer.train_layer
    for module in (lstm_layer, model):
        monkeypatch.setattr(module, "train_layer", partial(train_layer, batched=True))


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=needs_extension, id="compiled"),
        pytest.param("cuda", marks=needs_triton, id="triton"),
    ]
)
def train(request: pytest.FixtureRequest):
    """`train_layer` on the device that the kernels are for, by default with them."""
    kernels.load_kernels.cache_clear()
    if request.param == "cpu":
        return partial(lstm_layer.train_layer, kernel="auto")
    request.getfixturevalue("triton_on_a_cpu")
    return partial(lstm_layer.train_layer, kernel="triton")
