"""A biLM with an output layer: what pretraining trains."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..bilm import BiLM
from ..bilm.lstm_layer import LayerState
from ..bilm.packing import to_device
from ..bilm.token_encoder import BOS, EOS, CharCNN
from .batches import Batch
from .config import LossConfig
from .losses.adaptive import AdaptiveSoftmax
from .losses.softmax import Samples, Softmax


class LanguageModel(nn.Module):
    """Predicts the next word and the previous one, out of `n_words`, special ones included (Peters
    et al. 2018, section 3.1)."""

    def __init__(self, bilm: BiLM, n_words: int, loss: LossConfig, dropout: float = 0.1) -> None:
        super().__init__()
        self.bilm, self.dropout = bilm, dropout
        encoder = bilm.token_encoder
        if loss.tied and (isinstance(encoder, CharCNN) or loss.name == "adaptive"):
            raise ValueError("pretraining.loss.tied needs word input, and no adaptive softmax")
        width = bilm.config.lstm.projection_dim
        # A small vocabulary is a single cluster.
        if loss.name == "adaptive" and min(loss.cutoffs, default=0) < n_words:
            self.output: Any = AdaptiveSoftmax(n_words, width, loss.cutoffs)
        else:
            embedding: Any = getattr(encoder, "embedding", None)
            n_samples = loss.n_samples if loss.name == "sampled" else None
            tied = embedding.weight if loss.tied else None
            self.output = Softmax(n_words, width, n_samples, tied)

    def forward(
        self,
        batch: Batch,
        samples: Optional[Samples] = None,
        states: Optional[list[LayerState]] = None,
    ) -> Tensor:
        """RETURNS (Tensor): The loss that training minimises, summed over both directions, in nats.

        samples (Optional[Samples]): What the output layer's `draw` returned.
        states (Optional[list]): The LSTMs' states, replaced in place; see `BiLSTM.forward`.
        """
        targets = torch.from_numpy(batch.targets).flatten()  # Both directions in one product.
        return self.output(self.top(batch, states).flatten(0, 1), targets, samples)

    @torch.no_grad()
    def log_likelihood(self, batch: Batch, states: Optional[list[LayerState]] = None) -> Tensor:
        """RETURNS (Tensor): The exact log probabilities, in nats, shape (2, rows)."""
        pairs = zip(self.top(batch, states), torch.from_numpy(batch.targets))
        return torch.stack([self.output.log_likelihood(h, targets) for h, targets in pairs])

    def top(self, batch: Batch, states: Optional[list[LayerState]] = None) -> Tensor:
        """RETURNS (Tensor): The top layer of each direction, shape (2, rows, P)."""
        dropout = self.dropout if self.training else 0.0
        # A corpus always has the same boundaries.
        boundaries = dict(zip((BOS, EOS), self.bilm.token_encoder.boundaries))
        texts = [boundaries.get(text, text) for text in batch.types]
        # In bfloat16, as autocast returns them, the types would be too coarse for cells.
        types = self.bilm.token_encoder(texts).to(self.bilm.dtype)
        # Unlike an index, it has a fast gradient where many rows are the same.
        x = F.embedding(to_device(batch.inputs, types.device), types)
        top = self.bilm.lstm(x, batch.batch_sizes, dropout, states)[-1]
        return F.dropout(top, dropout) if dropout else top

    def new_states(self, n_rows: int) -> list[LayerState]:
        """RETURNS (list): Zero states of the LSTM layers for so many rows."""
        lstm, weight = self.bilm.config.lstm, next(self.parameters())
        h, c = (weight.new_zeros(2, n_rows, width) for width in (lstm.projection_dim, lstm.dim))
        return [(h.clone(), c.clone()) for _ in range(lstm.n_layers)]
