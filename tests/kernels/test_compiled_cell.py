"""The compiled cell against PyTorch, in LSTM layers forward and backward."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import numpy
import pytest
import torch

from spacy_elmo import kernels
from spacy_elmo.bilm.config import LSTMConfig
from spacy_elmo.bilm.lstm_function import LSTMFunction
from spacy_elmo.inference import Session, Settings

from ..conftest import max_difference, needs_bfloat16, random_bilm

needs_extension = pytest.mark.skipif(
    find_spec("spacy_elmo.kernels._kernels") is None,
    reason="the extension was not built: there was no C compiler at installation",
)

CONFIGS = {
    "projection": LSTMConfig(21, 6, cell_clip=None, proj_clip=None),
    "no projection": LSTMConfig(21, 21, cell_clip=None, proj_clip=None),
    "clipping": LSTMConfig(21, 6, cell_clip=0.4, proj_clip=0.3),
    "one cell": LSTMConfig(1, 1, cell_clip=3.0, proj_clip=None),
}
SIZES = {"falling": [19, 17, 4, 4, 1], "equal": [5, 5, 5]}


def layer(x, gate_weight, gate_bias, projection_weight, *settings):
    """Both directions side by side."""
    weights = gate_weight, gate_bias, projection_weight
    first, second = ([None if w is None else w[side] for w in weights] for side in (0, 1))
    return LSTMFunction.apply(x, *first, *settings, *second)


def run(config, sizes, kernel, *, dtype=None, carried=False):
    """RETURNS (list): Outputs, all gradients, and the states after the last step."""
    generator = torch.Generator().manual_seed(0)
    width, p = 7, config.projection_dim
    shapes = [(sum(sizes), width), (4 * config.dim, width + p), (4 * config.dim,), (p, config.dim)]
    leaves = [torch.randn(2, *shape, generator=generator) / 2 for shape in shapes]
    leaves = [tensor.requires_grad_() for tensor in leaves[: 4 if config.has_projection else 3]]
    state = None
    if carried:
        widths = p, config.dim
        state = [torch.randn(2, sizes[0], n, generator=generator) / 4 for n in widths]
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y = layer(*[*leaves, None][:4], sizes, config, state, kernel)
    dy = torch.randn(y.shape, generator=generator)
    # Twice: a backward pass must leave alone what the forward pass has saved.
    first = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    second = torch.autograd.grad(y, leaves, dy)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    return [y.detach(), *first, *(state or [])]


every_case = pytest.mark.parametrize(
    "sizes, carried",
    [(SIZES["falling"], False), (SIZES["equal"], True), ([1], False)],
    ids=["falling", "carried", "one row"],
)
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@needs_extension
@every_config
@every_case
def test_equals_pytorch_in_float32(config, sizes, carried):
    expected = run(config, sizes, "torch", carried=carried)
    for reference, result in zip(expected, run(config, sizes, "auto", carried=carried)):
        assert max_difference(result, reference) <= 1e-6 * max(1, reference.abs().max())


@needs_extension
@every_config
@every_case
def test_is_near_float32_in_bfloat16(config, sizes, carried):
    """As near as the plain path in bfloat16, whose gates are float32: rounding decides for some
    values on which side of a clip they are, and there the gradient jumps."""
    exact = run(config, sizes, "torch", carried=carried)
    plain = run(config, sizes, "torch", carried=carried, dtype=torch.bfloat16)
    compiled = run(config, sizes, "auto", carried=carried, dtype=torch.bfloat16)
    for reference, with_pytorch, result in zip(exact, plain, compiled):
        bound = 0.01 * reference.norm() + 2 * (with_pytorch - reference).norm()
        assert 0 < (result - reference).norm() <= bound


@needs_extension
def test_directions_side_by_side_are_those_one_by_one():
    config, sizes = CONFIGS["clipping"], SIZES["falling"]
    threads = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            results.append(run(config, sizes, "auto", carried=False))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results):
        assert max_difference(one, two) <= 1e-6 * max(1, one.abs().max())


@needs_extension
@pytest.mark.parametrize("gate", range(4))
def test_what_is_not_a_number_stays_so(gate):
    """A diverging training must be noticed."""
    config = LSTMConfig(3, 3, cell_clip=3.0, proj_clip=None)
    x, weight, bias = torch.ones(2, 2), torch.ones(12, 5), torch.zeros(12)
    bias[3 * gate + 1] = torch.nan
    y = LSTMFunction.apply(x, weight, bias, None, [1, 1], config, None, "auto")
    assert y[0].isnan().tolist() == [False, True, False] and y[1].isnan().all()


@needs_extension
def test_large_gates_saturate():
    config = LSTMConfig(2, 2, cell_clip=None, proj_clip=None)
    x, weight = torch.tensor([[1.0]]), torch.zeros(8, 3)
    for value in (30.0, 1e4, 3e38, torch.inf):
        bias = torch.tensor([value, -value]).repeat(4)
        results = [
            LSTMFunction.apply(x, weight, bias, None, [1], config, None, kernel)
            for kernel in ("auto", "torch")
        ]
        assert max_difference(*results) < 1e-7


@needs_extension
def test_inference_uses_it():
    bilm = random_bilm()
    sentences = [["the", "bank", "."], ["river"]]
    results = [
        Session(bilm, Settings(kernel=kernel)).embed(sentences) for kernel in ("auto", "torch")
    ]
    for ours, plain in zip(*results):
        assert max_difference(ours, plain) < 1e-6


@needs_extension
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_weights_of_other_types_are_for_pytorch(dtype, precision):
    """The cell reads and writes float32, whatever is there."""
    bilm = random_bilm().to(dtype)
    sentences = [["the", "bank", "."], ["river"]]
    ours, plain = (
        Session(bilm, Settings(precision=precision, kernel=kernel)).embed(sentences)
        for kernel in ("auto", "torch")
    )
    assert all(torch.equal(*pair) for pair in zip(ours, plain))
    results = []
    for kernel in ("auto", "torch"):
        bilm.lstm.kernel = kernel
        bilm.zero_grad()
        layers = bilm(["the", "bank"], numpy.array([0, 1, 0]), [2, 1], mixed_precision=True)
        layers.float().sum().backward()
        results.append([layers, *(parameter.grad for parameter in bilm.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results))


@needs_extension
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_comparison_chooses_its_own_types(dtype):
    """Whatever PyTorch's defaults are: memory of another type would be too small."""
    from spacy_elmo.kernels import compiled_cell, compiled_softmax

    def errors():
        modules = compiled_cell, compiled_softmax
        return [module.max_error(torch.device("cpu"), dtype) for module in modules]

    expected = errors()
    before = torch.get_default_dtype()
    try:
        for default in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(default)
            with torch.device("meta"):
                assert errors() == expected
    finally:
        torch.set_default_dtype(before)


@needs_extension
def test_states_may_have_gaps():
    config, sizes = CONFIGS["clipping"], SIZES["equal"]
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, projection = (
        torch.randn(2, *shape, generator=generator)
        for shape in [(sum(sizes), 7), (84, 13), (84,), (6, 21)]
    )
    wide = torch.randn(2, sizes[0], 2 * 21, generator=generator)
    results = []
    for gap in (1, 2):
        state = [wide[..., : 2 * n : 2].repeat_interleave(gap, -1)[..., ::gap] for n in (6, 21)]
        y = layer(x, weight, bias, projection, sizes, config, state, "auto")
        results.append([y, *(part.clone() for part in state)])
    assert all(torch.equal(*pair) for pair in zip(*results))


def test_without_the_extension(monkeypatch):
    """PyTorch runs it, silently."""
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    config, sizes = CONFIGS["clipping"], SIZES["falling"]
    expected = run(config, sizes, "torch")
    kernels.load_kernels.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = run(config, sizes, "auto")
    finally:
        kernels.load_kernels.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(expected, results))


@needs_extension
def test_an_extension_that_computes_something_else(monkeypatch):
    """As after a compiler's `-ffast-math`."""
    from spacy_elmo.kernels import compiled_cell

    forward = compiled_cell.forward

    def wrong(gates, *args, **kwargs):
        forward(gates.mul_(1.1), *args, **kwargs)

    monkeypatch.setattr(compiled_cell, "forward", wrong)
    config, sizes = CONFIGS["clipping"], SIZES["falling"]
    expected = run(config, sizes, "torch")
    kernels.load_kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match="compiled_cell do not work on cpu .a result"):
            results = run(config, sizes, "auto")
    finally:
        kernels.load_kernels.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(expected, results))
