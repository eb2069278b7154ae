"""The output layer of a language model, which only language modelling needs: the folder MODEL.head
beside a pipeline, or the layer in a TensorFlow checkpoint of bilm-tf.

| file             | contents                                              |
|------------------|-------------------------------------------------------|
| head.safetensors | the output layer's weights                            |
| head.json        | the output layer's config, and how text was tokenised |
| vocab.txt        | the words that are predicted, special ones first      |
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Optional

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..bilm import BiLM
from ..bilm.validation import validate
from ..files import save_tensors
from ..formats import find_format, read_vocabulary, unpacked
from ..weights import is_pipeline
from .config import LossConfig
from .language_model import LanguageModel
from .tokenize import TokenizationConfig
from .vocabulary import check_vocabulary

HEAD_FILES = ("head.json", "head.safetensors", "vocab.txt")
_WHERE = "`spacy elmo pretrain` keeps it beside a model, a TensorFlow checkpoint (.index) has it"


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
    tensors = {k: v.detach().cpu().contiguous() for k, v in head.tensors.items()}
    save_tensors(tensors, folder / "head.safetensors")
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
            load_file(folder / "head.safetensors"),
            validate(TokenizationConfig, about["tokenization"], "tokenization."),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"no output layer in {folder} ({error}); {_WHERE}") from error


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
