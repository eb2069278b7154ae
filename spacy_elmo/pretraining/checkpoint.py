"""Checkpoints: files step-NUMBER.pt, complete or absent, each a dictionary.

| key                  | contents                                                 |
|----------------------|----------------------------------------------------------|
| model                | the weights of the biLM and of the output layer          |
| optimizer            | the optimizer's state, by the name of the parameter      |
| carried              | the LSTMs' states of all rows; empty without carry_state |
| progress             | `TrainState`: step, position in the data, history        |
| config, bilm, corpus | the settings, the architecture, checksums of the corpus  |

Random numbers need no state: those of a step depend only on the seed and the step.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import torch
from spacy.util import dict_to_dot
from torch import nn

from ..bilm.lstm_layer import LayerState
from ..files import atomic_file
from .config import FIXED_SETTINGS, RunConfig
from .corpus import Corpus

_NAME = re.compile(r"step-(\d{8,})\.pt")


def save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    carried: Sequence[LayerState],
    state: dict[str, Any],
) -> None:
    """Write a checkpoint. When this returns, it is on the disk."""
    states = {name: optimizer.state.get(p, {}) for name, p in model.named_parameters()}
    contents = {**state, "model": model.state_dict(), "optimizer": states, "carried": carried}
    # A Python file reports a full disk as an OSError.
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        torch.save(contents, file)


def load(path: Path) -> dict[str, Any]:
    """RETURNS (dict): The contents, on the CPU. RAISES (ValueError): If the file is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not compare its checksums.
            if name := archive.testzip():
                raise ValueError(f"{name} in it is damaged")
        return torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # Of several kinds, as the damage.
        raise ValueError(f"the checkpoint {path} cannot be used: {error}") from error


def find_last(output: Path) -> Optional[Path]:
    """RETURNS (Optional[Path]): The last checkpoint that is not damaged; None if there is none.
    RAISES (ValueError): If all are damaged."""
    paths = all_checkpoints(output)
    for path in reversed(paths):
        try:
            load(path)
            return path
        except ValueError as error:
            warnings.warn(f"{error}; using the one before", stacklevel=3)
    if paths:
        raise ValueError(f"no checkpoint in {output} can be used")
    return None


def all_checkpoints(output: Path) -> list[Path]:
    """RETURNS (list): The checkpoints, oldest first, whether damaged or not."""
    paths = [path for path in output.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=get_step)


def checkpoint_path(output: Path, step: int) -> Path:
    return output / f"step-{step:08d}.pt"


def get_step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def remove_old(output: Path, keep: int, step: int) -> None:
    """Remove all checkpoints but the last ones up to a step: later ones are damaged."""
    paths = all_checkpoints(output)
    kept = [path for path in paths if get_step(path) <= step][-keep:]
    for path in set(paths).difference(kept):
        path.unlink()


@torch.no_grad()
def restore(contents: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy the weights and the optimizer's state of a checkpoint."""
    model.load_state_dict(contents["model"])
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        for key, value in contents["optimizer"][name].items():
            # The step counts of torch's optimizers stay on the CPU, unless these are fused.
            on_cpu = key == "step" and not is_fused
            optimizer.state[parameter][key] = value.to("cpu" if on_cpu else parameter.device)


def check_same_training(
    contents: dict[str, Any], config: RunConfig, corpus: Corpus
) -> dict[str, tuple[Any, Any]]:
    """RETURNS (dict): The old and the new values of settings that have changed since a checkpoint.
    RAISES (ValueError): If one of FIXED_SETTINGS has, or the corpus."""
    old, new = dict_to_dot(contents["config"]), dict_to_dot(config.to_dict())
    pairs = {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    changes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if refused := [name for name in changes if name.startswith(FIXED_SETTINGS)]:
        differences = "; ".join(f"{x}: {changes[x][0]} -> {changes[x][1]}" for x in refused)
        raise ValueError(f"cannot resume with another config. It differs in {differences}")
    if contents["corpus"] != corpus.identity:
        raise ValueError(f"cannot resume: {corpus.folder} is not the corpus the run began with")
    return changes
