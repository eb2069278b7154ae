"""Reading and writing biLM weights, one module per on-disk format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch

from ..config import BiLMConfig
from ..model import BiLM
from . import allennlp, native

OPTIONS = "options.json"
VOCABULARY = "vocab.txt"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_PICKLE_MAGIC = (b"PK\x03\x04", b"\x80")
_WEIGHT_SUFFIXES = (".safetensors", ".hdf5", ".h5")


@torch.inference_mode(False)  # Else the weights could never be trained.
def load(path: Union[str, Path], options: Optional[Path] = None) -> BiLM:
    """Read a biLM from a folder or a file of weights.

    path (Union[str, Path]): A folder that holds `options.json` and the weights, or a weights file
        (HDF5 as published by AllenNLP and bilm-tf, or safetensors).
    options (Optional[Path]): The options file. By default it is looked for beside the weights, and
        goes before the options that our own safetensors files hold themselves.
    RETURNS (BiLM): The model, on the CPU.
    RAISES (ValueError): If a file is missing, damaged, of another kind, or contradicts another.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"no such file or folder: {path}")
    if path.is_dir():
        folder, weights = path, find_weights(path)
    else:
        folder, weights = path.parent, path
    kind = detect(weights)
    if kind == "options":
        raise ValueError(f"{weights} holds options, not weights: were the two files swapped?")
    if options is None:
        options = _find_options(folder, weights)
    if options is None and kind == "hdf5":
        raise ValueError(
            f"no options for {weights}: put {OPTIONS} (or the published *_options.json) beside it"
        )
    config = None if options is None else read_options(options)
    word_input = config is not None and config.char_cnn is None
    vocabulary = read_vocabulary(folder / VOCABULARY) if word_input else None
    if kind == "hdf5":
        assert config is not None
        return allennlp.read(weights, config, vocabulary)
    return native.read(weights, config, vocabulary)


def read_options(path: Path) -> BiLMConfig:
    """RETURNS (BiLMConfig): The contents of an `options.json`.
    RAISES (ValueError): If the file is missing, is not JSON or has impossible values."""
    if not path.is_file():
        raise ValueError(f"no such options file: {path}")
    if path.stat().st_size and detect(path) not in ("options", "unknown"):
        raise ValueError(f"{path} holds weights, not options: were the two files swapped?")
    try:
        options: Any = json.loads(path.read_text(encoding="utf8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    try:
        return BiLMConfig.from_options(options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_vocabulary(path: Path) -> list[str]:
    """RETURNS (list): The words of a bilm-tf vocabulary, one per line.
    RAISES (ValueError): If the file is missing or is not UTF-8."""
    if not path.is_file():
        raise ValueError(f"a biLM with word input needs its vocabulary: no such file: {path}")
    try:
        text = path.read_bytes().decode("utf8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    # Not splitlines(): a word may hold any character but the line feed.
    words = text.removesuffix("\n").split("\n")
    if all(word.endswith("\r") for word in words):  # Written on Windows.
        words = [word.removesuffix("\r") for word in words]
    return words


def write_options(config: BiLMConfig, vocabulary: Optional[Sequence[str]], folder: Path) -> None:
    """Write `options.json`, and `vocab.txt` if there is a vocabulary."""
    text = json.dumps(config.to_options(), indent=2) + "\n"
    (folder / OPTIONS).write_text(text, encoding="utf8")
    if vocabulary is not None:
        with (folder / VOCABULARY).open("w", encoding="utf8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in vocabulary)


def detect(path: Path) -> str:
    """Tell a file's kind by its first bytes.

    RETURNS (str): "hdf5", "safetensors", "options" or "unknown".
    RAISES (ValueError): If it is empty or a pickle.
    """
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise ValueError(f"{path} is empty")
    # The length of the header, then the header as JSON. Before pickles: a length may begin as they
    # do, with 0x80.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return "safetensors"
    if start.startswith(_PICKLE_MAGIC):
        raise ValueError(
            f"{path} is a pickle (a PyTorch checkpoint?), which may execute code when read: "
            "refused. Convert it to safetensors where you trust it"
        )
    if start.startswith(_HDF5_MAGIC):
        return "hdf5"
    return "options" if start.lstrip().startswith(b"{") else "unknown"


def find_weights(folder: Path) -> Path:
    """RETURNS (Path): The folder's file of weights.
    RAISES (ValueError): If there is none, or there are several and none is called `weights`."""
    found = sorted(
        path for path in folder.iterdir() if path.suffix in _WEIGHT_SUFFIXES and path.is_file()
    )
    named = [path for path in found if path.stem == "weights"]
    if len(named) == 1:
        return named[0]
    if len(found) == 1:
        return found[0]
    inside = ", ".join(path.name for path in found) or "none"
    raise ValueError(
        f"{folder} must hold one file of weights ({', '.join(_WEIGHT_SUFFIXES)}), found {inside}"
    )


def _find_options(folder: Path, weights: Path) -> Optional[Path]:
    published = weights.name.replace("_weights", "_options")
    for name in (Path(published).with_suffix(".json").name, OPTIONS):
        if (folder / name).is_file():
            return folder / name
    return None
