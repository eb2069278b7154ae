"""Reading and writing biLM weights.

A format is a module of this folder and a name in `_MODULES`: detection, errors and the choices of
`spacy elmo export` follow from that. The order is that of detection: those that look at more bytes
come first, folders last. A module has

NAME (str): What `spacy elmo info` prints and `spacy elmo export --format` takes.
DESCRIPTION (str): What the format is, for messages and help texts.
SUFFIXES (tuple[str, ...]): The suffixes of a file of weights in a folder. Empty for folders.
detect(path, start) -> bool: Whether a path is of this format, from its first 512 bytes; for a
    folder these are empty. Also a file that is cut off after 8 bytes is of the format.
read(path, options) -> BiLM: Reads a path that was detected, on the CPU. `options` is the path of an
    options file, if the user has named one; see `options.read_files_beside`. Options in a file take
    precedence over those in the weights. Sets `trained_mix`, if the weights come with one. Raises
    any error: `load` adds the name of the file and of the format.
write(bilm, folder, *, half=False): Writes a folder, as a whole: `options.json`, `weights` + one of
    SUFFIXES, and `vocab.txt` for word input (`write_options` writes two of them). With `half`, the
    weights were rounded to float16 (`round_to_half`), which the format may use. What it has no
    place for, such as a trained mix, is left out. Optional.
read_output_layer(path) -> tuple: Reads the softmax of the language model: its words, weights
    (words, P), biases (words,), and whether the weights are the word embeddings. Optional.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Optional, Union

import torch

from ..bilm.model import BiLM
from .archives import unpacked
from .int8 import fits_int8, round_to_int8
from .options import OPTIONS, VOCABULARY, read_options, read_origin, read_vocabulary, write_options
from .other_formats import describe_other
from .parameters import fits_half, round_to_half

__all__ = [
    "FORMATS",
    "OPTIONS",
    "VOCABULARY",
    "find_format",
    "fits_half",
    "fits_int8",
    "load",
    "read_origin",
    "read_options",
    "read_vocabulary",
    "round_to_half",
    "round_to_int8",
    "unpacked",
    "write_options",
]

_MODULES = ("safetensors_format", "hdf5", "manylangs", "bilm_tf", "allennlp")
FORMATS: tuple[ModuleType, ...] = tuple(import_module(f".{x}", __package__) for x in _MODULES)


@torch.inference_mode(False)  # Else the weights could never be trained.
def load(path: Union[str, Path], options: Optional[Path] = None) -> BiLM:
    """Read a biLM.

    path (Union[str, Path]): Weights in one of the formats, or a folder with one file of weights;
        also packed, as a zip or tar archive.
    options (Optional[Path]): The options file. By default it is found beside the weights, and takes
        precedence over the options in a safetensors file.
    RETURNS (BiLM): The model, on the CPU.
    RAISES (ValueError): If a file is missing, damaged, of another kind, or contradicts another.
    """
    with unpacked(Path(path)) as unpacked_path:
        format, source = find_format(unpacked_path)
        try:
            bilm = format.read(source, options)
        except Exception as error:  # For a damaged file, libraries raise any.
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            reason = reason or type(error).__name__
            raise ValueError(
                f"{source} cannot be read as {format.DESCRIPTION}, or is not complete: {reason}"
            ) from error
        if read_origin(source).get("is_lemmatized"):
            message = "these weights were trained on lemmas: give them lemmas instead of words"
            warnings.warn(message, stacklevel=2)
    return bilm


def find_format(path: Path) -> tuple[ModuleType, Path]:
    """RETURNS (tuple): The format of the weights, and their path: in a folder with one file of
    weights, that file.
    RAISES (ValueError): If no format is recognised, or if there are several files of weights."""
    if path.is_dir():
        return _find_in_folder(path)
    if not path.is_file():
        raise ValueError(f"no such file or folder: {path}")
    with path.open("rb") as file:
        start = file.read(512)
    for format in FORMATS:
        if start and format.detect(path, start):
            return format, path
    names = ", ".join(format.NAME for format in FORMATS)
    other = f"not a complete file of weights in a known format ({names})"
    raise ValueError(f"{path} is {describe_other(path) or other}")


def _find_in_folder(folder: Path) -> tuple[ModuleType, Path]:
    suffixes = sorted({suffix for format in FORMATS for suffix in format.SUFFIXES})
    names = sorted(path.name for path in folder.iterdir())
    files = [folder / x for x in names if x.endswith(tuple(suffixes)) and (folder / x).is_file()]
    files = [file for file in files if file.stem == "weights"] or files
    other = None if any(OPTIONS in name for name in names) else describe_other(folder)
    if len(files) == 1 and not other:
        return find_format(files[0])
    for format in FORMATS if not files and not other else ():
        if format.detect(folder, b""):
            return format, folder
    several = ", ".join(format.NAME for format in FORMATS if not format.SUFFIXES)
    raise ValueError(
        f"{folder} is {other}"
        if other
        else f"{folder} must hold one file of weights ({', '.join(suffixes)}), or all files of "
        f"another format ({several}; docs/families.md says which), found "
        f"{', '.join(file.name for file in files) or 'none'} among {', '.join(names[:8])}"
    )
