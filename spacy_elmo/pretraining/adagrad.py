"""Adagrad (Duchi et al. 2011) of some rows of the output layer.

A row whose gradient is zero stays as it is, and so does its accumulator. Of an output layer of
hundreds of thousands of words, of which a step reads some thousands, only these rows need be
touched. Given the same clipped gradient, the result is that of `torch.optim.Adagrad` with the
gradient of all rows, bit for bit. (Where clipping is active, the norm of fewer rows is summed in
another order, so that its last bit may differ.)
(AdamW has no such shortcut: its moments and its weight decay move every row in every step.)
"""

from __future__ import annotations

import torch
from torch.optim.adagrad import adagrad

from .losses import Rows


@torch.no_grad()
def update_rows(optimizer: torch.optim.Optimizer, rows: Rows) -> None:
    """Update some rows of an output layer by their gradients.

    optimizer (Adagrad): Has the layer's parameters in its only group.
    rows (Rows): The rows, with gradients. Changed in place.
    """
    [group] = optimizer.param_groups
    names = ("lr", "weight_decay", "lr_decay", "eps", "maximize")
    settings = {name: group[name] for name in names}
    for parameter, part in rows.parts.items():
        state = optimizer.state[parameter]
        sums = state["sum"][rows.words]
        assert part.grad is not None
        adagrad([part], [part.grad], [sums], [state["step"]], **settings)
        parameter.index_copy_(0, rows.words, part)
        state["sum"].index_copy_(0, rows.words, sums)
