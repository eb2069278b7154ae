"""The output layer of a language model, which is kept beside its pipeline.

`model-best` is a pipeline; `model-best.head` holds what only language modelling needs:

| file             | what                                                  |
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
from ..files import save_tensors
from .config import read_section
from .corpus import MAX_CHARACTERS
from .language_model import LanguageModel
from .losses import LossConfig, OutputLayer
from .tokenize import Tokenization


class Head(NamedTuple):
    """What a folder holds.

    words (list): The words that are predicted.
    loss (LossConfig): The output layer's config.
    tensors (dict): Its weights.
    tokenization (Tokenization): How text was tokenised.
    max_characters (int): Character ids per type at most.
    """

    words: list[str]
    loss: LossConfig
    tensors: dict[str, Tensor]
    tokenization: Tokenization
    max_characters: int


def head_folder(model: Path) -> Path:
    model = model if model.name else model.resolve()  # "." has no name.
    return model.with_name(f"{model.name}.head")


def write_head(
    folder: Path,
    output: OutputLayer,
    loss: LossConfig,
    words: Sequence[str],
    tokenization: Tokenization,
    max_characters: int,
) -> None:
    """Write an output layer into a folder."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in output.state_dict().items()}
    save_tensors(tensors, folder / "head.safetensors")
    about = {
        "loss": asdict(loss),
        "tokenization": asdict(tokenization),
        "max_characters": max_characters,
    }
    (folder / "head.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf8")
    with (folder / "vocab.txt").open("w", encoding="utf8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)


def load_head(folder: Path) -> Head:
    """RAISES (ValueError): If there is no output layer, or it cannot be read."""
    try:
        about: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf8"))
        max_characters = about["max_characters"]
        if type(max_characters) is not int or not 3 <= max_characters <= MAX_CHARACTERS:
            raise ValueError(
                f"head.json: max_characters must be a number of 3 to {MAX_CHARACTERS}, found "
                f"{max_characters!r}"
            )
        return Head(
            read_vocabulary(folder / "vocab.txt"),
            read_section(LossConfig, about["loss"], "head.json: loss"),
            load_file(folder / "head.safetensors"),
            read_section(Tokenization, about["tokenization"], "head.json: tokenization"),
            max_characters,
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(
            f"no output layer in {folder} ({error}): it is what `spacy elmo pretrain` keeps beside "
            "a model"
        ) from error


def load_language_model(bilm: BiLM, folder: Path) -> tuple[LanguageModel, Head]:
    """Put a biLM and its output layer together.

    RAISES (ValueError): If there is no output layer, or it is another model's.
    """
    head = load_head(folder)
    try:
        model = LanguageModel(bilm, len(head.words), head.loss, 0.0)
        model.output.load_state_dict(head.tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the output layer in {folder} is another model's: {error}") from error
    return model.eval(), head
