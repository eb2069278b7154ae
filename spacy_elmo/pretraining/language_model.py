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
from .losses import Samples, build_output


class LanguageModel(nn.Module):
    """Predicts the next word and the previous one (Peters et al. 2018, section 3.1).

    n_words (int): Words that are predicted, special ones included.
    dropout (float): Of each LSTM layer's input, and of the top layer's output; in training only.
    RAISES (ValueError): If the output layer cannot be built for this biLM.
    """

    def __init__(self, bilm: BiLM, n_words: int, loss: LossConfig, dropout: float = 0.1) -> None:
        super().__init__()
        self.bilm = bilm
        self.dropout = dropout
        encoder = bilm.token_encoder
        if loss.tied and isinstance(encoder, CharCNN):
            raise ValueError(
                "pretraining.loss.tied needs word input: a character CNN has no word embeddings"
            )
        embedding: Any = getattr(encoder, "embedding", None)
        tied = embedding.weight if loss.tied else None
        self.output: Any = build_output(loss, n_words, bilm.config.projection_dim, tied)

    def forward(
        self,
        batch: Batch,
        samples: Optional[Samples] = None,
        states: Optional[list[LayerState]] = None,
    ) -> Tensor:
        """The loss that training minimises.

        samples (Optional[Samples]): What the output layer's `draw` returned.
        states (Optional[list]): The LSTMs' states before the batch, replaced in place by those
            after it; see `BiLSTM.forward`.
        RETURNS (Tensor): The sum over both directions, in nats.
        """
        # Both directions in one product.
        targets = torch.from_numpy(batch.targets).flatten()
        return self.output(self.top(batch, states).flatten(0, 1), targets, samples)

    @torch.no_grad()
    def log_likelihood(self, batch: Batch, states: Optional[list[LayerState]] = None) -> Tensor:
        """RETURNS (Tensor): The exact log probability of each prediction, in nats, shape (2, rows).
        Call it in evaluation mode."""
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
