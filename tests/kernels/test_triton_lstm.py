"""The Triton kernels against `lstm_function`, interpreted on a CPU or run on a GPU, and what the
compiler makes of them for an H100 or H200."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy
import pytest
import torch

from spacy_elmo.bilm.config import LSTMConfig
from spacy_elmo.bilm.lstm_function import LSTMFunction
from spacy_elmo.bilm.lstm_layer import FORGET_BIAS, LayerProducts
from spacy_elmo.bilm.lstm_layer import run_layer as run_plain_layer
from spacy_elmo.inference import Session, Settings

from ..conftest import TINY, TINY_WORDS, random_bilm

pytest.importorskip("triton", reason="Triton is not installed")

from spacy_elmo.bilm import triton_cell, triton_lstm
from spacy_elmo.inference import packed

PROGRAMS = Path(__file__).parents[1] / "programs"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# In float32, in relation to the norm. A GPU's exponentials are less exact.
BOUND = 1e-6 if DEVICE == "cpu" else 1e-5
WIDTH = 6
CONFIGS = {
    "projection": LSTMConfig(8, 4, cell_clip=None, proj_clip=None),
    "no projection": LSTMConfig(8, 8, cell_clip=None, proj_clip=None),
    "clipping": LSTMConfig(8, 4, cell_clip=0.6, proj_clip=0.3),
    "cells clipped": LSTMConfig(8, 8, cell_clip=0.4, proj_clip=None),
    "odd": LSTMConfig(5, 3, cell_clip=0.5, proj_clip=0.3),
}
SIZES = {"falling": [3, 3, 2, 1], "one step": [2], "carried": [3, 3, 3]}
# The interpreter is slow.
FAST = {("clipping", "falling"), ("clipping", "carried"), ("no projection", "falling")}
every_case = pytest.mark.parametrize(
    "config, name",
    [
        pytest.param(
            config, name, id=f"{key}-{name}", marks=() if (key, name) in FAST else pytest.mark.slow
        )
        for key, config in CONFIGS.items()
        for name in SIZES
    ],
)


@pytest.fixture(autouse=True)
def nearest_bfloat16(monkeypatch):
    """GPUs round to the nearest bfloat16, Triton's interpreter towards zero."""
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def nearest(values, source, target, mode):
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(values, source, target, mode)
        rounded = torch.from_numpy(numpy.ascontiguousarray(values)).view(torch.float32).bfloat16()
        return rounded.view(torch.int16).numpy().view(numpy.uint16).reshape(values.shape)

    monkeypatch.setattr(interpreter, "_convert_float", nearest)


def random_tensors(config, sizes, *, carried=False, seed=0):
    """RETURNS (tuple): x, the weights, and a state."""
    generator = torch.Generator().manual_seed(seed)
    p, dim = config.projection_dim, config.dim
    scale = min(0.5, 2 * (WIDTH + p) ** -0.5)
    shapes = [(sum(sizes), WIDTH), (4 * dim, WIDTH + p), (4 * dim,), (p, dim)]
    shapes += [(sizes[0], p), (sizes[0], dim)]
    tensors = [torch.randn(2, *shape, generator=generator) * scale for shape in shapes]
    tensors[3] *= 2 * dim**-0.5 / scale
    x, *weights = (tensor.to(DEVICE) for tensor in tensors[:4])
    if not config.has_projection:
        weights[2] = None
    state = (tensors[4].to(DEVICE) / 4, tensors[5].to(DEVICE) / 4) if carried else None
    return x, weights, state


def run_plain(x, weights, sizes, config, state):
    return LSTMFunction.apply(x, *weights, sizes, config, state, "torch")


def run_triton(x, weights, sizes, config, state):
    return triton_lstm.train_layer(x, sizes, by_direction(weights), config, state)


def by_direction(weights):
    return [[None if w is None else w[number] for w in weights] for number in (0, 1)]


def values_and_gradients(run, tensors, sizes, config, dtype):
    x, weights, state = tensors
    leaves = [t if t is None else t.clone().requires_grad_() for t in (x, *weights)]
    state = state and tuple(part.clone() for part in state)
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        y = run(leaves[0], leaves[1:], sizes, config, state)
    assert y.dtype == torch.float32
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(dy.to(DEVICE))
    results = {"y": y.detach()}
    names = ("d_x", "d_weight", "d_bias", "d_projection")
    results |= {n: leaf.grad for n, leaf in zip(names, leaves) if leaf is not None}
    return results | dict(zip(("h", "c"), state or ()))


def cast(weights, dtype):
    return triton_lstm.Weights.cast(by_direction(weights), dtype)


def assert_close(results, expected, bound):
    """In relation to the norm."""
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        assert results[name].shape == value.shape and results[name].dtype == value.dtype
        error = float((results[name] - value).norm() / value.norm().clamp_min(1e-30))
        assert error < bound, f"{name}: {error:.1e}"


@every_case
def test_equals_the_plain_path(config, name):
    tensors = random_tensors(config, SIZES[name], carried=name == "carried")
    plain, ours = (
        values_and_gradients(run, tensors, SIZES[name], config, torch.float32)
        for run in (run_plain, run_triton)
    )
    assert_close(ours, plain, BOUND)
    if config.proj_clip is not None and config.has_projection and name != "one step":
        assert (plain["y"].abs() == config.proj_clip).any()  # Clipping fires.


def distance_to_clips(tensors, sizes, config):
    """RETURNS (float): How near any cell or output comes to its clip, in relation to it."""
    x, (weight, bias, projection), state = tensors
    h, c = state or (x.new_zeros(2, sizes[0], w) for w in (config.projection_dim, config.dim))
    start, nearest = 0, [1.0]

    def clipped(values, clip):
        if clip is None:
            return values
        nearest.append(float((values.abs() / clip - 1).abs().min()))
        return values.clamp(-clip, clip)

    for n in sizes:
        inputs = torch.cat((x[:, start : start + n], h[:, :n]), dim=2)
        gates = inputs @ weight.transpose(1, 2) + bias[:, None]
        i, j, f, o = gates.chunk(4, dim=2)
        c = torch.sigmoid(f + FORGET_BIAS) * c[:, :n] + torch.sigmoid(i) * torch.tanh(j)
        c = clipped(c, config.cell_clip)
        h = torch.sigmoid(o) * torch.tanh(c)
        if projection is not None:
            h = clipped(h @ projection.transpose(1, 2), config.proj_clip)
        start += n
    return min(nearest)


@every_case
def test_equals_the_plain_path_in_bfloat16(config, name):
    """Rounding decides on which side of a clip a value is, and there the gradient jumps: the values
    are those of the first seed that keeps away from the clips."""
    sizes, carried = SIZES[name], name == "carried"
    draws = (random_tensors(config, sizes, carried=carried, seed=seed) for seed in count())
    tensors = next(draw for draw in draws if distance_to_clips(draw, sizes, config) > 0.015)
    plain, ours = (
        values_and_gradients(run, tensors, sizes, config, torch.bfloat16)
        for run in (run_plain, run_triton)
    )
    assert_close(ours, plain, 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_several_blocks(dtype):
    config = LSTMConfig(triton_cell.BLOCK + 76, 8, cell_clip=None, proj_clip=None)
    tensors = random_tensors(config, [2, 1])
    plain, ours = (
        values_and_gradients(run, tensors, [2, 1], config, dtype) for run in (run_plain, run_triton)
    )
    assert_close(ours, plain, 2 * BOUND if dtype == torch.float32 else 1e-2)


def test_the_gradient_is_there_twice():
    config = CONFIGS["clipping"]
    x, weights, _ = random_tensors(config, [3, 2])
    x.requires_grad_()
    y = run_triton(x, weights, [3, 2], config, None)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_nothing_needs_a_gradient_of_the_input():
    x, weights, _ = random_tensors(CONFIGS["projection"], [3, 2])
    weights[0].requires_grad_()
    run_triton(x, weights, [3, 2], CONFIGS["projection"], None).sum().backward()
    assert x.grad is None and weights[0].grad is not None


def test_clipping_does_not_hide_nan():
    config = CONFIGS["clipping"]
    x, weights, _ = random_tensors(config, [2, 2])
    x[0, 0] = torch.nan
    y = run_triton(x, weights, [2, 2], config, None)
    assert y[0, [0, 2]].isnan().all() and not y[0, [1, 3]].isnan().any() and not y[1].isnan().any()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("stateful, max_rows", [(False, 5), (True, 1), (True, 100)])
def test_inference(config, stateful, max_rows):
    sizes = SIZES["falling"]
    x, (gate_weight, gate_bias, projection), state = random_tensors(config, sizes, carried=stateful)
    weights = cast((gate_weight, gate_bias, projection), torch.float32)
    y = x.new_empty(*x.shape[:2], config.projection_dim)
    our_state = state and tuple(part.clone() for part in state)
    triton_lstm.run_layer(x, sizes, weights, max_rows, config, y, our_state)

    def linear(weight, bias=0):
        return lambda x: x @ weight.transpose(1, 2) + bias

    products = LayerProducts(
        linear(weights.input, weights.bias[:, None]),
        linear(weights.recurrent),
        None if projection is None else linear(projection),
        max_rows,
    )
    expected = torch.empty_like(y)
    run_plain_layer(x, sizes, products, config, expected, state)
    assert_close({"y": y}, {"y": expected}, BOUND)
    if stateful:
        assert_close(dict(zip("hc", our_state)), dict(zip("hc", state)), BOUND)


def test_inference_in_bfloat16():
    config, sizes = LSTMConfig(16, 8), SIZES["falling"]
    x, weights, _ = random_tensors(config, sizes)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        y = found[dtype] = x.new_empty(*x.shape[:2], config.projection_dim)
        triton_lstm.run_layer(x, sizes, cast(weights, dtype), 100, config, y)
    assert 0 < (found[torch.float32] - y).norm() < 0.01 * y.norm()


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_a_session(config, monkeypatch, stateful):
    """Of several layers with skip connections, in several batches. (Networks in training are in
    `test_device` and `test_meta`.)"""
    sentences = [["the", "bank", "."], ["river"], ["the", "money", "bank", "the", "."]]
    bilm, settings = random_bilm(config, scale=2.0).to(DEVICE), Settings("float32", 8, 1, stateful)
    found = []
    for kernels in (triton_lstm, None):
        monkeypatch.setattr(
            packed, "load_kernels", lambda *args, kernels=kernels, **others: kernels
        )
        session = Session(bilm, settings)
        found.append(session.embed(sentences) + session.embed(sentences[::-1]))
    for ours, plain in zip(*found):
        assert (ours - plain).norm() <= BOUND * plain.norm()


@pytest.mark.slow
def test_compiled_for_hopper(tmp_path):
    """No GPU is needed for that. All accesses are of 16 bytes, none to local memory, and registers
    leave room for other programs on the same processor."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, PROGRAMS / "compile_kernels.py"],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
    ).stdout
    kernels = json.loads(output)
    assert len(kernels) == 6
    for name, kernel in kernels.items():
        assert kernel["usage"]["REG"] <= 128, name
        assert kernel["usage"]["STACK"] == kernel["usage"]["LOCAL"] == 0
        # But for one number for all threads.
        scalars = {"LDG.E", "LDG.E.64", "LDG.E.CONSTANT", "LDG.E.64.CONSTANT", "STG.E"}
        accesses = [access for access in kernel["accesses"] if access not in scalars]
        assert len(accesses) >= 3 and len(kernel["accesses"]) - len(accesses) <= 3
        assert set(accesses) <= {"LDG.E.128", "STG.E.128"}, name
