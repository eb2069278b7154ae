"""Fingerprints of inputs, to see whether a result is up to date."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import srsly

from spacy_elmo.files import sha256
from spacy_elmo.formats import OPTIONS
from spacy_elmo.weights import find_source

# Files beside weights that do not affect vectors.
_ABOUT = {"README.md", "SOURCES.md", "meta.json"}


def digest(what: Any) -> str:
    """RETURNS (str): A hash of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(what).encode("utf8")).hexdigest()


def hash_weights(weights: str) -> str:
    """RETURNS (str): Of the contents of all files that vectors depend on.
    RAISES (ValueError): If there are none."""
    path = find_source(weights)
    # Weights in a file are not all: options.json is beside them.
    files = sorted(path.rglob("*")) if path.is_dir() else [path, path.with_name(OPTIONS)]
    hashes = [sha256(file) for file in files if file.is_file() and file.name not in _ABOUT]
    if not hashes:
        raise ValueError(f"no weights {weights!r}: {path} is empty")
    return digest(hashes)


def is_done(result: Path, fingerprint: str) -> bool:
    """RETURNS (bool): Whether the result is there, complete and of this fingerprint."""
    with contextlib.suppress(OSError, ValueError):
        record = srsly.read_json(result)
        return isinstance(record, dict) and record.get("fingerprint") == fingerprint
    return False
