"""The two uncoupled stacks of LSTMs with projected and clipped outputs.

Sak et al. 2014 (projection), with the clipping and skip connections of Peters et al. 2018,
section 3.4. The directions never see each other: layer l of one direction reads layer l-1 of the
same direction.

Sequences are packed time-major without padding: sorted by falling length, step t holds one row
for each of the first `sizes[t]` sequences. The backward direction reads every sequence reversed,
which packs into the same sizes, so that both directions share one time loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import LSTMConfig
from .derived import Derived, fingerprint
from .module_list import ModuleList
from .precision import Precision, Product, pack
from .scan import FORGET_BIAS, lstm_scan

# The gates of several steps come from one product over the inputs. This bounds its size in bytes:
# large enough for a fast product, small enough that the allocator keeps reusing the same memory.
# FBGEMM's products are at their best with 64 rows, and int8 needs an accumulator of this size.
_GATE_BYTES = {"float32": 8 << 20, "float16": 4 << 20, "int8": 4 << 20}
_GATE_BYTES_UNPACKED = 16 << 20
_GATE_BYTES_GPU = 1 << 30

# Input weights per layer and direction that float32 keeps a packed copy of.
_MOST_INPUT_WEIGHTS = 4 << 20

# Outputs and cells of one layer: shapes (2, sequences, P) and (2, sequences, dim).
LayerState = tuple[Tensor, Tensor]


class LSTMLayer(nn.Module):
    """Weights of one layer in one direction, gates in the order i, j (candidate), f, o.

    input_dim (int): Width of the input.
    config (LSTMConfig): The hyper-parameters.
    """

    def __init__(self, input_dim: int, config: LSTMConfig) -> None:
        super().__init__()
        self.gate_weight = nn.Parameter(
            torch.empty(4 * config.dim, input_dim + config.projection_dim)
        )
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


class BiLSTM(nn.Module):
    """Both directions, all layers.

    config (LSTMConfig): The hyper-parameters. The input has width projection_dim.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.forward_layers = self._stack()
        self.backward_layers = self._stack()
        self._packed = Derived()

    def _stack(self) -> ModuleList[LSTMLayer]:
        width = self.config.projection_dim
        return ModuleList(LSTMLayer(width, self.config) for _ in range(self.config.n_layers))

    def forward(
        self,
        x: Tensor,
        sizes: Sequence[int],
        dropout: float = 0.0,
        states: Optional[list[LayerState]] = None,
    ) -> list[Tensor]:
        """Run with autograd.

        x (Tensor): Packed inputs, shape (2, rows, P): forward, backward (reversed).
        sizes (Sequence[int]): Sequences that are active at each step; falling.
        dropout (float): Of each layer's input, as bilm-tf does.
        states (Optional[list]): See `infer`; only where all sequences are of one length. Gradients
            end there.
        RETURNS (list): The layers' outputs, each packed like x.
        """
        outputs = []
        for layer, pair in enumerate(zip(self.forward_layers, self.backward_layers)):
            x = F.dropout(x, dropout) if dropout else x
            state = None if states is None else states[layer]
            y = self._train_layer(x, sizes, *pair, state)
            x = x + y if layer > 0 and self.config.use_skip_connections else y
            outputs.append(x)
        return outputs

    def _train_layer(
        self,
        x: Tensor,
        sizes: Sequence[int],
        fwd: LSTMLayer,
        bwd: LSTMLayer,
        state: Optional[LayerState],
    ) -> Tensor:
        if not sizes:
            return x
        if x.device.type == "cpu":
            return torch.stack(
                [
                    lstm_scan(
                        part,
                        sizes,
                        layer.gate_weight,
                        layer.gate_bias,
                        layer.projection_weight,
                        self.config,
                        None if state is None else (state[0][direction], state[1][direction]),
                    )
                    for direction, (part, layer) in enumerate(zip(x, (fwd, bwd)))
                ]
            )
        # Both directions in one batched product per step.
        projection = None
        if fwd.projection_weight is not None and bwd.projection_weight is not None:
            projection = torch.stack((fwd.projection_weight, bwd.projection_weight))
        return lstm_scan(
            x,
            sizes,
            torch.stack((fwd.gate_weight, bwd.gate_weight)),
            torch.stack((fwd.gate_bias, bwd.gate_bias)),
            projection,
            self.config,
            state,
        )

    @torch.inference_mode()
    def infer(
        self,
        x: Tensor,
        sizes: Sequence[int],
        precision: Precision = "float32",
        states: Optional[list[LayerState]] = None,
    ) -> list[Tensor]:
        """The same without autograd: packed weights, everything in place.

        x, sizes: As for `forward`.
        precision (str): Arithmetic of the products.
        states (Optional[list]): Each layer's state before the first step, changed in place to the
            state after each sequence's last step. None: zeros.
        RETURNS (list): The layers' outputs, each packed like x.
        """
        key = (precision, fingerprint(self))
        packed: list[list[_PackedLayer]] = self._packed.get(key, lambda: self._pack(precision))
        # A batched packing serves both directions at once; else each has its own.
        directions: list[slice | int] = [slice(None)] if len(packed[0]) == 1 else [0, 1]
        outputs = []
        for layer, packed_layer in enumerate(packed):
            y = torch.empty_like(x)
            for direction, weights in zip(directions, packed_layer):
                state = None
                if states is not None:
                    h, c = states[layer]
                    state = h[direction], c[direction]
                _scan(x[direction], sizes, weights, self.config, state, y[direction])
            if layer > 0 and self.config.use_skip_connections:
                y += x
            outputs.append(y)
            x = y
        return outputs

    def invalidate(self) -> None:
        """Forget the packed weights."""
        self._packed.clear()

    def _pack(self, precision: Precision) -> list[list[_PackedLayer]]:
        packed = []
        for pair in zip(self.forward_layers, self.backward_layers):
            batched = pair[0].gate_weight.device.type != "cpu"
            directions = [pair] if batched else [pair[:1], pair[1:]]
            packed.append([_pack(layers, self.config, precision) for layers in directions])
        return packed


def _gate_bytes(precision: Precision, device: torch.device, unpacked: bool) -> int:
    if device.type != "cpu":
        return _GATE_BYTES_GPU
    return _GATE_BYTES_UNPACKED if precision == "float32" and unpacked else _GATE_BYTES[precision]


@dataclass
class _PackedLayer:
    input: Product
    recurrent: Product
    projection: Optional[Product]
    gate_bytes: int


def _pack(layers: Sequence[LSTMLayer], config: LSTMConfig, precision: Precision) -> _PackedLayer:
    """Pack one direction, or both for batched products."""

    def gather(weights: Sequence[Optional[Tensor]]) -> Optional[Tensor]:
        found = [weight.detach() for weight in weights if weight is not None]
        if not found:
            return None
        return found[0] if len(found) == 1 else torch.stack(found)

    weight = gather([layer.gate_weight for layer in layers])
    bias = gather([layer.gate_bias for layer in layers])
    projection = gather([layer.projection_weight for layer in layers])
    assert weight is not None and bias is not None
    bias = bias.clone()
    bias[..., 2 * config.dim : 3 * config.dim] += FORGET_BIAS
    width = weight.shape[-1] - config.projection_dim
    # Packing helps the inputs' product, too, though less than the recurrent one: it sees the rows
    # of many steps at once. It is worth a second copy of the weights while they are small.
    many_rows = 4 * config.dim * width > _MOST_INPUT_WEIGHTS
    return _PackedLayer(
        pack(weight[..., :width], bias, precision, many_rows=many_rows),
        pack(weight[..., width:], None, precision),
        None if projection is None else pack(projection, None, precision),
        _gate_bytes(precision, weight.device, many_rows),
    )


def _scan(
    x: Tensor,
    sizes: Sequence[int],
    weights: _PackedLayer,
    config: LSTMConfig,
    state: Optional[tuple[Tensor, Tensor]],
    y: Tensor,
) -> None:
    """Run one layer over packed rows, shape (..., rows, width), writing its outputs into y."""
    if not sizes:
        return
    dim = config.dim
    shape = (*x.shape[:-2], sizes[0], dim)
    c = x.new_zeros(shape) if state is None else state[1]
    cells = x.new_empty(shape)
    previous = None if state is None else state[0]
    at = 0
    row_bytes = 4 * dim * x.element_size() * x.shape[:-2].numel()  # Of both directions, if batched.
    limit = weights.gate_bytes // row_bytes
    for chunk in _chunks(sizes, limit):
        input_gates = weights.input(x[..., at : at + sum(chunk), :], None)
        done = 0
        for n in chunk:
            gates = input_gates[..., done : done + n, :]
            if previous is not None:
                gates = weights.recurrent(previous[..., :n, :], gates)
            i, j, f, o = gates.split(dim, dim=-1)
            # tanh(j) = 2 sigmoid(2j) - 1: PyTorch's sigmoid is several times as fast as its tanh,
            # and one call serves all gates. The values differ by 1e-7 at most.
            j *= 2
            gates.sigmoid_()
            i *= j.mul_(2).sub_(1)
            c_n = c[..., :n, :]
            torch.addcmul(i, c_n, f, out=c_n)
            if config.cell_clip is not None:
                c_n.clamp_(-config.cell_clip, config.cell_clip)
            h = y[..., at + done : at + done + n, :]
            gated = torch.mul(c_n, 2, out=cells[..., :n, :]).sigmoid_().mul_(2).sub_(1).mul_(o)
            if weights.projection is None:
                h.copy_(gated)
            else:
                projected = weights.projection(gated, None)
                if config.proj_clip is not None:
                    projected.clamp_(-config.proj_clip, config.proj_clip)
                h.copy_(projected)
            if state is not None:
                state[0][..., :n, :] = h
            previous = h
            done += n
        at += done
        # Views of the gates: let go of them before the next chunk's are made.
        del input_gates, gates, i, j, f, o


def _chunks(sizes: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Cut steps into runs of at most `limit` rows (but at least one step)."""
    start = rows = 0
    for step, n in enumerate(sizes):
        if step > start and rows + n > limit:
            yield sizes[start:step]
            start, rows = step, 0
        rows += n
    yield sizes[start:]
