"""`lstm_layer.lstm_step` and its gradient on a CPU, compiled: `_kernels.c`. Importing this file
needs the extension, which is built if there is a compiler."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from . import _kernels, relative_error  # type: ignore[attr-defined]


def forward(
    gates: Tensor,
    addend: Optional[Tensor],
    c_previous: Tensor,
    c: Tensor,
    hidden: Tensor,
    cell_clip: Optional[float],
    keep_gates: bool = False,
) -> None:
    """One step. The rows of all tensors follow one another without gaps.

    gates (Tensor): Before the activation, in the order i, j (candidate), f, o, in float32 or
        bfloat16; shape (n, 4H).
    addend (Optional[Tensor]): To add to them, of the same type.
    c_previous, c (Tensor): The cells before the step, and what takes those after it, in float32;
        shape (n, H). They may be the same.
    hidden (Tensor): Takes the output, in the type of `gates`; shape (n, H).
    keep_gates (bool): Write the activations over the gates.
    """
    _kernels.cell_forward(
        gates.data_ptr(),
        0 if addend is None else addend.data_ptr(),
        c_previous.data_ptr(),
        c.data_ptr(),
        hidden.data_ptr(),
        *c.shape,
        math.inf if cell_clip is None else cell_clip,
        keep_gates,
        gates.dtype == torch.bfloat16,
    )


def backward(
    gates: Tensor,
    c_previous: Tensor,
    c: Tensor,
    d_hidden: Tensor,
    d_c: Tensor,
    d_bias: Tensor,
    d_gates: Tensor,
    hidden: Tensor,
    cell_clip: Optional[float],
) -> None:
    """Go back through `forward`.

    gates (Tensor): After the activation.
    d_hidden (Tensor): The gradient of the output, in the type of `gates`; shape (n, H).
    d_c (Tensor): That of the cells after the step; becomes that of the cells before it.
    d_bias (Tensor): To which that of the bias is added, shape (4H,).
    d_gates (Tensor): Takes that of the gates before the activation, in their type; shape (n, 4H).
    hidden (Tensor): Takes the output, in the type of `gates`.
    """
    _kernels.cell_backward(
        gates.data_ptr(),
        c_previous.data_ptr(),
        c.data_ptr(),
        d_hidden.data_ptr(),
        d_c.data_ptr(),
        d_bias.data_ptr(),
        d_gates.data_ptr(),
        hidden.data_ptr(),
        *c.shape,
        math.inf if cell_clip is None else cell_clip,
        gates.dtype == torch.bfloat16,
    )


def max_error(device: torch.device, dtype: torch.dtype) -> float:
    """RETURNS (float): How much a small step, forward and backward, differs from PyTorch's; see
    `relative_error`. The options that a compiler was given may have broken the code."""
    n, dim, clip = 3, 37, 0.5
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        gates, c_previous, d_hidden, d_c = (
            torch.randn(n, width, generator=generator, dtype=torch.float32, device=device).to(kind)
            for width, kind in ((4 * dim, dtype), (dim, None), (dim, dtype), (dim, None))
        )
        leaves = [gates.double().requires_grad_(), c_previous.double().requires_grad_()]
        i, j, f, o = leaves[0].chunk(4, dim=-1)
        cells = (i.sigmoid() * j.tanh() + leaves[1] * f.sigmoid()).clamp(-clip, clip)
        output = o.sigmoid() * cells.tanh()
        expected = torch.autograd.grad([output, cells], leaves, [d_hidden.double(), d_c.double()])
    half, c, hidden, again = gates / 2, *(torch.empty_like(x) for x in (d_c, d_hidden, d_hidden))
    forward(half, half.clone(), c_previous, c, hidden, clip, keep_gates=True)
    d_bias = torch.zeros(4 * dim, dtype=torch.float32, device=device)
    d_gates = torch.empty_like(half)
    backward(half, c_previous, c, d_hidden, d_c, d_bias, d_gates, again, clip)
    wanted = output.detach(), output.detach(), cells.detach(), *expected, expected[0].sum(0)
    return relative_error(zip(wanted, (hidden, again, c, d_gates, d_c, d_bias)))
