"""Checkpoints: folders that are complete or absent.

| file                   | contents                                                          |
|------------------------|-------------------------------------------------------------------|
| model.safetensors      | the weights of the biLM and of the output layer                   |
| optimizer.safetensors  | the optimizer's state, as PARAMETER/NAME                          |
| carried.safetensors    | the LSTMs' states, as LAYER/NAME; none without carry_state        |
| state.json             | step, position in the data, history, config, corpus               |
| checksums.json         | sha256 of the other files; without it, or if one has changed, the |
|                        | checkpoint is not used                                            |

Random numbers need no state: those of a step depend only on the seed and the step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..bilm.lstm_layer import LayerState
from ..files import atomic_folder, remove_folder, save_tensors, sha256
from .config import RECORDED_SETTINGS, RunConfig, diff_configs
from .corpus import Corpus
from .distributed import any_rank, broadcast

_STATE, _CHECKSUMS = "state.json", "checksums.json"
_NAME = re.compile(r"step-\d{8,}")


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    carried: Sequence[LayerState],
    state: dict[str, Any],
) -> None:
    """Write a checkpoint. When this returns, it is on the disk."""
    tensors = {
        "model": _weights(model),
        "optimizer": {
            f"{name}/{key}": value
            for name, parameter in model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
        },
        "carried": {
            f"{layer}/{name}": value
            for layer, layer_state in enumerate(carried)
            for name, value in zip(("output", "cell"), layer_state)
        },
    }
    with atomic_folder(folder) as new:
        for name, values in tensors.items():
            contiguous = {key: value.detach().contiguous() for key, value in values.items()}
            save_tensors(contiguous, new / f"{name}.safetensors")
        _write_json(new / _STATE, state)
        sums = {path.name: sha256(path) for path in sorted(new.iterdir())}
        _write_json(new / _CHECKSUMS, sums)


def update_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a checkpoint; its tensors stay."""
    sums = _read_json(folder / _CHECKSUMS)
    with atomic_folder(folder) as new:
        for path in folder.glob("*.safetensors"):
            try:
                os.link(path, new / path.name)
            except OSError:  # Not every file system has links.
                shutil.copy(path, new / path.name)
        _write_json(new / _STATE, state)
        _write_json(new / _CHECKSUMS, {**sums, _STATE: sha256(new / _STATE)})


def read_state(folder: Path) -> dict[str, Any]:
    return _read_json(folder / _STATE)


def find_last(output: Path) -> Optional[Path]:
    """RETURNS (Optional[Path]): The last complete checkpoint; None if there is no folder.
    RAISES (ValueError): If no folder is complete."""
    paths = all_checkpoints(output)
    for path in reversed(paths):
        try:
            for name, expected in _read_json(path / _CHECKSUMS).items():
                if sha256(path / name) != expected:
                    raise ValueError(f"{name} is damaged")
            return path
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the checkpoint {path} cannot be used: {error}; using the one before", stacklevel=3
            )
    if paths:
        raise ValueError(f"no checkpoint in {output} can be used")
    return None


def check_same_everywhere(checkpoint: Optional[Path], device: torch.device) -> None:
    """RAISES (ValueError): In all processes, if one of them finds another one than rank 0."""
    step = -1 if checkpoint is None else _get_step(checkpoint)
    if any_rank(step != broadcast(step, device), device):
        found = "no checkpoint" if checkpoint is None else checkpoint.name
        raise ValueError(
            f"the processes find different checkpoints ({found} in one of them): put the folder "
            "that rank 0 writes onto a disk that all machines share, or copy it to the others"
        )


def all_checkpoints(output: Path) -> list[Path]:
    """RETURNS (list): The folders of checkpoints, oldest first, whether complete or not. Folders
    such as step-00000020-backup, which are the user's own, are not among them."""
    paths = [path for path in output.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=_get_step)


def checkpoint_path(output: Path, step: int) -> Path:
    return output / f"step-{step:08d}"


def _get_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def remove_old(output: Path, keep: int, step: int) -> None:
    """Remove all checkpoints but the last ones up to a step. Later ones are damaged ones that were
    not used."""
    paths = all_checkpoints(output)
    kept = [path for path in paths if _get_step(path) <= step][-keep:]
    for path in set(paths).difference(kept):
        remove_folder(path)


@torch.no_grad()
def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[LayerState]:
    """Copy a checkpoint's tensors into a model and its optimizer.

    RETURNS (list): The LSTMs' states, of all rows.
    """
    saved = load_file(folder / "model.safetensors")
    for name, value in _weights(model).items():
        value.copy_(saved[name])
    parameters = dict(model.named_parameters())
    for full, value in load_file(folder / "optimizer.safetensors").items():
        name, key = full.rsplit("/", 1)
        # The step counts of torch's optimizers stay on the CPU, unless these are fused.
        on_cpu = key == "step" and not any(g.get("fused") for g in optimizer.param_groups)
        device = "cpu" if on_cpu else parameters[name].device
        # A copy: `value` is a map of the file.
        optimizer.state[parameters[name]][key] = value.to(device, copy=True)
    carried = load_file(folder / "carried.safetensors")
    layers = range(len(carried) // 2)
    return [(carried[f"{layer}/output"], carried[f"{layer}/cell"]) for layer in layers]


def check_same_training(
    state: dict[str, Any], config: RunConfig, corpus: Corpus
) -> dict[str, tuple[Any, Any]]:
    """RETURNS (dict): What has changed of RECORDED_SETTINGS; see `diff_configs`.
    RAISES (ValueError): If the state of a checkpoint is of another config or corpus."""
    changes = diff_configs(state["config"], config.to_dict())
    if refused := sorted(changes.keys() - RECORDED_SETTINGS):
        differences = (f"{name}: {changes[name][0]} -> {changes[name][1]}" for name in refused)
        raise ValueError(
            f"cannot resume with another config. It differs in {'; '.join(differences)}"
        )
    if state["corpus"] != corpus.manifest["sha256"]:
        raise ValueError(
            f"cannot resume: the corpus {corpus.folder} is not the one the run began with"
        )
    return changes


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # Without duplicates: tied weights are one tensor, which safetensors stores once.
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf8"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")
