"""The two uncoupled stacks of LSTMs with projected and clipped outputs.

Sak et al. 2014 (projection), with the clipping and skip connections of Peters et al. 2018,
section 3.4. The directions never see each other: layer l of one direction reads layer l-1 of the
same direction.

Sequences are packed (see `packing`). The backward direction reads every sequence reversed, which
packs into the same rows, so that both directions share one time loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import LSTMConfig
from .int8 import Int8Weight
from .kernels import Kernel, load_kernels
from .lstm_function import LSTMFunction
from .lstm_layer import LayerState
from .mixed_precision import product_dtype

TRITON_LSTM = f"{__package__}.triton_lstm"


class LSTMLayer(nn.Module):
    """Weights of one layer in one direction, gates in the order i, j (candidate), f, o.

    input_dim (int): Width of the input.
    config (LSTMConfig): The hyper-parameters.

    The attribute `widths` has the columns of `gate_weight` that read the input, and those that read
    the previous output. The attribute `int8` has weights by name; see `BiLM.is_int8`.
    """

    def __init__(self, input_dim: int, config: LSTMConfig) -> None:
        super().__init__()
        self.widths = input_dim, config.projection_dim
        self.int8: dict[str, Int8Weight] = {}
        self.gate_weight = nn.Parameter(torch.empty(4 * config.dim, sum(self.widths)))
        self.gate_bias = nn.Parameter(torch.empty(4 * config.dim))
        self.projection_weight = (
            nn.Parameter(torch.empty(config.projection_dim, config.dim))
            if config.has_projection
            else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.gate_weight)
        nn.init.zeros_(self.gate_bias)
        if self.projection_weight is not None:
            nn.init.xavier_uniform_(self.projection_weight)

    def matrices(self) -> list[Any]:
        """RETURNS (list): What multiplies the input, the previous output, and the cells' output
        (None without a projection): each a tensor or an `Int8Weight`, shape (out, in)."""
        gates = self.int8.get("gate_weight")
        parts = self.gate_weight.detach().split(self.widths, dim=1)
        projection = self.int8.get("projection_weight", self.projection_weight)
        return [*(parts if gates is None else gates.split()), projection]


class BiLSTM(nn.Module):
    """Both directions, all layers.

    config (LSTMConfig): The hyper-parameters. The input has width projection_dim.

    The attribute `kernel` chooses what runs `forward`; see `load_kernels`.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.kernel: Kernel = "auto"
        self.forward_layers = self._stack()
        self.backward_layers = self._stack()

    def _stack(self) -> Sequence[LSTMLayer]:
        config = self.config
        layers = (LSTMLayer(config.projection_dim, config) for _ in range(config.n_layers))
        return cast("Sequence[LSTMLayer]", nn.ModuleList(layers))

    def forward(
        self,
        x: Tensor,
        batch_sizes: Sequence[int],
        dropout: float = 0.0,
        states: Optional[Sequence[LayerState]] = None,
    ) -> list[Tensor]:
        """Run with autograd.

        x (Tensor): Packed inputs, shape (2, rows, P): forward, backward (reversed).
        batch_sizes (Sequence[int]): Sequences that are active at each step; falling.
        dropout (float): Of each layer's input, as bilm-tf does.
        states (Optional[Sequence]): Each layer's state before the first step, changed in place to
            that after the last one; only where all sequences are of one length. No gradient flows
            into it. None: zeros.
        RETURNS (list): The layers' outputs, each packed like x.
        """
        run: Callable[..., Tensor] = LSTMFunction.apply
        kernels = None
        if x.device.type != "cpu":
            dtype = product_dtype(x)
            kernels = load_kernels(TRITON_LSTM, self.kernel, x.device, dtype, self.config)
        outputs = []
        for number, pair in enumerate(zip(self.forward_layers, self.backward_layers)):
            x = F.dropout(x, dropout) if dropout else x
            state = None if states is None else states[number]
            weights = [(one.gate_weight, one.gate_bias, one.projection_weight) for one in pair]
            if not batch_sizes:
                y = x
            elif kernels is not None:
                y = kernels.train_layer(x, batch_sizes, weights, self.config, state)
            elif x.device.type == "cpu":
                first, second = weights
                y = run(x, *first, batch_sizes, self.config, state, self.kernel, *second)
            else:
                both = [None if side[0] is None else torch.stack(side) for side in zip(*weights)]
                y = run(x, *both, batch_sizes, self.config, state, self.kernel)
            x = x + y if number > 0 and self.config.use_skip_connections else y
            outputs.append(x)
        return outputs
