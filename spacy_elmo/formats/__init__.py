"""Reading and writing biLM weights.

A format is a module of this folder and a name in `_MODULES`: detection, errors and the choices of
`spacy elmo export` follow from that. The order is that of detection: those that look at more bytes
come first, folders last. A module has

NAME (str): What `spacy elmo info` prints and `spacy elmo export --format` takes.
DESCRIPTION (str): What the format is, for messages and help texts.
SUFFIXES (tuple[str, ...]): The suffixes of a file of weights in a folder. Empty for folders.
detect(path, start) -> bool: Whether a path is of this format, from its first 512 bytes (of a folder
    empty), even if the file is cut off after 8.
read(path, options) -> BiLM: Reads a path that was detected, on the CPU, with its `trained_mix`. An
    options file that the user names takes precedence over other options. Raises any error: `load`
    adds the name of the file and of the format.
write(bilm, folder, *, half=False): Writes a folder, as a whole: `weights` + one of SUFFIXES, and
    what `write_options` writes. With `half`, the weights were rounded to float16, which the format
    may use. What it has no place for, such as a trained mix, is left out. Optional.
read_output_layer(path) -> tuple: Reads the softmax of the language model: its words, weights
    (words, P), biases (words,), and whether the weights are the word embeddings. Optional.
"""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Optional, Union

import torch

from ..bilm.model import BiLM
from .archives import unpacked
from .int8 import fits_int8, round_to_int8  # noqa: F401 (part of this interface, like the next)
from .options import OPTIONS, VOCABULARY, read_origin, read_vocabulary  # noqa: F401
from .parameters import fits_half, round_to_half  # noqa: F401

_MODULES = ("safetensors_format", "hdf5", "manylangs", "bilm_tf", "allennlp")
FORMATS: tuple[ModuleType, ...] = tuple(import_module(f".{x}", __package__) for x in _MODULES)
# Files of other programs, by their starts; and names of files in folders of other programs.
_OTHER_FILES = {
    rb"\Z": "empty",
    rb"\s*\{": "options or other JSON, not weights: were the two files swapped?",
    rb"\x80|PK.{,512}/data\.pkl": (
        "a pickle (a PyTorch checkpoint?), which may execute code when read: refused. Convert it "
        "to safetensors where you trust it; of ELMoForManyLangs and AllenNLP, give the whole folder"
    ),
    rb"PK|.{257}ustar|\x1f\x8b|BZh|\xfd7zXZ": "packed: unpack it, or give the archive alone",
}
_OTHER_FOLDERS = {"saved_model.pb", "model.safetensors", "pytorch_model.bin", "config.cfg"}


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
    start = None
    if path.is_file():  # To open a named pipe would wait.
        with path.open("rb") as file:
            start = file.read(512)
    for format in FORMATS:
        if start and format.detect(path, start):
            return format, path
    kinds = [what for x, what in _OTHER_FILES.items() if re.match(x, start or b"", re.DOTALL)]
    names = ", ".join(format.NAME for format in FORMATS)
    kinds.append(f"not a complete file of weights in a known format ({names})")
    raise ValueError(f"{path} is {'no file or folder' if start is None else kinds[0]}")


def _find_in_folder(folder: Path) -> tuple[ModuleType, Path]:
    suffixes = tuple(suffix for format in FORMATS for suffix in format.SUFFIXES)
    names = sorted(path.name for path in folder.iterdir())
    files = [folder / x for x in names if x.endswith(suffixes) and (folder / x).is_file()]
    files = [file for file in files if file.stem == "weights"] or files
    is_other = not any(OPTIONS in name for name in names) and not _OTHER_FOLDERS.isdisjoint(names)
    if len(files) == 1 and not is_other:
        return find_format(files[0])
    for format in FORMATS if not files and not is_other else ():
        if format.detect(folder, b""):
            return format, folder
    several = ", ".join(format.NAME for format in FORMATS if not format.SUFFIXES)
    raise ValueError(
        f"{folder} must hold one file of weights ({', '.join(suffixes)}), or all files of another "
        f"format ({several}; docs/families.md says which), and not a model of TensorFlow Hub, spaCy"
        f" or Hugging Face: found {', '.join(names[:8]) or 'nothing'}"
    )
