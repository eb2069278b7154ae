"""Each device's kernels against PyTorch, in LSTM layers forward and backward. Triton's are
interpreted on a CPU, or run on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spacy_elmo.bilm.config import LSTMConfig
from spacy_elmo.bilm.int8 import Int8Weight
from spacy_elmo.bilm.lstm_layer import train_layer
from spacy_elmo.inference import Session, Settings
from spacy_elmo.kernels import load_kernels

from ..conftest import TINY, TINY_WORDS, WORDS, needs_extension, needs_triton, random_bilm
from .conftest import GPU

CONFIGS = {
    "projection": LSTMConfig(21, 6, cell_clip=None, proj_clip=None),
    "no projection": LSTMConfig(21, 21, cell_clip=None, proj_clip=None),
    "clipping": LSTMConfig(21, 6, cell_clip=0.4, proj_clip=0.3),
    "one cell": LSTMConfig(1, 1, cell_clip=3.0, proj_clip=None),
    # Of widths that C trains in bfloat16, where the processor has products of it.
    "whole layer": LSTMConfig(40, 37, cell_clip=None, proj_clip=None),
    "whole layer, clipping": LSTMConfig(72, 6, cell_clip=0.4, proj_clip=0.3),
    "whole layer, no projection": LSTMConfig(8, 8, cell_clip=None, proj_clip=None),
}
SIZES = {"falling": [19, 17, 4, 4, 1], "equal": [5, 5, 5], "blocks": [70, 33, 33, 32, 16]}
SENTENCES = [["the", "bank", "."], ["river"], ["the", "money", "bank", "the", "."]]
DEVICES = {"auto": "cpu", "triton": "cuda" if GPU else "cpu"}


def run(train, config, sizes, *, dtype=None, carried=False, **settings):
    """RETURNS (list): Outputs, all gradients, and the states after the last step."""
    generator = torch.Generator().manual_seed(0)
    width, p = 7, config.projection_dim
    device = DEVICES[train.keywords["kernel"]]
    shapes = [(sum(sizes), width), (4 * config.dim, width + p), (4 * config.dim,), (p, config.dim)]
    x, *weights = (torch.randn(2, *shape, generator=generator).to(device) / 2 for shape in shapes)
    leaves = [x, *(w for pair in zip(*weights) for w in pair[: 2 + config.has_projection])]
    leaves = [tensor.clone().requires_grad_() for tensor in leaves]
    n = len(leaves) // 2
    pair = [[*leaves[1 + k * n : 1 + k * n + n], None][:3] for k in (0, 1)]
    state = None
    if carried:
        widths = p, config.dim
        state = [torch.randn(2, sizes[0], n, generator=generator).to(device) / 4 for n in widths]
    with torch.autocast(device, dtype, enabled=dtype is not None):
        y = train(leaves[0], sizes, pair, config, state, **settings)
    dy = torch.randn(y.shape, generator=generator).to(device)
    # Twice: a backward pass must leave alone what the forward pass has saved.
    first = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    second = torch.autograd.grad(y, leaves, dy)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    return [y.detach(), *first, *(state or [])]


ARGUMENTS = "config, sizes, carried"
CASES = [
    pytest.param(CONFIGS["projection"], SIZES["equal"], False, id="projection"),
    pytest.param(CONFIGS["no projection"], SIZES["falling"], False, id="no projection"),
    pytest.param(CONFIGS["clipping"], SIZES["falling"], False, id="clipping"),
    pytest.param(CONFIGS["clipping"], SIZES["equal"], True, id="carried"),
    pytest.param(CONFIGS["one cell"], [1], False, id="one cell"),
]
WHOLE_LAYERS = [
    pytest.param(CONFIGS["whole layer"], SIZES["blocks"], False, id="whole layer"),
    pytest.param(CONFIGS["whole layer, clipping"], [35] * 4, True, id="whole layer, carried"),
    pytest.param(CONFIGS["whole layer, no projection"], [3, 1], False, id="whole layer, small"),
]


@pytest.mark.parametrize(ARGUMENTS, CASES)
def test_equals_pytorch_in_float32(train, config, sizes, carried):
    expected = run(train, config, sizes, carried=carried, kernel="torch")
    for reference, result in zip(expected, run(train, config, sizes, carried=carried)):
        bound = 1e-5 if result.is_cuda else 1e-6
        assert (result - reference).abs().max() <= bound * max(1, reference.abs().max())


@pytest.mark.parametrize(ARGUMENTS, CASES + WHOLE_LAYERS)
def test_is_near_float32_in_bfloat16(monkeypatch, train, config, sizes, carried):
    """As near as the plain path in bfloat16, whose gates are float32: rounding decides for some
    values on which side of a clip they are, and there the gradient jumps."""
    settings = {"carried": carried, "dtype": torch.bfloat16}
    exact = run(train, config, sizes, carried=carried, kernel="torch")
    plain = run(train, config, sizes, **settings, kernel="torch")
    found = [run(train, config, sizes, **settings)]
    if train.keywords["kernel"] == "auto" and trains_in_c(config):
        monkeypatch.setattr("spacy_elmo.kernels.compiled.trains_layers", lambda *_: False)
        found.append(run(train, config, sizes, **settings))
        assert not torch.equal(found[0][0], found[1][0])
    for results in found:
        for reference, rounded, result in zip(exact, plain, results):
            bound = 0.01 * reference.norm() + 2 * (rounded - reference).norm()
            assert 0 < (result - reference).norm() <= bound


def trains_in_c(config):
    module = load_kernels("auto", torch.device("cpu"), torch.bfloat16, torch.float32)
    return module is not None and module.trains_layers(torch.bfloat16, config.dim)


@needs_extension
def test_whole_layers_check_what_c_trusts():
    config, sizes = CONFIGS["whole layer, clipping"], [5, 5, 4]
    if not trains_in_c(config):
        pytest.skip("layers are not trained in C on this processor")

    def train(width=7, sizes=sizes, rows=None, kind=torch.float32, bad=1.0):
        generator = torch.Generator().manual_seed(0)
        shapes = [(2, 14, width), (288, 13), (288,), (6, 72)]
        x, *weights = (torch.randn(*shape, generator=generator) for shape in shapes)
        weights = [w.to(kind).requires_grad_() for w in weights]
        state = None if rows is None else [torch.zeros(2, rows, n) for n in (6, 72)]
        with torch.autocast("cpu", torch.bfloat16):
            y = train_layer(x, sizes, [weights, weights], config, state)
        return y, torch.autograd.grad(y, weights, torch.full_like(y, bad))

    for settings in (
        {"width": 8},
        {"sizes": [5, 4, 40]},
        {"sizes": [5, 4, 4]},
        {"sizes": [4, 5, 5]},
    ):
        with pytest.raises((ValueError, RuntimeError), match=r"shape|size"):
            train(**settings)
    for rows in (3, 7):
        with pytest.raises(RuntimeError):
            train(rows=rows)
    # A step whose gradient is not a number must be skipped, though outputs are clipped.
    assert all(part.isnan().all() for part in train(bad=torch.nan)[1])
    assert torch.equal(train()[0], train(kind=torch.float64)[0])


@needs_triton
@pytest.mark.usefixtures("triton_on_a_cpu")
def test_rows_of_several_blocks(request):
    from spacy_elmo.kernels import triton_cell

    config = LSTMConfig(triton_cell.BLOCK + 76, 8, cell_clip=None, proj_clip=None)
    bilm = random_bilm(type(TINY)(config, TINY.char_cnn)).to(DEVICES["triton"])
    found = [
        Session(bilm, Settings(kernel=kernel)).embed([["a", "b"]])[0]
        for kernel in ("torch", "triton")
    ]
    assert 0 < (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


@pytest.mark.parametrize("gate", range(4))
def test_what_is_not_a_number_stays_so(train, gate):
    """A diverging training must be noticed."""
    config = LSTMConfig(3, 3, cell_clip=3.0, proj_clip=None)
    x, weight, bias = torch.ones(2, 2, 2), torch.ones(12, 5), torch.zeros(12)
    bias[3 * gate + 1] = torch.nan
    device = DEVICES[train.keywords["kernel"]]
    weights = [[weight.to(device), bias.to(device), None]] * 2
    for y in train(x.to(device), [1, 1], weights, config):
        assert y[0].isnan().tolist() == [False, True, False] and y[1].isnan().all()


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_a_session(train, config, stateful):
    """Layers with skip connections, in several batches."""
    kernel = train.keywords["kernel"]
    bilm = random_bilm(config, scale=2.0).to(DEVICES[kernel])
    found = []
    for one in (kernel, "torch"):
        session = Session(bilm, Settings("float32", 8, 1, stateful, one))
        found.append(session.embed(SENTENCES) + session.embed(SENTENCES[::-1]))
    for ours, plain in zip(*found):
        assert (ours - plain).norm() <= 1e-5 * plain.norm()


LAYERS = {
    "clipping": LSTMConfig(37, 21, cell_clip=0.4, proj_clip=0.3),
    "more inputs than are summed at once": LSTMConfig(700, 520, cell_clip=3.0, proj_clip=3.0),
    "no projection": LSTMConfig(45, 45, cell_clip=3.0, proj_clip=None),
}


@needs_extension
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_layers_of_each_processor(monkeypatch, name, stateful):
    """Both kinds of registers sum in the same order, and a sentence does not depend on those that
    are run with it."""
    from spacy_elmo.kernels import compiled

    bilm = random_bilm(replace(TINY_WORDS, lstm=LAYERS[name]))
    sentences = [list(WORDS[3:] * 9)[n : 2 * n] for n in (20, 3, 1, 15, 9, 9, 7, 2, 2, 1, 1, 1)]
    found = {}
    for is_half in (False, True):
        bilm = bilm.half().float() if is_half else bilm
        torch_alone = Session(bilm, Settings(stateful=stateful, kernel="torch"))
        expected = [*torch_alone.embed(sentences), *torch_alone.embed(sentences[::-1])]
        for panel in (width for width in (0, 16, 32) if width <= compiled.PANEL):
            with monkeypatch.context() as patch:
                patch.setattr(compiled, "PANEL", panel)
                session = Session(bilm, Settings(stateful=stateful))
                found[panel] = [*session.embed(sentences), *session.embed(sentences[::-1])]
                for ours, plain in zip(found[panel], expected):
                    assert 0 < (ours - plain).norm() <= 1e-5 * plain.norm()
                if panel and not stateful:
                    alone = [session.embed([sentence])[0] for sentence in sentences]
                    assert all(map(torch.equal, alone, found[panel]))
        if 32 in found:
            assert all(map(torch.equal, found[16], found[32]))


@needs_extension
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_layers_of_rounded_numbers(monkeypatch, name, precision):
    """About as far from float32 as without C, which rounds more often to bfloat16, and no inputs to
    8 bits; and a sentence does not depend on those that are run with it."""
    from spacy_elmo.kernels import compiled

    if not compiled.runs_layers(precision):
        pytest.skip(f"{precision}: not in C on this processor")
    bilm = random_bilm(replace(TINY_WORDS, lstm=LAYERS[name]))
    sentences = [list(WORDS[3:] * 9)[n : 2 * n] for n in (20, 3, *[5] * 40, 1, 15, *[2] * 30)]
    exact = Session(bilm, Settings(kernel="torch")).embed(sentences)
    session = Session(bilm, Settings(precision))
    ours = session.embed(sentences)
    assert all(map(torch.equal, ours, [session.embed([sentence])[0] for sentence in sentences]))
    monkeypatch.setattr(compiled, "PANEL_INT8", min(compiled.PANEL_INT8, 16))
    assert all(map(torch.equal, ours, Session(bilm, Settings(precision)).embed(sentences)))
    monkeypatch.setattr(compiled, "runs_layers", lambda precision: False)
    others = Session(bilm, Settings(precision)).embed(sentences)
    errors = [
        torch.stack([(x - y).norm() / y.norm() for x, y in zip(found, exact)]).mean()
        for found in (ours, others)
    ]
    assert 0 < errors[0] <= (1.1 if precision == "bfloat16" else 2) * errors[1] <= 0.02


@needs_extension
def test_rounded_numbers_are_those_of_the_formula():
    """In 8 bits, x is q s of whole numbers from -127 to 127, and s such that 127 is the largest."""
    from spacy_elmo.kernels import compiled

    if not compiled.PANEL_INT8:
        pytest.skip("not in C on this processor")
    generator = torch.Generator().manual_seed(0)
    weights = [
        Int8Weight.quantize(torch.randn(*shape, generator=generator))
        for shape in ((4 * 35, 21), (4 * 35, 35))
    ]
    x, y = torch.randn(3, 21, generator=generator), torch.empty(3, 35)
    compiled.pack_layer([*weights, None], torch.zeros(140), "int8", None, None)(x, [3], y)
    scale = x.double().abs().amax(1, keepdim=True) / 127
    gates = (x / scale).round() * scale @ weights[0].dequantize().double().T
    i, j, _, o = gates.chunk(4, dim=1)
    expected = o.sigmoid() * (i.sigmoid() * j.tanh()).tanh()
    assert (y - expected).abs().max() <= 1e-5
    x[1, 20] = torch.nan
    compiled.pack_layer([*weights, None], torch.zeros(140), "int8", None, None)(x, [3], y)
    assert y.isnan().all(dim=1).tolist() == [False, True, False]


@needs_extension
def test_weights_beyond_half_precision():
    """The largest number of half precision is 65,504."""
    from spacy_elmo.kernels import compiled

    if not compiled.PANEL:
        pytest.skip("C does not run whole layers on this processor")
    bilm = random_bilm(replace(TINY_WORDS, lstm=replace(TINY_WORDS.lstm, proj_clip=None)))
    with torch.no_grad():
        for layer in bilm.lstm.forward_layers:
            layer.projection_weight[0, 0] = 1e6
    low, exact = (
        Session(bilm, Settings(precision, kernel=kernel)).embed(SENTENCES)
        for precision, kernel in (("float16", "auto"), ("float32", "torch"))
    )
    for ours, plain in zip(low, exact):
        assert (ours - plain).norm() <= 0.01 * plain.norm()


def test_weights_are_of_one_type():
    """A kernel would read and write past the end of memory of another type."""
    bilm = random_bilm()
    bilm.token_encoder.half()
    with pytest.raises(ValueError, match=r"torch\.float16, torch\.float32.*bilm\.float\(\)"):
        Session(bilm, Settings()).embed(SENTENCES)


@needs_extension
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_comparison_chooses_its_own_types(dtype):
    """Whatever PyTorch's defaults are: memory of another type would be too small."""
    compiled = load_kernels("auto", torch.device("cpu"), torch.float32, torch.float32)
    expected = compiled.max_error(torch.device("cpu"), dtype)
    assert 0 < expected < (1e-5 if dtype == torch.float32 else 0.05)
    before = torch.get_default_dtype()
    try:
        for default in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(default)
            with torch.device("meta"), torch.inference_mode():
                assert compiled.max_error(torch.device("cpu"), dtype) == expected
    finally:
        torch.set_default_dtype(before)


@needs_extension
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("name", ["clipping", "whole layer, clipping"])
def test_states_may_have_gaps(name, low):
    config, sizes = CONFIGS[name], SIZES["equal"]
    generator = torch.Generator().manual_seed(0)
    n, p = config.dim, config.projection_dim
    shapes = [(2, sum(sizes), 7), (4 * n, 7 + p), (4 * n,), (p, n)]
    x, *weights = (torch.randn(*shape, generator=generator) for shape in shapes)
    wide = torch.randn(2, sizes[0], 2 * n, generator=generator)
    results = []
    for gap in (1, 2):
        state = [wide[..., : 2 * k : 2].repeat_interleave(gap, -1)[..., ::gap] for k in (p, n)]
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            y = train_layer(x, sizes, [weights, weights], config, state)
        results.append([y, *(part.clone() for part in state)])
    assert all(torch.equal(*pair) for pair in zip(*results))
