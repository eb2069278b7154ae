"""The Triton kernel of the loss against PyTorch's own: interpreted on a CPU, or run on a GPU."""

from __future__ import annotations

import numpy
import pytest
import torch

from spacy_elmo.pretraining.losses import Softmax, softmax

pytest.importorskip("triton", reason="Triton is not installed")

from spacy_elmo.kernels import triton_softmax

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# In float32, in relation to the norm. A GPU's exponentials are less exact.
BOUND = 1e-6 if DEVICE.type == "cpu" else 1e-5
WIDTH, N_ROWS = 6, 7


@pytest.fixture
def several_blocks(monkeypatch):
    monkeypatch.setattr(triton_softmax, "BLOCK", 16)


def loss_and_gradients(layer, dtype, monkeypatch, kernels):
    """RETURNS (list): The loss, and its gradients."""
    monkeypatch.setattr(softmax, "load_kernels", lambda *args, **others: kernels)
    monkeypatch.setattr(softmax, "_LOGIT_BYTES", {DEVICE.type: 4 * 4 * layer.n_words})
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(N_ROWS, WIDTH, generator=generator).to(DEVICE).requires_grad_()
    targets = torch.randint(0, layer.n_words, (N_ROWS,), generator=generator)
    samples = layer.draw(numpy.random.default_rng(0))
    layer.zero_grad()
    with torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32):
        loss = layer(h, targets, samples)
    (3 * loss).backward()
    if samples is not None:
        assert 0 < numpy.isin(targets.numpy(), samples.words).sum() < N_ROWS
    return [loss.detach(), h.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n_samples", [None, 40])
def test_equals_the_plain_path(several_blocks, monkeypatch, n_samples, dtype):
    """With a chunk of rows that is not full, and a block of words that is not."""
    torch.manual_seed(0)
    layer = Softmax(90, WIDTH, n_samples).to(DEVICE)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    plain, ours = (
        loss_and_gradients(layer, dtype, monkeypatch, kernels) for kernels in (None, triton_softmax)
    )
    for value, expected in zip(ours, plain):
        error = (value - expected).norm() / expected.norm()
        assert error < (BOUND if dtype == torch.float32 else 1e-2)


def test_the_only_sample_is_the_target(monkeypatch):
    layer = Softmax(2, WIDTH, 1).to(DEVICE)
    values = loss_and_gradients(layer, torch.float32, monkeypatch, triton_softmax)
    assert all(value.isfinite().all() for value in values)


def test_nan_stays(several_blocks):
    logits, bias = torch.randn(2, 20, device=DEVICE), torch.zeros(20, device=DEVICE)
    logits[0, 3] = torch.nan
    loss = torch.empty(2, device=DEVICE)
    targets = torch.tensor([0, 1], device=DEVICE)
    d_bias = torch.zeros_like(bias)
    triton_softmax.softmax_gradient(logits, bias, targets, None, loss=loss, d_bias=d_bias)
    assert loss[0].isnan() and loss[1].isfinite() and logits[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_agrees(dtype):
    error = triton_softmax.max_error(DEVICE, dtype)
    assert 0 < error < (BOUND if dtype == torch.float32 else 1e-2)
