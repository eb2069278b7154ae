"""The format of this package: a safetensors file with its options, and `options.json` beside it.

Tensors are named like the model's parameters. Each is stored as int8 (see `int8`) or as float16 if
that is exact, else as float32: weights do not change when they are saved.

The metadata key `spacy-elmo` is JSON with `options` and `vocabulary` (null for character input), so
that no other file is needed, and `mix` if the weights came with a trained one.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.mixes import TrainedMix
from ..bilm.model import BiLM
from ..files import atomic_folder, save_tensors
from ..parallel import no_fork
from . import int8
from .options import read_files_beside, write_options
from .parameters import (
    as_half_if_exact,
    check_tensors,
    declared,
    empty_model,
    stored_tensor,
    to_float32,
)

NAME = "safetensors"
DESCRIPTION = "the format of this package, safetensors with options"
SUFFIXES = (".safetensors",)
WEIGHTS = "weights.safetensors"
_METADATA = "spacy-elmo"


def detect(path: Path, start: bytes) -> bool:
    """RETURNS (bool): Whether this is a safetensors file: the length of the header, then the header
    as JSON."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size


def read(path: Path, options: Optional[Path] = None) -> BiLM:
    """Read a safetensors file. Options beside it take precedence over its metadata.

    RAISES (ValueError): If the file is damaged, or contradicts the options.
    """
    config, vocabulary = read_files_beside(path, options)
    try:
        with safe_open(path, "pt") as file:
            # Mapped into memory: checks come before anything is read.
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError) as error:  # KeyError: an unknown type.
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from error
    model = _build(tensors, metadata, path, config, vocabulary)
    for parameter in model.parameters():
        # A map changes with its file.
        parameter.data = parameter.data.clone()
    return model


def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder. An existing one is replaced when the new one is complete.

    half (bool): Not used. Tensors are int8 or float16 whenever that is exact.
    """
    with atomic_folder(folder) as new:
        save_tensors(_stored(model), new / WEIGHTS, _metadata(model))
        write_options(model.config, model.vocabulary, new)


def to_bytes(model: BiLM) -> bytes:
    """RETURNS (bytes): The contents of a safetensors file that rebuilds the model."""
    return safetensors_torch.save(_stored(model), _metadata(model))


def from_bytes(data: bytes, *, keep_int8: bool = False) -> BiLM:
    """The inverse of `to_bytes`.

    keep_int8 (bool): Leave weights of the LSTMs that are stored as int8 in 8 bits. See
        `BiLM.is_int8`.
    RAISES (ValueError): If the bytes are damaged.
    """
    source = "the serialized biLM"
    try:
        tensors = safetensors_torch.load(data)
        # The layout: 8 bytes with the length of the header, then the header as JSON.
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError) as error:  # KeyError: an unknown type.
        raise ValueError(f"{source} is not a complete safetensors file: {error}") from error
    return _build(tensors, metadata, source, keep_int8=keep_int8)


def _build(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    source: object,
    config: Optional[BiLMConfig] = None,
    vocabulary: Optional[Sequence[str]] = None,
    keep_int8: bool = False,
) -> BiLM:
    """Make a model of the contents of a safetensors file.

    source (object): What the contents are from, for messages.
    config, vocabulary: From files beside it. By default they are read from the metadata.
    """
    mix = None
    if config is None:
        config, vocabulary, mix = _read_metadata(metadata, source)
    else:  # Then nothing else of the metadata is needed.
        with contextlib.suppress(ValueError):
            *_, mix = _read_metadata(metadata, source)
    model = empty_model(config, vocabulary, source)
    expected: dict[str, Sequence[int]] = {x: p.shape for x, p in model.named_parameters()}
    scales = int8.scale_shapes(model, tensors)
    expected.update({name + int8.SCALES: shape for name, shape in scales.items()})
    check_tensors(source, expected, declared(tensors), scales)
    values = int8.decode(source, model, tensors, keep_int8)
    for name, _ in model.named_parameters():
        if name not in scales:
            values[name] = to_float32(source, name, tensors[name])
    model.load_state_dict(values, assign=True, strict=not keep_int8)
    model.trained_mix = mix
    return model


@no_fork()
def _stored(model: BiLM) -> dict[str, Tensor]:
    tensors = int8.encode(model)
    for name, weight in model.named_parameters():
        if name not in tensors:
            tensors[name] = as_half_if_exact(stored_tensor(name, weight))
    return tensors


def _metadata(model: BiLM) -> dict[str, str]:
    # One key, because safetensors writes several in any order: equal models, equal bytes.
    contents = {"options": model.config.to_options(), "vocabulary": model.vocabulary}
    if model.trained_mix is not None:
        contents["mix"] = model.trained_mix._asdict()
    return {_METADATA: json.dumps(contents)}


def _read_metadata(
    metadata: Mapping[str, str], source: object
) -> tuple[BiLMConfig, Optional[list[str]], Optional[TrainedMix]]:
    if _METADATA not in metadata:
        raise ValueError(f"{source} does not hold its options: put options.json beside it")
    try:
        contents: Any = json.loads(metadata[_METADATA])
        config, vocabulary = BiLMConfig.from_options(contents["options"]), contents["vocabulary"]
        words = [] if vocabulary is None else vocabulary
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise TypeError("the vocabulary is not a list of words")
        mix = contents.get("mix")
        if mix is not None:
            mix = TrainedMix(list(map(float, mix["weights"])), float(mix["gamma"]))
            numbers = (*mix.weights, mix.gamma)
            if len(numbers) != config.n_activations + 1 or not all(map(math.isfinite, numbers)):
                raise ValueError("the mix is not one of the layers")
        return config, vocabulary, mix
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{source}: the metadata {_METADATA!r} are damaged: {error}") from error
