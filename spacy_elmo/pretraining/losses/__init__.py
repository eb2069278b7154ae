"""Output layers of the language model, and their losses: a module each, and an entry of `LOSSES`.

A module has what `Softmax` has: `n_words`, `reads_rows` (if it is true, also `copy_rows`), `draw`,
`forward` and `log_likelihood`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from torch import nn

from .adaptive import AdaptiveSoftmax
from .softmax import Samples, Softmax, draw_log_uniform

OutputLayer = Softmax | AdaptiveSoftmax
# By pretraining.loss.name: a function of the section, the number of words, the width P, and the
# word embeddings if the weights are tied to them.
LOSSES: dict[str, Callable[[Any, int, int, Optional[nn.Parameter]], OutputLayer]] = {
    "sampled": lambda loss, n, width, tied: Softmax(n, width, loss.n_samples, tied),
    "full": lambda loss, n, width, tied: Softmax(n, width, None, tied),
    "adaptive": lambda loss, n, width, tied: (
        AdaptiveSoftmax(n, width, loss.cutoffs)
        if min(loss.cutoffs, default=0) < n
        else Softmax(n, width, None, tied)  # A small vocabulary is a single cluster.
    ),
}

__all__ = [
    "LOSSES", "AdaptiveSoftmax", "OutputLayer", "Samples", "Softmax", "draw_log_uniform",
]  # fmt: skip
