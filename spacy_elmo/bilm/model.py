"""The bidirectional language model (Peters et al. 2018, section 3): a token encoder under two
uncoupled stacks of LSTMs with projected (Sak et al. 2014) and clipped outputs. Sequences are packed
(see `packing`): reversed, as the backward direction reads them, they have the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, cast

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels import Kernel
from ..parallel import no_fork
from .config import BiLMConfig, LSTMConfig
from .int8 import Int8Weight
from .lstm_layer import LayerState, train_layer
from .mixed_precision import autocast
from .mixes import TrainedMix
from .packing import pack_sentences, to_device
from .token_encoder import build_token_encoder


class LSTMLayer(nn.Module):
    """Weights of one layer in one direction, gates in the order i, j (candidate), f, o. `widths`
    are the columns of `gate_weight` that read the input, and those that read the previous output;
    `int8` has weights by name (see `BiLM.is_int8`)."""

    def __init__(self, input_dim: int, config: LSTMConfig) -> None:
        super().__init__()
        self.widths = input_dim, config.projection_dim
        self.int8: dict[str, Int8Weight] = {}
        gate_weight = torch.empty(4 * config.dim, sum(self.widths))
        self.gate_weight = nn.Parameter(nn.init.xavier_uniform_(gate_weight))
        self.gate_bias = nn.Parameter(torch.zeros(4 * config.dim))
        self.projection_weight: Optional[nn.Parameter] = None
        if config.has_projection:
            projection = nn.init.xavier_uniform_(torch.empty(config.projection_dim, config.dim))
            self.projection_weight = nn.Parameter(projection)

    def matrices(self) -> list[Any]:
        """RETURNS (list): What multiplies the input, the previous output, and the cells' output
        (None without a projection): each a tensor or an `Int8Weight`, shape (out, in)."""
        gates = self.int8.get("gate_weight")
        parts = self.gate_weight.detach().split(self.widths, dim=1)
        projection = self.int8.get("projection_weight", self.projection_weight)
        return [*(parts if gates is None else gates.split()), projection]


class BiLSTM(nn.Module):
    """Both directions, all layers. The attribute `kernel` chooses what runs `forward`."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.kernel: Kernel = "auto"

        def stack() -> Sequence[LSTMLayer]:
            layers = (LSTMLayer(config.projection_dim, config) for _ in range(config.n_layers))
            return cast("Sequence[LSTMLayer]", nn.ModuleList(layers))

        self.forward_layers, self.backward_layers = stack(), stack()

    def forward(
        self,
        x: Tensor,
        batch_sizes: Sequence[int],
        dropout: float = 0.0,
        states: Optional[Sequence[LayerState]] = None,
    ) -> list[Tensor]:
        """Run with autograd.

        x (Tensor): Packed inputs, shape (2, rows, P): forward, backward (reversed).
        dropout (float): Dropout rate of each layer's input, as in bilm-tf.
        states (Optional[Sequence]): Each layer's state; see `train_layer`.
        RETURNS (list): The layers' outputs, each packed like x.
        """
        outputs = []
        for number, pair in enumerate(zip(self.forward_layers, self.backward_layers)):
            x = F.dropout(x, dropout) if dropout else x
            y, state = x, None if states is None else states[number]
            if batch_sizes:
                weights = [(one.gate_weight, one.gate_bias, one.projection_weight) for one in pair]
                y = train_layer(x, batch_sizes, weights, self.config, state, self.kernel)
            x = x + y if number > 0 and self.config.use_skip_connections else y
            outputs.append(x)
        return outputs


class BiLM(nn.Module):
    """A token encoder under two stacks of LSTMs, one for each direction, for autograd. For fast
    inference, see `inference.current_session`. The vocabulary has the words by row, if words are
    read. The attributes `trained_mix` and `pooling` are what came with the weights: a mix, and how
    vectors of spans are made (a `WordPooling`, which this part does not use); or None."""

    @no_fork()  # In a forked process, this comes before the weights are read.
    def __init__(self, config: BiLMConfig, vocabulary: Optional[Sequence[str]] = None) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = build_token_encoder(config, vocabulary)
        self.lstm = BiLSTM(config.lstm)
        self.n_invalidations = 0
        self.trained_mix: Optional[TrainedMix] = None
        self.pooling: Any = None

    def __repr__(self) -> str:
        return f"BiLM({', '.join(self.facts().values())})"

    def facts(self, precision: Optional[str] = None) -> dict[str, str]:
        """RETURNS (dict): Facts for users, as text; `precision` is that in which it runs."""
        return {
            "weights": f"{sum(p.numel() for p in self.parameters()):,} parameters",
            "vectors": f"{self.config.n_activations} layers of width {self.config.output_dim}",
            "device": str(self.device),
            "precision": precision or ("int8" if self.is_int8 else str(self.dtype)[6:]),
        }

    @property
    def vocabulary(self) -> Optional[list[str]]:
        """The words by row, or None if only characters are read."""
        return self.token_encoder.vocabulary

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def is_int8(self) -> bool:
        """Whether some weights of the LSTMs are in memory in 8 bits only (`LSTMLayer.int8`), their
        parameters on the meta device. Such a biLM can be saved, and run in the precision int8;
        `dequantize` comes before everything else."""
        return any(layer.int8 for layer in self._lstm_layers())

    @no_fork()
    def dequantize(self) -> None:
        """Give all parameters numbers."""
        for layer in self._lstm_layers():
            for name, weight in layer.int8.items():
                setattr(layer, name, nn.Parameter(weight.dequantize()))
            layer.int8 = {}

    def _lstm_layers(self) -> list[LSTMLayer]:
        return [*self.lstm.forward_layers, *self.lstm.backward_layers]

    def forward(
        self,
        types: Sequence[str],
        index: numpy.ndarray,
        lengths: Sequence[int],
        mixed_precision: bool = False,
    ) -> Tensor:
        """Compute all layers.

        types (Sequence[str]): Distinct word types.
        index (ndarray): The type of each token, all sentences concatenated, shape (tokens,).
        lengths (Sequence[int]): Tokens per sentence, boundaries not included.
        mixed_precision (bool): Compute products in bfloat16.
        RETURNS (Tensor): Shape (L+1, tokens, 2P). Layer 0 is the token encoder, twice.
        """
        if self.is_int8:
            raise ValueError(
                "the weights are in 8 bits, without gradients: call dequantize() first"
            )
        weight = next(self.parameters())
        with no_fork(), autocast(weight.device, mixed_precision):
            if torch.is_grad_enabled():  # Whoever computes gradients is about to change weights.
                self.invalidate()
            vectors = self.token_encoder([*types, *self.token_encoder.boundaries]).to(weight.dtype)
            sizes = numpy.asarray(lengths, dtype=int)
            starts = numpy.cumsum(sizes) - sizes
            batch = pack_sentences(index, starts, sizes, len(types), len(types) + 1)
            x = F.embedding(to_device(batch.inputs, weight.device), vectors)
            rows = to_device(batch.token_rows, weight.device)
            layers = [x, *self.lstm(x, batch.batch_sizes)]
            # Both directions of a token side by side.
            sides = [[F.embedding(*pair) for pair in zip(rows, layer)] for layer in layers]
            return torch.stack([torch.cat(pair, dim=1) for pair in sides])

    def invalidate(self) -> None:
        """Make sessions read the weights again, after changes that PyTorch does not count: through
        `parameter.data`, or by an optimizer with `fused=True`. `forward` with gradients calls this,
        too, because a change usually follows."""
        self.n_invalidations += 1

    def unfreeze(self, n_layers: Optional[int] = None) -> None:
        """Choose the weights that training changes (gradual unfreezing, Howard and Ruder 2018): of
        so many layers from the top, the token encoder being the last one; None for all."""
        stacks = self.lstm.forward_layers, self.lstm.backward_layers
        layers: Any = [[self.token_encoder], *zip(*stacks)]
        frozen = 0 if n_layers is None else len(layers) - n_layers
        for number, module in ((n, module) for n, pair in enumerate(layers) for module in pair):
            module.requires_grad_(number >= frozen)
            if number < frozen:
                module.zero_grad()
