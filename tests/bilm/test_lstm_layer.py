"""The written-out gradient of the LSTM against numerical gradients and against autograd."""

from __future__ import annotations

import pytest
import torch

from spacy_elmo.bilm.config import LSTMConfig
from spacy_elmo.bilm.lstm_layer import FORGET_BIAS, train_layer

from ..conftest import assert_close, max_difference

DIM, WIDTH = 5, 3
DOUBLE = torch.float64


def inputs(sizes, config, seed=0, scale=1.0, dtype=DOUBLE):
    """RETURNS (list): x, and the weights of each direction, all leaves."""
    generator = torch.Generator().manual_seed(seed)
    p = config.projection_dim
    shapes = [(4 * DIM, WIDTH + p), (4 * DIM,), (p, DIM)][: 2 + config.has_projection]
    shapes = [(2, sum(sizes), WIDTH), *shapes, *shapes]
    tensors = (torch.randn(*shape, generator=generator, dtype=DOUBLE) * scale for shape in shapes)
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def run(tensors, sizes, config, state=None, batched=None):
    x, *weights = tensors
    n = len(weights) // 2
    pair = [[*weights[:n], None][:3], [*weights[n:], None][:3]]
    return train_layer(x, sizes, pair, config, state, "torch", batched)


def plain(tensors, sizes, config):
    """Sequence by sequence, as autograd sees it."""
    x, *weights = tensors
    n = len(weights) // 2
    return torch.stack(
        [plain_direction(x[k], sizes, config, *weights[k * n : k * n + n]) for k in (0, 1)]
    )


def plain_direction(x, sizes, config, weight, bias, projection=None):
    starts = [sum(sizes[:step]) for step in range(len(sizes))]
    outputs = {}
    for row in range(sizes[0]):
        h, c = x.new_zeros(config.projection_dim), x.new_zeros(DIM)
        for start, size in zip(starts, sizes):
            if row >= size:
                break
            i, j, f, o = (weight @ torch.cat((x[start + row], h)) + bias).chunk(4)
            c = c * torch.sigmoid(f + FORGET_BIAS) + torch.sigmoid(i) * torch.tanh(j)
            if config.cell_clip is not None:
                c = c.clamp(-config.cell_clip, config.cell_clip)
            h = torch.sigmoid(o) * torch.tanh(c)
            if projection is not None:
                h = projection @ h
                if config.proj_clip is not None:
                    h = h.clamp(-config.proj_clip, config.proj_clip)
            outputs[start + row] = h
    return torch.stack([outputs[row] for row in range(len(x))])


CONFIGS = {
    "projection": LSTMConfig(DIM, 2, cell_clip=None, proj_clip=None),
    "no projection": LSTMConfig(DIM, DIM, cell_clip=None, proj_clip=None),
    "clipping": LSTMConfig(DIM, 2, cell_clip=0.6, proj_clip=0.4),
    "cells clipped": LSTMConfig(DIM, DIM, cell_clip=0.5, proj_clip=None),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@every_config
@pytest.mark.parametrize("sizes", [[3, 3, 2, 1], [2], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_equals_autograd(config, sizes, batched):
    tensors = inputs(sizes, config, scale=1.5)
    copies = [t.detach().clone().requires_grad_() for t in tensors]
    y, expected = run(tensors, sizes, config, batched=batched), plain(copies, sizes, config)
    assert max_difference(y, expected) < 1e-12
    if config.proj_clip is not None and config.has_projection and sum(sizes) > 3:
        assert (expected.abs() == config.proj_clip).any()  # Clipping fires.
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    y.backward(dy)
    expected.backward(dy)
    assert_close([x.grad for x in tensors], [x.grad for x in copies], 1e-12)


@every_config
def test_states_go_on(config):
    """Two runs, the second from where the first stopped, give what one gives, and the gradients of
    one whose second half does not flow back into the first."""
    n, steps = 3, 4
    sizes = [n] * steps
    x, *rest = tensors = inputs(sizes, config, scale=1.5)
    whole = run(tensors, sizes, config)
    state = tuple(torch.zeros(2, n, width, dtype=DOUBLE) for width in (config.projection_dim, DIM))
    half = n * steps // 2
    parts = []
    for part in (x[:, :half], x[:, half:]):
        parts.append(run([part, *rest], sizes[: steps // 2], config, state))
    assert max_difference(torch.cat(parts, 1), whole) < 1e-12
    assert max_difference(state[0], whole[:, -n:]) < 1e-12
    # The second half's gradient, with a state that is not zero.
    start = tuple(torch.randn_like(part) * 0.3 for part in state)
    assert torch.autograd.gradcheck(
        lambda *leaves: run(leaves, sizes, config, tuple(t.clone() for t in start)), tuple(tensors)
    )


def test_nothing_needs_a_gradient_of_the_input():
    config = CONFIGS["projection"]
    x, *weights = inputs([2, 1], config)
    x = x.detach()
    run([x, *weights], [2, 1], config).sum().backward()
    assert x.grad is None and weights[0].grad is not None


@pytest.mark.parametrize("carried", [False, True], ids=["zero states", "carried states"])
def test_autocast(carried):
    """bfloat16 products, float32 everything else; also where products have more rows than there
    are inputs; uninitialised memory is NaN."""
    config = CONFIGS["projection"]
    sizes = [37] * 3 if carried else [37, 37, 20, 7, 7, 1]
    state = (torch.full((2, 37, config.projection_dim), 0.3), torch.full((2, 37, DIM), -0.5))
    found = []
    torch.use_deterministic_algorithms(True)
    try:
        for enabled in (False, True):
            tensors = inputs(sizes, config, dtype=torch.float32)
            start = tuple(part.clone() for part in state) if carried else None
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                y = run(tensors, sizes, config, start)
            y.square().sum().backward()
            found.append([y.detach(), *(tensor.grad for tensor in tensors)])
    finally:
        torch.use_deterministic_algorithms(False)
    for exact, rounded in zip(*found):
        assert rounded.dtype == torch.float32
        assert 0 < (exact - rounded).norm() < 0.02 * exact.norm()
