"""Which kernels run the LSTMs."""

from __future__ import annotations

import importlib.util
import sys
import warnings

import pytest
import torch

from spacy_elmo import kernels
from spacy_elmo.bilm.config import LSTMConfig
from spacy_elmo.bilm.model import TRITON_LSTM

CPU, META = torch.device("cpu"), torch.device("meta")
# Interpreted on a CPU.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# One that no machine has.
GPU = torch.device("cuda", 99)
CONFIG = LSTMConfig(64, 16, cell_clip=0.5, proj_clip=0.1)
DTYPES = [torch.float32, torch.bfloat16]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def load(kernel, device, dtype=torch.float32):
    return kernels.load_kernels(TRITON_LSTM, kernel, device, dtype, CONFIG)


@pytest.fixture(autouse=True)
def nothing_compared_yet():
    kernels.load_kernels.cache_clear()


@pytest.mark.parametrize("kernel", ["auto", "torch", "triton"])
def test_a_cpu_has_one_kind(kernel):
    assert load(kernel, CPU) is None


@needs_triton
@pytest.mark.parametrize("kernel, expected", [("auto", False), ("torch", False), ("triton", True)])
def test_other_devices_do_as_asked(kernel, expected):
    assert (load(kernel, META) is not None) == expected


@pytest.mark.filterwarnings("error")
def test_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert load("auto", GPU) is None


@needs_triton
def test_kernels_that_do_not_run_are_not_used():
    """With one warning, however often they are asked for."""
    with pytest.warns(UserWarning, match=r"do not work on cuda:99 \(.+kernel = \"torch\""):
        assert load("auto", GPU) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load("auto", GPU) is None


@needs_triton
@pytest.mark.parametrize("error, used", [(0.001, True), (0.2, False), (float("inf"), False)])
def test_kernels_that_compute_something_else_are_not_used(monkeypatch, error, used):
    from spacy_elmo.kernels import triton_lstm

    monkeypatch.setattr(triton_lstm, "max_error", lambda *args: error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (load("auto", GPU, torch.bfloat16) is triton_lstm) == used
    assert len(caught) == (not used)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", [CONFIG, LSTMConfig(16, 16, cell_clip=None)], ids=str)
def test_the_kernels_agree(config, dtype):
    from spacy_elmo.kernels import triton_lstm

    with torch.inference_mode():  # Where a session may be.
        assert (
            0
            < triton_lstm.max_error(DEVICE, dtype, config)
            < (1e-5 if dtype == DTYPES[0] else 0.05)
        )


@needs_triton
def test_the_comparison_sees_a_wrong_gradient(monkeypatch):
    from spacy_elmo.kernels import triton_lstm

    backward = triton_lstm.cell_backward

    def wrong(*args, d_gates):
        backward(*args, d_gates=d_gates)
        d_gates[1, :, -1] = torch.nan

    monkeypatch.setattr(triton_lstm, "cell_backward", wrong)
    assert triton_lstm.max_error(DEVICE, torch.float32, CONFIG) == float("inf")
