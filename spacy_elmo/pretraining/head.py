"""The output layer of a language model, which is kept beside its pipeline.

`model-best` is a pipeline; `model-best.head` has what only language modelling needs:

| file             | contents                                              |
|------------------|-------------------------------------------------------|
| head.safetensors | the output layer's weights                            |
| head.json        | the output layer's config, and how text was tokenised |
| vocab.txt        | the words that are predicted, special ones first      |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..bilm import BiLM
from ..bilm.formats import read_vocabulary
from ..bilm.validation import validate
from ..files import save_tensors
from .config import LossConfig
from .language_model import LanguageModel
from .losses import OutputLayer
from .tokenize import TokenizationConfig


class Head(NamedTuple):
    """The contents of the folder.

    words (list): The words that are predicted.
    loss (LossConfig): The output layer's config.
    tensors (dict): Its weights.
    tokenization (TokenizationConfig): How text was tokenised.
    """

    words: list[str]
    loss: LossConfig
    tensors: dict[str, Tensor]
    tokenization: TokenizationConfig


def head_folder(model: Path) -> Path:
    model = model if model.name else model.resolve()  # "." has no name.
    return model.with_name(f"{model.name}.head")


def write_head(
    folder: Path,
    output: OutputLayer,
    loss: LossConfig,
    words: Sequence[str],
    tokenization: TokenizationConfig,
) -> None:
    """Write an output layer into a folder."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in output.state_dict().items()}
    save_tensors(tensors, folder / "head.safetensors")
    about = {"loss": asdict(loss), "tokenization": asdict(tokenization)}
    (folder / "head.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf8")
    with (folder / "vocab.txt").open("w", encoding="utf8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)


def load_head(folder: Path) -> Head:
    """RAISES (ValueError): If there is no output layer, or it cannot be read."""
    try:
        about: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf8"))
        return Head(
            read_vocabulary(folder / "vocab.txt"),
            validate(LossConfig, about["loss"], "loss."),
            load_file(folder / "head.safetensors"),
            validate(TokenizationConfig, about["tokenization"], "tokenization."),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(
            f"no output layer in {folder} ({error}): it is what `spacy elmo pretrain` keeps beside "
            "a model"
        ) from error


def load_language_model(bilm: BiLM, folder: Path) -> tuple[LanguageModel, Head]:
    """Combine a biLM with its output layer.

    RAISES (ValueError): If there is no output layer, or it is another model's.
    """
    head = load_head(folder)
    try:
        model = LanguageModel(bilm, len(head.words), head.loss, 0.0)
        model.output.load_state_dict(head.tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the output layer in {folder} is another model's: {error}") from error
    return model.eval(), head
