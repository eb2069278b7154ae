"""Reading and writing biLM weights, one module per on-disk format."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Union

import torch

from ..model import BiLM
from . import allennlp, native
from .detection import detect, other_folder
from .options import OPTIONS, VOCABULARY, read_options, read_vocabulary, write_options
from .parameters import fits_half, round_to_half

__all__ = [
    "OPTIONS",
    "VOCABULARY",
    "allennlp",
    "detect",
    "find_weights",
    "fits_half",
    "load",
    "native",
    "read_options",
    "read_vocabulary",
    "round_to_half",
    "write_options",
]

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
    elif path.is_file():
        folder, weights = path.parent, path
    else:
        raise ValueError(f"{path} is neither a file nor a folder")
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
    try:
        if kind == "hdf5":
            assert config is not None
            return allennlp.read(weights, config, vocabulary)
        return native.read(weights, config, vocabulary)
    except MemoryError as error:
        raise ValueError(f"not enough memory for the weights in {weights}: {error}") from error


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
    if not found and (other := other_folder(folder)) is not None:
        raise ValueError(f"{folder} is {other}")
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
