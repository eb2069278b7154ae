"""Output layers of the language model, and their losses: a module each.

A module has what `Softmax` has: `n_words`, `start_from`, `draw`, `forward` and `log_likelihood`.
"""

from __future__ import annotations

from typing import Any, Optional

from torch import nn

from .adaptive import AdaptiveSoftmax
from .softmax import Samples, Softmax, draw_log_uniform

__all__ = ["AdaptiveSoftmax", "Samples", "Softmax", "build_output", "draw_log_uniform"]


def build_output(loss: Any, n_words: int, width: int, tied: Optional[nn.Parameter]) -> nn.Module:
    """Build the output layer that a [pretraining.loss] section describes.

    width (int): P.
    tied (Optional[Parameter]): The word embeddings, if the weights are tied to them.
    """
    # A small vocabulary is a single cluster.
    if loss.name == "adaptive" and min(loss.cutoffs, default=0) < n_words:
        return AdaptiveSoftmax(n_words, width, loss.cutoffs)
    return Softmax(n_words, width, loss.n_samples if loss.name == "sampled" else None, tied)
