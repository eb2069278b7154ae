"""The bidirectional language model (Peters et al. 2018, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import BiLMConfig
from .lstm import BiLSTM, LSTMLayer
from .mixed_precision import autocast
from .mixes import TrainedMix
from .packing import pack_sentences, to_device
from .threads import no_fork
from .token_encoder import build_token_encoder


class BiLM(nn.Module):
    """A token encoder under two stacks of LSTMs, one for each direction.

    This is the network for autograd. For fast inference, see `inference.Session`.

    config (BiLMConfig): The hyper-parameters.
    vocabulary (Optional[Sequence[str]]): The words by row, for word input and for words beside
        characters.

    The attribute `trained_mix` is the mix of the layers that came with the weights, if one did.
    """

    @no_fork()  # In a forked process, this comes before the weights are read.
    def __init__(self, config: BiLMConfig, vocabulary: Optional[Sequence[str]] = None) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = build_token_encoder(config, vocabulary)
        self.lstm = BiLSTM(config.lstm)
        self.n_invalidations = 0
        self.trained_mix: Optional[TrainedMix] = None

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
        """Whether some weights of the LSTMs are in memory in 8 bits only (`LSTMLayer.int8`). Their
        parameters are on the meta device, without numbers. Such a biLM can be saved, and run in the
        precision int8; `dequantize` comes before everything else."""
        return any(layer.int8 for layer in self._lstm_layers())

    @no_fork()
    def dequantize(self) -> None:
        """Give all parameters numbers. Does nothing the second time."""
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
        """All layers' activations.

        types (Sequence[str]): Distinct word types.
        index (ndarray): The type of each token, all sentences concatenated, shape (tokens,).
        lengths (Sequence[int]): Tokens per sentence, boundaries not included.
        mixed_precision (bool): Compute products in bfloat16, whatever `torch.autocast` says around
            the call: thinc's shim switches it off.
        RETURNS (Tensor): Shape (L+1, tokens, 2P). Layer 0 is the token encoder, twice.
        """
        weight = next(self.parameters())
        with no_fork(), autocast(weight.device, mixed_precision):
            if torch.is_grad_enabled():  # Whoever computes gradients is about to change weights.
                self.n_invalidations += 1
            vectors = self.token_encoder([*types, *self.token_encoder.boundaries])
            vectors = vectors.to(weight.dtype)
            sizes = numpy.asarray(lengths, dtype=int)
            starts = numpy.cumsum(sizes) - sizes
            batch = pack_sentences(index, starts, sizes, len(types), len(types) + 1)
            x = F.embedding(to_device(batch.inputs, weight.device), vectors)
            rows = to_device(batch.token_rows, weight.device)
            layers = [x, *self.lstm(x, batch.batch_sizes)]
            # Both directions of a token side by side.
            sides = [[F.embedding(*pair) for pair in zip(rows, layer)] for layer in layers]
            return torch.stack([torch.cat(pair, dim=1) for pair in sides])

    def embed(self, sentences: Iterable[Iterable[str]]) -> list[Tensor]:
        """Tokens in, activations out, with the default settings of `inference.Session`.

        sentences (Iterable[Iterable[str]]): Sentences as tokens; may be empty.
        RETURNS (list): For each sentence, shape (L+1, tokens, 2P). No two share memory.
        RAISES (ValueError): If a sentence is a string: it must be cut into tokens first.
        """
        from ..inference import current_session  # It imports this package.

        return current_session(self).embed(sentences)

    def invalidate(self) -> None:
        """Let sessions read the weights anew. Needed only after writing to them behind PyTorch's
        back, if anything was computed without gradients since the last computation with them:
        through `parameter.data`, or by an optimizer with `fused=True`. Other changes are noticed.
        """
        self.n_invalidations += 1

    def unfreeze(self, n_layers: Optional[int] = None) -> None:
        """Choose the weights that training changes (gradual unfreezing, Howard and Ruder 2018).

        n_layers (Optional[int]): How many layers, from the top: the LSTM layers, then the token
            encoder. None: all.
        """
        layers: list[Sequence[nn.Module]] = [[self.token_encoder]]
        layers += zip(self.lstm.forward_layers, self.lstm.backward_layers)
        bottom = 0 if n_layers is None else len(layers) - n_layers
        for number, modules in enumerate(layers):
            for module in modules:
                module.requires_grad_(number >= bottom)
                if number < bottom:
                    module.zero_grad()
