"""A biLM with an output layer: what pretraining trains."""

from __future__ import annotations

from typing import Optional

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..bilm import BiLM
from ..bilm.lstm_function import LayerState
from ..bilm.packing import to_device
from ..bilm.token_encoder import CharCNN
from .batches import Batch
from .corpus import Corpus
from .losses import LossConfig, Rows, Samples, build_output_layer


class LanguageModel(nn.Module):
    """Predicts the next word and the previous one (Peters et al. 2018, section 3.1).

    bilm (BiLM): The model below.
    n_words (int): Words that are predicted, special ones included.
    loss (LossConfig): The output layer.
    dropout (float): Of each LSTM layer's input, and of the top layer's output.
    """

    def __init__(self, bilm: BiLM, n_words: int, loss: LossConfig, dropout: float = 0.1) -> None:
        super().__init__()
        self.bilm = bilm
        self.dropout = dropout
        encoder = bilm.token_encoder
        embedding = None if isinstance(encoder, CharCNN) else encoder.embedding.weight
        self.output = build_output_layer(loss, n_words, bilm.config.projection_dim, embedding)

    def forward(
        self,
        batch: Batch,
        corpus: Corpus,
        samples: Optional[Samples] = None,
        states: Optional[list[LayerState]] = None,
        rows: Optional[Rows] = None,
    ) -> Tensor:
        """The loss that training minimises.

        batch (Batch): Sentences.
        corpus (Corpus): Where the characters of the types are.
        samples (Optional[Samples]): Of the output layer's `draw`.
        states (Optional[list]): Of the LSTMs before the batch, changed in place to those after it;
            see `BiLSTM.forward`.
        rows (Optional[Rows]): See `Softmax.forward`.
        RETURNS (Tensor): The sum over both directions, in nats.
        """
        top = self._top(batch, corpus, self.dropout, states)
        # Both directions in one product.
        targets = torch.from_numpy(batch.targets).flatten()
        return self.output(top.flatten(0, 1), targets, samples, rows)

    @torch.no_grad()
    def log_likelihood(
        self, batch: Batch, corpus: Corpus, states: Optional[list[LayerState]] = None
    ) -> Tensor:
        """batch, corpus, states: As for `forward`.
        RETURNS (Tensor): The exact log probability of each prediction, in nats, without dropout;
            shape (2, rows)."""
        tops = self._top(batch, corpus, 0.0, states)
        pairs = zip(tops, torch.from_numpy(batch.targets))
        return torch.stack([self.output.log_likelihood(h, targets) for h, targets in pairs])

    def new_states(self, n_rows: int) -> list[LayerState]:
        """RETURNS (list): Zero states of the LSTM layers for so many rows."""
        config, weight = self.bilm.config, next(self.parameters())

        def zeros(width: int) -> Tensor:
            return weight.new_zeros(2, n_rows, width)

        return [
            (zeros(config.projection_dim), zeros(config.lstm.dim))
            for _ in range(config.lstm.n_layers)
        ]

    def _top(
        self,
        batch: Batch,
        corpus: Corpus,
        dropout: float,
        states: Optional[list[LayerState]] = None,
    ) -> Tensor:
        """The top layer of each direction, shape (2, rows, P)."""
        encoder = self.bilm.token_encoder
        if isinstance(encoder, CharCNN):
            ids = numpy.asarray(corpus.characters[batch.types], dtype=numpy.int64)
            types = encoder.encode(ids, corpus.lengths[batch.types])
        else:
            rows = numpy.where(batch.types < corpus.n_vocabulary, batch.types, 2)
            types = encoder.embedding(to_device(rows, self.bilm.device))
        # Autocast gives the types in half precision, which is too coarse for cells.
        types = types.to(self.bilm.dtype)
        x = types[to_device(batch.inputs, types.device)]
        top = self.bilm.lstm(x, batch.sizes, dropout, states)[-1]
        return F.dropout(top, dropout) if dropout else top
