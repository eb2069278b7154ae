"""Which kernels run the LSTMs."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from spacy_elmo import kernels

from ..conftest import needs_extension, needs_triton, random_bilm

CPU, META = torch.device("cpu"), torch.device("meta")
# One that no machine has.
NO_GPU = torch.device("cuda", 99)


def load(kernel, device, dtype=torch.float32, weight_dtype=torch.float32, **settings):
    return kernels.load_kernels(kernel, device, dtype, weight_dtype, **settings)


@pytest.fixture(autouse=True)
def nothing_compared_yet():
    kernels.load_kernels.cache_clear()
    yield
    kernels.load_kernels.cache_clear()


@needs_extension
@pytest.mark.parametrize("kernel, expected", [("auto", True), ("torch", False), ("triton", True)])
def test_a_cpu_has_one_kind(kernel, expected):
    assert (load(kernel, CPU) is not None) == expected
    assert load(kernel, CPU, batched=True) is None
    assert load(kernel, CPU, weight_dtype=torch.float64) is None


@needs_triton
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kernel, expected", [("auto", False), ("torch", False), ("triton", True)])
def test_on_a_gpu_triton_has_to_be_asked_for(kernel, expected):
    assert (load(kernel, META) is not None) == expected
    if not expected:
        assert load(kernel, NO_GPU) is None


def test_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match="Triton is not installed: pip install triton, or set"):
        load("triton", NO_GPU)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("device, kernel", [(CPU, "auto"), (META, "triton")])
def test_files_of_kernels_may_be_deleted(monkeypatch, device, kernel):
    """With their line in the table. PyTorch runs the biLM, silently."""
    monkeypatch.setattr(kernels, "MODULES", {})
    assert load(kernel, device) is None


@needs_triton
def test_kernels_that_do_not_run_are_not_used():
    """With one warning, however often they are asked for."""
    with pytest.warns(UserWarning, match=r"do not work on cuda:99 \(.+kernel = \"torch\""):
        assert load("triton", NO_GPU) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load("triton", NO_GPU) is None


@needs_extension
@pytest.mark.filterwarnings("error")
def test_without_the_extension(monkeypatch):
    """PyTorch runs it, silently."""
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert load("auto", CPU) is None


@needs_extension
@pytest.mark.parametrize("name", ["forward", "backward", "softmax_gradient"])
def test_an_extension_that_computes_something_else(monkeypatch, name):
    """As after a compiler's `-ffast-math`."""
    from spacy_elmo.kernels import compiled

    function = getattr(compiled, name)

    def wrong(first, *args, **kwargs):
        function(first.mul_(1.1), *args, **kwargs)

    monkeypatch.setattr(compiled, name, wrong)
    bilm, sizes = random_bilm(), [2, 1]
    with pytest.warns(UserWarning, match="compiled do not work on cpu .a result"):
        ours = bilm.lstm(torch.ones(2, 3, 6), sizes)
    bilm.lstm.kernel = "torch"
    assert all(map(torch.equal, ours, bilm.lstm(torch.ones(2, 3, 6), sizes)))


@needs_extension
def test_the_comparison_sees_what_is_not_a_number(monkeypatch):
    from spacy_elmo.kernels import compiled

    backward = compiled.backward

    def wrong(*args):
        backward(*args)
        args[-3][:, -1] = torch.nan

    monkeypatch.setattr(compiled, "backward", wrong)
    assert compiled.max_error(CPU, torch.float32) == float("inf")
