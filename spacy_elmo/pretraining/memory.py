"""An estimate of the memory that a training needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import torch

from ..bilm import CharCNNConfig
from .config import RunConfig
from .corpus import Corpus
from .init_model import build_model

_FLOAT = 4  # Bytes.
# Numbers kept for the backward pass, per word, layer and direction: the gates, the cell before
# and after clipping, and the output of the nonlinearity; projections before and after clipping.
_CELLS, _PROJECTIONS = 8, 4
# Those of a character CNN: windows of characters per word type and filter, vectors per highway, and
# how often a type occurs in a batch of some thousand words.
_WINDOWS, _HIGHWAY, _REPEATED = 12, 6, 3
# A process with PyTorch and spaCy, logits included.
_PROCESS = 550 * 2**20


def estimate_memory(config: RunConfig, corpus: Corpus) -> tuple[int, int]:
    """Estimate the memory of one process, besides that of the libraries; the text stays on disk.

    RETURNS (tuple): Bytes of weights, gradients and optimizer; and of a batch's activations.
    """
    with torch.device("meta"):
        model, _ = build_model(config, corpus)
    settings, lstm = config.pretraining, model.bilm.config.lstm
    is_adamw = settings.optimizer.name == "adamw"
    sizes = [parameter.numel() for parameter in model.parameters()]
    # AdamW keeps two numbers per weight, Adagrad one.
    numbers = (4 if is_adamw else 3) * sum(sizes)
    if model.output.reads_rows and not is_adamw:
        # No gradient of the whole output layer.
        numbers -= sum(parameter.numel() for parameter in model.output.parameters())
        sizes = [parameter.numel() for parameter in model.bilm.parameters()]
    per_layer = _CELLS * lstm.dim + _PROJECTIONS * lstm.projection_dim
    per_word = 2 * lstm.n_layers * per_layer + _per_type(model.bilm.config.char_cnn) // _REPEATED
    words = settings.batch_words
    if not settings.carry_state:
        # A sentence is never cut.
        words = max(words, int(corpus.train.lengths.max()))
    # The optimizer computes with as many numbers as the largest parameter has, when the batch's
    # activations are already freed.
    return numbers * _FLOAT, max(words * per_word, max(sizes)) * _FLOAT


def _per_type(config: Optional[CharCNNConfig]) -> int:
    """RETURNS (int): Numbers that a character CNN keeps per word type for the backward pass."""
    if config is None:
        return 0
    windows = sum(width * config.embedding_dim + number for width, number in config.filters)
    return _WINDOWS * windows + _HIGHWAY * config.n_highway * config.n_filters


def check_memory(config: RunConfig, corpus: Corpus, device: str, n_processes: int = 1) -> None:
    """Check a training, unless it begins with the weights of a model.

    RAISES (ValueError): If it needs more than the free memory.
    """
    free = free_memory(device)
    if free is None or config.paths.init_from is not None:
        return
    parameters, activations = estimate_memory(config, corpus)
    # On a GPU, every process has a device of its own.
    needed = (parameters + activations + _PROCESS) * (n_processes if device == "cpu" else 1)
    if needed > free:
        raise ValueError(
            f"this training needs about {_gb(needed)}: {_gb(parameters)} for weights, "
            f"gradients and optimizer, {_gb(activations)} for a batch of "
            f"{config.pretraining.batch_words} words (per process); {_gb(free)} are free. Lower "
            "pretraining.batch_words (and raise pretraining.accumulate_gradient), or choose a "
            "smaller model"
        )


def free_memory(device: str) -> Optional[int]:
    """RETURNS (Optional[int]): The free bytes; None if the system does not tell."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    if device != "cpu":
        return None
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # Not Linux; not POSIX.
        return None


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
