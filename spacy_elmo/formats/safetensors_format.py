"""The format of this package: a safetensors file with its options, and `options.json` beside it.

Tensors are named like the model's parameters. Each is stored as int8 (see `int8`) or as float16 if
that is exact, else as float32: weights do not change when they are saved.

The metadata key `spacy-elmo` is JSON with `options` and `vocabulary` (null for character input), so
that no other file is read, and `mix` if the weights came with a trained one. The file
`pooling.safetensors` beside it has what `pooling` learned. In a pipeline, it is one more tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors import safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from ..bilm.config import BiLMConfig
from ..bilm.mixes import TrainedMix
from ..bilm.model import BiLM
from ..files import atomic_folder, save_tensors
from ..parallel import no_fork
from ..pooling import FILE as POOLING
from ..pooling import WordPooling
from . import int8
from .options import read_options, write_options
from .parameters import as_half_if_exact, check_finite, empty_model, fill, stored_tensor

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
    """Read a safetensors file. An options file, if named, takes precedence over its metadata.
    RAISES (Exception): If the file is damaged, or contradicts the options."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model = _build(tensors, file.metadata(), options)
    if (pooling := path.with_name(POOLING)).is_file():
        _set_pooling(model, pooling.read_bytes())
    for parameter in model.parameters():
        # It is mapped into memory, and a map changes with its file.
        parameter.data = parameter.data.clone()
    return model


def write(model: BiLM, folder: Path, *, half: bool = False) -> None:
    """Write a folder. Tensors are int8 or float16 whenever that is exact, also without `half`."""
    with atomic_folder(folder) as new:
        save_tensors(_stored(model), new / WEIGHTS, _metadata(model))
        write_options(model.config, model.vocabulary, new)
        if model.pooling is not None:
            model.pooling.to_disk(new / POOLING)


def to_bytes(model: BiLM) -> bytes:
    """RETURNS (bytes): The contents of a safetensors file that rebuilds the model."""
    tensors = _stored(model)
    if model.pooling is not None:
        data = bytearray(model.pooling.to_bytes())
        tensors["pooling"] = torch.frombuffer(data, dtype=torch.uint8)
    return safetensors_torch.save(tensors, _metadata(model))


def from_bytes(data: bytes, *, keep_int8: bool = False) -> BiLM:
    """The inverse of `to_bytes`.

    keep_int8 (bool): Leave 8-bit weights of the LSTMs in 8 bits. See `BiLM.is_int8`.
    RAISES (ValueError): If the bytes are damaged.
    """
    try:
        tensors = safetensors_torch.load(data)
        pooling = tensors.pop("pooling", None)
        # The layout: 8 bytes with the length of the header, then the header as JSON.
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        model = _build(tensors, metadata, keep_int8=keep_int8)
        if pooling is not None:
            _set_pooling(model, pooling.numpy().tobytes())
        return model
    except Exception as error:  # For damaged bytes, safetensors raises several.
        raise ValueError(f"the serialized biLM cannot be read: {error}") from error


def _build(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    options: Optional[Path] = None,
    keep_int8: bool = False,
) -> BiLM:
    """RETURNS (BiLM): A model of the contents of a safetensors file."""
    contents: Any = json.loads((metadata or {})[_METADATA])
    config = read_options(options) if options else BiLMConfig.from_options(contents["options"])
    model = empty_model(config, contents["vocabulary"])
    values = int8.decode(model, tensors, keep_int8)
    fill(model, values, tensors.keys() - values)  # Without those that stay in 8 bits.
    if (mix := contents.get("mix")) is not None:
        numbers = torch.tensor([*mix["weights"], mix["gamma"]], dtype=torch.float64)
        *weights, gamma = check_finite("mix", numbers).reshape(config.n_activations + 1).tolist()
        model.trained_mix = TrainedMix(weights, gamma)
    return model


def _set_pooling(model: BiLM, data: bytes) -> None:
    config = model.config
    model.pooling = WordPooling.from_bytes(data, config.n_activations, config.output_dim)


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
