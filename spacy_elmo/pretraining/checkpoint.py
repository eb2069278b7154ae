"""Checkpoints: folders that are complete or not there.

| file                   | what                                                              |
|------------------------|-------------------------------------------------------------------|
| model.safetensors      | the weights of the biLM and of the output layer                   |
| optimizer.safetensors  | the optimizer's state, as PARAMETER/NAME                          |
| carried.safetensors    | the LSTMs' states, as LAYER/NAME; none without carry_state        |
| state.json             | step, position in the data, history, config, corpus               |
| checksums.json         | sha256 of the others: a folder without it, or with others, is not |
|                        | used                                                              |

Random numbers need no state: those of a step depend on the seed and the step alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..bilm.lstm_function import LayerState
from ..files import atomic_folder, clear_temporary, save_tensors, sha256

_STATE, _CHECKSUMS = "state.json", "checksums.json"
_SEPARATOR = "/"
_NAME = re.compile(r"step-\d{8,}")
# What kills have left in the folder of a run: temporary files and folders, checkpoints that were
# being removed, and temporary folders of earlier versions.
_LEFT = re.compile(
    r"\.((?P<name>step-\d{8,}|model-(best|last)(\.head)?|log\.jsonl|curves\.png)"
    r"\.[0-9a-f]{12}\.tmp"
    r"|step-\d{8,}\.old"
    r"|(step-\d{8,}|model-(best|last)(\.head)?)\.[a-z0-9_]{8})"
)


class Checkpoint(NamedTuple):
    """What a checkpoint holds.

    model, optimizer, carried (dict): Tensors by name.
    state (dict): Everything else.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    carried: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    carried: Sequence[LayerState],
    state: dict[str, Any],
) -> None:
    """Write a checkpoint. When this returns, it is on the disk.

    RAISES (OSError): If it cannot be written; then nothing is left of it.
    """
    with atomic_folder(folder) as new:
        tensors = {name: value.detach().contiguous() for name, value in _weights(model).items()}
        save_tensors(tensors, new / "model.safetensors")
        save_tensors(_optimizer_tensors(model, optimizer), new / "optimizer.safetensors")
        save_tensors(_carried_tensors(carried), new / "carried.safetensors")
        _write_json(state, new / _STATE)
        sums = {path.name: sha256(path) for path in sorted(new.iterdir())}
        _write_json(sums, new / _CHECKSUMS)


def update_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a checkpoint; its tensors stay."""
    sums = _read_json(folder / _CHECKSUMS)
    with atomic_folder(folder) as new:
        for path in folder.iterdir():
            if path.name in (_STATE, _CHECKSUMS):
                continue
            try:
                os.link(path, new / path.name)
            except OSError:  # Not every file system has links.
                shutil.copy(path, new / path.name)
        _write_json(state, new / _STATE)
        _write_json({**sums, _STATE: sha256(new / _STATE)}, new / _CHECKSUMS)


def load(folder: Path) -> Checkpoint:
    """RAISES (ValueError): If the checkpoint is not complete."""
    try:
        sums = _read_json(folder / _CHECKSUMS)
        for name, expected in sums.items():
            if sha256(folder / name) != expected:
                raise ValueError(f"{name} is damaged")
        return Checkpoint(
            load_file(folder / "model.safetensors"),
            load_file(folder / "optimizer.safetensors"),
            load_file(folder / "carried.safetensors"),
            _read_json(folder / _STATE),
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"the checkpoint {folder} cannot be used: {error}") from error


def all_checkpoints(output: Path) -> list[Path]:
    """RETURNS (list): The folders of checkpoints, oldest first, whether complete or not. A user's
    own, such as step-00000020-backup, are none."""
    found = [path for path in output.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_step_of)


def path_of(output: Path, step: int) -> Path:
    return output / f"step-{step:08d}"


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def clean(output: Path, keep: int, step: int) -> None:
    """Remove all checkpoints but the last ones.

    step (int): Where the training is: later checkpoints are damaged ones that it went back behind.
    """
    found = all_checkpoints(output)
    later = [path for path in found if _step_of(path) > step]
    for path in [*later, *found[: len(found) - len(later)][:-keep]]:
        # Under its name, a checkpoint is complete or not there, even if this is killed halfway.
        path.rename(path.with_name(f".{path.name}.old"))
    clear(output)


def clear(output: Path) -> None:
    """Remove what killed runs have left half-written or half-removed in the folder of a run. No
    other process may write there meanwhile."""
    for path in list(output.iterdir()):
        match = _LEFT.fullmatch(path.name)
        if match is not None and match["name"]:
            clear_temporary(output, match["name"])
        elif match is not None:
            shutil.rmtree(path, ignore_errors=True)


def restore(
    checkpoint: Checkpoint, model: nn.Module, optimizer: Optional[torch.optim.Optimizer]
) -> None:
    """Put a checkpoint's tensors where they belong.

    RAISES (ValueError): If they are not those of this model.
    """
    weights = _weights(model)
    if {k: v.shape for k, v in checkpoint.model.items()} != {
        k: v.shape for k, v in weights.items()
    }:
        raise ValueError("the checkpoint's weights are those of another model")
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(checkpoint.model[name])
    if optimizer is None:
        return
    for name, parameter in model.named_parameters():
        found = {
            key.rsplit(_SEPARATOR, 1)[1]: value
            for key, value in checkpoint.optimizer.items()
            if key.rsplit(_SEPARATOR, 1)[0] == name
        }
        if found:
            state = {
                # The step counts of torch's optimizers stay on the CPU.
                key: value if key == "step" else value.to(parameter.device)
                for key, value in found.items()
            }
            optimizer.state[parameter] = state


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf8"))


def _write_json(value: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")


def carried_states(checkpoint: Checkpoint) -> list[LayerState]:
    """RETURNS (list): The LSTMs' states, of all rows."""
    found = checkpoint.carried
    return [
        (found[f"{layer}{_SEPARATOR}output"], found[f"{layer}{_SEPARATOR}cell"])
        for layer in range(len(found) // 2)
    ]


def _carried_tensors(carried: Sequence[LayerState]) -> dict[str, Tensor]:
    return {
        f"{layer}{_SEPARATOR}{name}": value.contiguous()
        for layer, state in enumerate(carried)
        for name, value in zip(("output", "cell"), state)
    }


def _weights(model: nn.Module) -> dict[str, Tensor]:
    # Without duplicates: tied weights are one tensor, which safetensors stores once.
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}{_SEPARATOR}{key}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
