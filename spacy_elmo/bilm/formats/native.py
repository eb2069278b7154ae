"""Our own format: a safetensors file that holds its options, with `options.json` beside it.

Tensors are named like the model's parameters, float32 or float16. The metadata key `spacy-elmo` is
JSON with `options` and `vocabulary` (null for character input): the bytes alone rebuild the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch

from ...files import atomic_folder, save_tensors
from ..config import BiLMConfig
from ..model import BiLM
from .parameters import empty_model, fill, stored_tensors

WEIGHTS = "weights.safetensors"
_METADATA = "spacy-elmo"


def read(
    path: Path,
    config: Optional[BiLMConfig] = None,
    vocabulary: Optional[Sequence[str]] = None,
) -> BiLM:
    """Read a safetensors file.

    config, vocabulary: Given by files beside it; the default is what the metadata say.
    RAISES (ValueError): If the file is damaged, or contradicts the configuration.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from error
    if config is None:
        config, vocabulary = _read_metadata(metadata, path)
    return fill(empty_model(config, vocabulary), tensors, path)


def write(model: BiLM, folder: Path) -> None:
    """Write a folder of `options.json`, `weights.safetensors` and, for word input, `vocab.txt`.
    An existing folder is replaced when the new one is complete."""
    from . import write_options

    with atomic_folder(folder) as new:
        save_tensors(stored_tensors(model), new / WEIGHTS, _metadata(model))
        write_options(model.config, model.vocabulary, new)


def to_bytes(model: BiLM) -> bytes:
    """RETURNS (bytes): The contents of a safetensors file that rebuilds the model."""
    return safetensors_torch.save(stored_tensors(model), _metadata(model))


def from_bytes(data: bytes) -> BiLM:
    """The inverse of `to_bytes`. RAISES (ValueError): If the bytes are damaged."""
    source = "the serialized biLM"
    try:
        tensors = safetensors_torch.load(data)
        # The layout: 8 bytes of header length, then the header as JSON.
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{source} is not complete safetensors data: {error}") from error
    config, vocabulary = _read_metadata(metadata, source)
    return fill(empty_model(config, vocabulary), tensors, source)


def _metadata(model: BiLM) -> dict[str, str]:
    # One key, because safetensors writes several in any order: equal models, equal bytes.
    contents = {"options": model.config.to_options(), "vocabulary": model.vocabulary}
    return {_METADATA: json.dumps(contents)}


def _read_metadata(
    metadata: Mapping[str, str], source: object
) -> tuple[BiLMConfig, Optional[list[str]]]:
    if _METADATA not in metadata:
        raise ValueError(f"{source} does not hold its options: put options.json beside it")
    try:
        contents: Any = json.loads(metadata[_METADATA])
        options, vocabulary = contents["options"], contents["vocabulary"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{source}: the metadata {_METADATA!r} are damaged: {error}") from error
    return BiLMConfig.from_options(options), vocabulary
