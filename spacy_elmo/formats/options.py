"""The files beside weights: `options.json`, and `vocab.txt` if the biLM reads words."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from ..bilm.config import BiLMConfig

OPTIONS = "options.json"
VOCABULARY = "vocab.txt"
# bilm-tf skips this line of a vocabulary.
_NO_WORD = "!!!MAXTERMID"
# Sorted words compress to a third.
_MAX_COMPRESSION = 64


def read_files_beside(
    weights: Path, options: Optional[Path] = None
) -> tuple[Optional[BiLMConfig], Optional[list[str]]]:
    """Read the options of weights and, if they include word embeddings, their vocabulary.

    weights (Path): The file of weights.
    options (Optional[Path]): The options file. By default it is `options.json`, or named like the
        weights, as published files are: `*_weights.hdf5`, `*_options.json`.
    RETURNS (tuple): The options and the vocabulary, each None if there is none.
    RAISES (ValueError): If a file is missing or damaged.
    """
    published = weights.with_name(weights.name.replace("_weights", "_options"))
    for path in (published.with_suffix(".json"), weights.with_name(OPTIONS)):
        if options is None and path != weights and path.is_file():
            options = path
    if options is None:
        return None, None
    config = read_options(options)
    if config.n_tokens_vocab is None:
        return config, None
    vocabulary = weights.with_name(VOCABULARY)
    return config, read_vocabulary(vocabulary, exact=config.char_cnn is not None)


def read_given_files(
    weights: Path, options: Optional[Path] = None
) -> tuple[BiLMConfig, Optional[list[str]]]:
    """Like `read_files_beside`. RAISES (ValueError): Also if there are no options."""
    config, vocabulary = read_files_beside(weights, options)
    if config is None:
        raise ValueError(
            f"no options for {weights}: put {OPTIONS} (or the published *_options.json) beside it"
        )
    return config, vocabulary


def read_options(path: Path) -> BiLMConfig:
    """RETURNS (BiLMConfig): The contents of an `options.json`.
    RAISES (ValueError): If the file is missing, is not JSON or has impossible values."""
    options = read_json(path)
    try:
        return BiLMConfig.from_options(options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_json(path: Path) -> Any:
    """RAISES (ValueError): If an options file is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"no such options file: {path}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of 5,000 digits.
        raise ValueError(
            f"{path} is not a JSON file: {error}. Were options and weights swapped?"
        ) from error


def read_vocabulary(path: Path, *, exact: bool = False) -> list[str]:
    """Read the words of a bilm-tf vocabulary, one per line, as bilm-tf does: without the whitespace
    around them, and without the line `!!!MAXTERMID`.

    path (Path): The file. If there is none, one compressed with gzip, PATH.gz, is read.
    exact (bool): Take every line as it is.
    RAISES (ValueError): If the file is missing, damaged or not UTF-8.
    """
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        raise ValueError(f"a biLM with word input needs its vocabulary: no such file: {path}")
    path = path if path.is_file() else packed
    try:
        data = path.read_bytes() if path != packed else _decompress(packed)
        text = data.decode("utf-8" if exact else "utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from error
    # Not splitlines(): a word may hold any character except a line feed. A word of whitespace alone
    # stays as it is.
    lines = text.removesuffix("\n").split("\n")
    if exact:
        return lines
    words = (line.strip() or line for line in lines)
    return [word for word in words if word != _NO_WORD]


def _decompress(path: Path) -> bytes:
    limit = _MAX_COMPRESSION * path.stat().st_size
    with gzip.open(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it unpacks to more than {limit:,} bytes, as no vocabulary does")
    return data


def write_options(config: BiLMConfig, vocabulary: Optional[Sequence[str]], folder: Path) -> None:
    """Write `options.json`, and `vocab.txt` if there is a vocabulary."""
    text = json.dumps(config.to_options(), indent=2) + "\n"
    (folder / OPTIONS).write_text(text, encoding="utf8")
    if vocabulary is not None:
        with (folder / VOCABULARY).open("w", encoding="utf8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in vocabulary)
