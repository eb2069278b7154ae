"""Reading and writing biLM weights.

A format is a module of this folder and an entry of `FORMATS`. Detection, errors and the choices of
`spacy elmo export` follow from that. The order is that of detection: those that look at more bytes
come first, folders last. A module has

NAME (str): What `spacy elmo info` prints and `spacy elmo export --format` takes.
DESCRIPTION (str): What the format is, for help texts.
SUFFIXES (tuple[str, ...]): Of files of weights in a folder. Empty for folders and archives.
detect(path, start) -> bool: Whether a path is of this format, from its first 512 bytes. For a
    folder these are empty. A file that is cut off after 8 bytes is of the format, too: `read` says
    what is wrong with it. Options are not.
read(path, options) -> BiLM: Reads a path that was detected, on the CPU. `options` is the path of an
    options file, if the user has named one; see `options.read_files_beside`. Options in a file take
    precedence over those in the weights. Word input needs `vocab.txt` beside the weights, unless it
    is in them. Sets `trained_mix`, if the weights come with one. Raises a ValueError that names the
    file, with the words "not a complete" if it is cut off.
write(bilm, folder, *, half=False): Writes a folder, as a whole: `options.json`, `weights` + one of
    SUFFIXES, and `vocab.txt` for word input (`write_options` writes two of them). With `half`, the
    weights were rounded to float16 (`round_to_half`), which the format may use. What it has no
    place for, such as a trained mix, is left out. Optional.

If a format has more than a biLM, such as an output layer, further functions of its module read it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import Optional, Union

import torch

from ..bilm.model import BiLM
from . import allennlp, bilm_tf, hdf5, manylangs, native
from .archives import unpacked
from .foreign import describe_foreign
from .nlpl import read_origin
from .options import OPTIONS, VOCABULARY, read_options, read_vocabulary, write_options
from .parameters import fits_half, fits_int8, round_to_half, round_to_int8

__all__ = [
    "FORMATS",
    "OPTIONS",
    "VOCABULARY",
    "allennlp",
    "bilm_tf",
    "find_format",
    "fits_half",
    "fits_int8",
    "hdf5",
    "load",
    "native",
    "read_origin",
    "read_options",
    "read_vocabulary",
    "round_to_half",
    "round_to_int8",
    "unpacked",
    "write_options",
]

FORMATS: tuple[ModuleType, ...] = (
    native,
    hdf5,
    manylangs,
    bilm_tf,
    allennlp,
)


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
        except MemoryError as error:
            raise ValueError(f"not enough memory for the weights in {source}: {error}") from error
        if (origin := read_origin(source)) is not None and origin.is_lemmatized:
            warnings.warn(
                "these weights were trained on lemmas: give them lemmas instead of words",
                stacklevel=2,
            )
    return bilm


def find_format(path: Path) -> tuple[ModuleType, Path]:
    """RETURNS (tuple): The format of the weights, and their path: in a folder with one file of
    weights, that file.
    RAISES (ValueError): If no format is recognised, or if there are several files of weights."""
    if path.is_dir():
        return _find_in_folder(path)
    if not path.exists():
        raise ValueError(f"no such file or folder: {path}")
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder")
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ValueError(f"{path} is empty")
    for format in FORMATS:
        if format.detect(path, start):
            return format, path
    if start.lstrip().startswith(b"{"):
        raise ValueError(f"{path} holds options, not weights: were the two files swapped?")
    if (other := describe_foreign(path)) is not None:
        raise ValueError(f"{path} is {other}")
    names = ", ".join(format.NAME for format in FORMATS)
    raise ValueError(f"{path} is not a complete file of weights in a known format ({names})")


def _find_in_folder(folder: Path) -> tuple[ModuleType, Path]:
    suffixes = sorted({suffix for format in FORMATS for suffix in format.SUFFIXES})
    files = sorted(x for x in folder.iterdir() if x.suffix in suffixes and x.is_file())
    has_options = any(OPTIONS in file.name for file in folder.iterdir())
    if not has_options and (other := describe_foreign(folder)) is not None:
        raise ValueError(f"{folder} is {other}")
    for candidates in ([x for x in files if x.stem == "weights"], files):
        if len(candidates) == 1:
            return find_format(candidates[0])
    if not files:
        for format in FORMATS:
            if format.detect(folder, b""):
                return format, folder
    if not files and (missing := manylangs.missing_files(folder)):
        raise ValueError(f"{folder} is {manylangs.DESCRIPTION}, but lacks {', '.join(missing)}")
    names = ", ".join(path.name for path in files) or "none"
    if others := sorted(path.name for path in folder.iterdir() if path not in files):
        names += f" (but {', '.join(others[:8])}{', ...' if len(others) > 8 else ''})"
    several = ", ".join(format.NAME for format in FORMATS if not format.SUFFIXES)
    raise ValueError(
        f"{folder} must hold one file of weights ({', '.join(suffixes)}), or all files of another "
        f"format ({several}; docs/families.md says which), found {names}"
    )
