"""The files beside weights: `options.json`, `vocab.txt` if the biLM reads words, and the
`meta.json` of the NLPL repository (vectors.nlpl.eu)."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from ..bilm.config import BiLMConfig

OPTIONS = "options.json"
VOCABULARY = "vocab.txt"
_META = "meta.json"
# bilm-tf skips this line of a vocabulary.
_NO_WORD = "!!!MAXTERMID"
# Sorted words compress to a third.
_MAX_COMPRESSION = 64


def read_files_beside(
    weights: Path, options: Optional[Path] = None
) -> tuple[BiLMConfig, Optional[list[str]]]:
    """Read the options of weights and, if they include word embeddings, their vocabulary. The
    options file is `options.json`, or named like the weights, as published files are:
    `*_weights.hdf5`, `*_options.json`.
    RAISES (ValueError): If a file is missing or damaged."""
    published = weights.name.replace("_weights", "_options")
    beside = weights.with_name(published).with_suffix(".json")
    options = options or (beside if beside.is_file() else weights.with_name(OPTIONS))
    config = read_options(options)
    has_words = config.n_tokens_vocab is not None
    return config, read_vocabulary(weights.with_name(VOCABULARY)) if has_words else None


def read_options(path: Path, parse: Callable[[Any], Any] = BiLMConfig.from_options) -> Any:
    """RETURNS (Any): The contents of an `options.json`, or of another JSON file.
    RAISES (ValueError): If the file is missing, is not JSON or has impossible values."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        is_json = not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
        swapped = "" if is_json else "is not a JSON file. Were options and weights swapped? "
        raise ValueError(f"{path}: {swapped}{error}") from error


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a bilm-tf vocabulary, one per line, as bilm-tf does: without the whitespace
    around them, and without the line `!!!MAXTERMID`.

    path (Path): The file. If there is none, one compressed with gzip, PATH.gz, is read.
    RAISES (ValueError): If the file is missing, damaged or not UTF-8.
    """
    packed = path.with_name(f"{path.name}.gz")
    path = packed if packed.is_file() and not path.is_file() else path
    try:
        limit = _MAX_COMPRESSION * path.stat().st_size
        with gzip.open(path) if path == packed else path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ValueError(f"it unpacks to more than {limit:,} bytes, as no vocabulary does")
        # Not splitlines(): a word may hold any character except a line feed.
        lines = data.decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"the vocabulary {path} cannot be read: {error}") from error
    # A word of whitespace alone stays as it is.
    words = (line.strip() or line for line in lines)
    return [word for word in words if word != _NO_WORD]


def write_options(config: BiLMConfig, vocabulary: Optional[Sequence[str]], folder: Path) -> None:
    """Write `options.json`, and `vocab.txt` if there is a vocabulary."""
    text = json.dumps(config.to_options(), indent=2) + "\n"
    (folder / OPTIONS).write_text(text, encoding="utf8")
    if vocabulary is not None:
        with (folder / VOCABULARY).open("w", encoding="utf8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in vocabulary)


def read_origin(path: Path) -> dict[str, Any]:
    """RETURNS (dict): What the NLPL repository says of weights: "language" (the ISO 639-3 code,
    None if there are several), "is_lemmatized", "url" and "author". Empty if it says nothing."""
    folder = path if path.is_dir() else path.parent
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        meta = json.loads((folder / _META).read_bytes())
        corpora = meta["corpus"] if isinstance(meta["corpus"], list) else [meta["corpus"]]
        languages = {corpus["language"].lower() for corpus in corpora}
        return {
            "language": languages.pop() if len(languages) == 1 else None,
            "is_lemmatized": any(str(x.get("lemmatized")).lower() == "true" for x in corpora),
            "url": str(meta.get("handle", "")),
            "author": ", ".join(str(x["name"]) for x in meta.get("creators", ())),
        }
    return {}
