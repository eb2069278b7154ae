"""The output layer of a language model, which only language modelling needs: the folder MODEL.head
beside a pipeline, or the layer in a TensorFlow checkpoint of bilm-tf.

| file             | contents                                               |
|------------------|--------------------------------------------------------|
| head.safetensors | its weights: int8 or float16 where exact, else float32 |
| head.json        | the output layer's config, and how text was tokenised  |
| vocab.txt        | the words that are predicted, special ones first       |
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..bilm import BiLM
from ..bilm.validation import validate
from ..files import atomic_file, save_tensors
from ..formats import find_format, int8, read_vocabulary, unpacked
from ..formats.parameters import as_half_if_exact, to_float32
from ..weights import find_source, is_pipeline, load_bilm
from .config import LossConfig
from .language_model import LanguageModel
from .tokenize import TokenizationConfig
from .vocabulary import check_vocabulary

HEAD_FILES = ("head.json", "head.safetensors", "vocab.txt")
_WHERE = (
    "`spacy elmo pretrain` keeps it beside a model, en_elmo_sm and TensorFlow checkpoints (.index) "
    "have it; one that is elsewhere has to be named (`head`)"
)


class Head(NamedTuple):
    """The contents of the folder."""

    words: list[str]
    loss: LossConfig
    tensors: dict[str, Tensor]
    tokenization: TokenizationConfig


def head_folder(model: Path) -> Path:
    model = model if model.name else model.resolve()  # "." has no name.
    return model.with_name(f"{model.name}.head")


def write_head(folder: Path, head: Head) -> None:
    """Write an output layer into a folder."""
    tensors = {k: v.detach().float().cpu().contiguous() for k, v in head.tensors.items()}
    matrices = {k: (v.shape[1],) for k, v in tensors.items() if v.dim() == 2}
    stored = {k: as_half_if_exact(v) for k, v in tensors.items()}
    stored |= int8.encode_weights(tensors, matrices)
    with atomic_file(folder / "head.safetensors") as temporary:
        save_tensors(stored, temporary)  # Tensors that were read from the file are mapped to it.
    about = {"loss": asdict(head.loss), "tokenization": asdict(head.tokenization)}
    (folder / "head.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf8")
    with (folder / "vocab.txt").open("w", encoding="utf8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in head.words)


def load_head(folder: Path) -> Head:
    try:
        about: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf8"))
        return Head(
            read_vocabulary(folder / "vocab.txt"),
            validate(LossConfig, about["loss"], "loss."),
            _decode(load_file(folder / "head.safetensors")),
            validate(TokenizationConfig, about["tokenization"], "tokenization."),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"no output layer in {folder} ({error}); {_WHERE}") from error


def _decode(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """RETURNS (dict): The tensors of a file in float32. RAISES (ValueError): If one is damaged."""
    for name in [k for k, v in tensors.items() if v.dtype == torch.int8 and v.dim() == 2]:
        shape = tensors[name].shape
        tensors[name] = int8.take_weight(name, tensors, shape, (shape[1],)).dequantize()
    return {name: to_float32(name, tensor) for name, tensor in tensors.items()}


def find_head(model: Path) -> Optional[Head]:
    """RETURNS (Optional[Head]): The output layer of a pipeline or weights: beside it, or in a
    TensorFlow checkpoint."""
    folder = head_folder(model)
    if folder.is_dir():
        return load_head(folder)
    if is_pipeline(model):
        return None
    with unpacked(model) as source:
        format, weights = find_format(source)
        if not hasattr(format, "read_output_layer"):
            return None
        words, weight, bias, tied = format.read_output_layer(weights)
    check_vocabulary(words, f"the vocabulary of {model}")
    # bilm-tf reads a sentence per line, split at spaces, and cuts none.
    tokenization = TokenizationConfig("xx", True, True, max_length=10**6)
    return Head(words, LossConfig(tied=tied), {"weight": weight, "bias": bias}, tokenization)


def open_language_model(
    source: Union[str, Path], folder: Optional[Path] = None
) -> tuple[LanguageModel, Head]:
    """Load what the user names: a pipeline or weights, also packed, and their output layer.
    RAISES (ValueError): If there is no such source, or no output layer."""
    with unpacked(find_source(source)) as path:
        return load_language_model(load_bilm(path), path, folder)


def load_language_model(
    bilm: BiLM, model: Path, folder: Optional[Path] = None
) -> tuple[LanguageModel, Head]:
    """Combine a biLM, which is from `model`, with its output layer: beside it, in it, or in a
    folder."""
    head = find_head(model) if folder is None else load_head(folder)
    folder = folder or head_folder(model)
    if head is None:
        raise ValueError(f"no output layer in {folder}; {_WHERE}")
    try:
        language_model = LanguageModel(bilm, len(head.words), head.loss, 0.0)
        language_model.output.load_state_dict(head.tensors)
    except (RuntimeError, ValueError) as error:
        source = folder if folder.is_dir() else model
        raise ValueError(f"the output layer in {source} is another model's: {error}") from error
    return language_model.eval(), head
