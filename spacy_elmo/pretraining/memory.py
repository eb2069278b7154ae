"""How much memory a training will need, told before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from ..bilm import CharCNNConfig
from .config import RunConfig
from .corpus import open_corpus

_FLOAT = 4
# Activations that wait for the backward pass, per word, layer and direction: the gates, the cell
# before and after clipping, and the output of the nonlinearity; projections before and after.
_CELLS, _PROJECTIONS = 8, 4
# Those of a character CNN: windows of characters per word type and filter, vectors per highway, and
# how often a type occurs in a batch of some thousand words.
_WINDOWS, _HIGHWAY, _REPEATED = 12, 6, 3
# What a process with PyTorch and spaCy needs beside that, logits included.
_PROCESS = 550 * 2**20


class Memory(NamedTuple):
    """An estimate, in bytes.

    parameters (int): Weights, their gradients and what the optimizer keeps.
    activations (int): What a batch keeps for its backward pass.
    """

    parameters: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.activations + _PROCESS


def estimate(config: RunConfig) -> Memory:
    """Estimate the memory of one process, without the text, which stays on disk.

    config (RunConfig): What to train.
    RAISES (ValueError): If there is no such corpus, or the model cannot be built.
    """
    from .initial import build_model

    assert config.corpus is not None
    corpus = open_corpus(config.corpus, check=False)
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
    # When the optimizer computes with as many numbers as its largest parameter has, the batch's
    # activations are gone.
    return Memory(numbers * _FLOAT, max(words * per_word, max(sizes)) * _FLOAT)


def _per_type(config: CharCNNConfig | None) -> int:
    """RETURNS (int): Numbers that a character CNN keeps per word type for the backward pass."""
    if config is None:
        return 0
    windows = sum(width * config.embedding_dim + number for width, number in config.filters)
    return _WINDOWS * windows + _HIGHWAY * config.n_highway * config.n_filters


def check_memory(config: RunConfig, device: str = "cpu", n_processes: int = 1) -> None:
    """RAISES (ValueError): If a training will hardly fit into the memory that is free."""
    if config.corpus is None or config.init_from is not None:
        return
    found, free = estimate(config), free_memory(device)
    # On a GPU, every process has one of its own.
    needed = found.total * (1 if device.startswith("cuda") else n_processes)
    if free is not None and needed > free:
        raise ValueError(
            f"this training needs about {_gb(needed)}: {_gb(found.parameters)} for weights, "
            f"gradients and optimizer, {_gb(found.activations)} for a batch of "
            f"{config.pretraining.batch_words} words (per process); {_gb(free)} are free. Lower "
            "pretraining.batch_words (and raise pretraining.accumulate_gradient), or choose a "
            "smaller model"
        )


def free_memory(device: str = "cpu") -> int | None:
    """RETURNS (Optional[int]): The bytes that can be had; None if the system does not tell."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # Not Linux; not POSIX.
        return None


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
