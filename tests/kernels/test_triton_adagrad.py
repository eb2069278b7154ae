"""Adagrad in a Triton kernel against PyTorch's own: interpreted on a CPU, or run on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from spacy_elmo.kernels import triton_adagrad

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_the_kernel_agrees():
    """With gradients that are clipped and that are not, of all rows and of some."""
    assert triton_adagrad.max_error(DEVICE, torch.float32) < 1e-6


@pytest.mark.parametrize("limit", [0.5, torch.inf])
def test_several_steps(limit):
    """Of several parameters, one of them without a gradient; the state is PyTorch's."""
    torch.manual_seed(0)
    start = [torch.randn(shape, device=DEVICE) for shape in ((40, 60), (7,), (3,))]
    optimizers, found = [], []
    for is_ours in (False, True):
        parameters = [x.clone().requires_grad_() for x in start]
        optimizer = torch.optim.Adagrad(parameters, 0.2, initial_accumulator_value=0.0025)
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for parameter in parameters[:2]:
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = gradient.to(DEVICE)
            if is_ours:
                triton_adagrad.clip_and_step(optimizer, limit)
            else:
                torch.nn.utils.clip_grad_norm_(parameters, limit)
                optimizer.step()
        optimizers.append(optimizer)
        found.append(parameters)
    for a, b in zip(*found):
        assert (a - b).abs().max() < 1e-6
    plain, ours = (optimizer.state_dict()["state"] for optimizer in optimizers)
    assert plain.keys() == ours.keys()
    for number, state in plain.items():
        assert torch.equal(state["step"], ours[number]["step"])
        assert torch.allclose(state["sum"], ours[number]["sum"], rtol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    parameters = [torch.ones(5, device=DEVICE, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adagrad(parameters, 0.2)
    for parameter, value in zip(parameters, (1.0, bad)):
        parameter.grad = torch.full_like(parameter, value)
    assert not triton_adagrad.clip_and_step(optimizer, 0.5).isfinite()
    for parameter in parameters:
        assert (parameter == 1).all() and (optimizer.state[parameter]["sum"] == 0).all()
