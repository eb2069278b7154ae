"""What a format consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ..model import BiLM


@dataclass(frozen=True)
class Format:
    """A file format of biLM weights. What some formats hold besides (an output layer, a trained
    mix) is read by further optional functions.

    name (str): As `spacy elmo info` prints it and `spacy elmo export --format` takes it.
    description (str): What it is, for help texts.
    suffixes (tuple[str, ...]): Of files of weights in a folder. Empty for formats that are folders
        or archives.
    detect (Callable): From a path (file or folder) and its first 512 bytes (none for a folder),
        tells whether it is of this format.
    read (Callable): Makes a `BiLM`, on the CPU, from a path that was detected and the path of the
        options file, if the user names one. Raises a ValueError that names the file.
    write (Optional[Callable]): Writes a `BiLM` to a folder, which is replaced as a whole.
        `half=True` asks for float16.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    detect: Callable[[Path, bytes], bool]
    read: Callable[[Path, Optional[Path]], BiLM]
    write: Optional[Callable[..., None]] = None
