"""What comes out of pretraining: spaCy pipelines, and the output layer beside them.

`model-best` is a pipeline; `model-best.head` holds what only language modelling needs:

| file             | what                                                  |
|------------------|-------------------------------------------------------|
| head.safetensors | the output layer's weights                            |
| head.json        | the output layer's config, and how text was tokenised |
| vocab.txt        | the words that are predicted, special ones first      |
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import spacy
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..bilm import BiLM
from ..component import Elmo
from ..files import atomic_folder
from ..layers.encoder import set_bilm
from .language_model import LanguageModel
from .losses import LossConfig
from .tokenize import Tokenization
from .trainer import Trainer


def export(trainer: Trainer, name: str) -> None:
    """Write OUTPUT/model-NAME and OUTPUT/model-NAME.head.

    name (str): "best" or "last".
    """
    tokenization = Tokenization(**trainer.corpus.manifest["tokenization"])
    nlp = spacy.blank(tokenization.lang)
    if not tokenization.one_per_line:
        nlp.add_pipe("sentencizer")
    elmo = nlp.add_pipe("elmo")
    assert isinstance(elmo, Elmo)
    set_bilm(elmo.model, copy.deepcopy(trainer.model.bilm).cpu())
    history = trainer.progress.history
    nlp.meta["name"] = "elmo"
    nlp.meta["description"] = "A bidirectional language model, pretrained with spacy-elmo"
    if history:
        names = ("forward", "backward", "average", "unigram")
        nlp.meta["performance"] = {f"perplexity_{key}": history[-1][key] for key in names}
    with atomic_folder(trainer.output / f"model-{name}") as folder:
        nlp.to_disk(folder)
    with atomic_folder(head_folder(trainer.output / f"model-{name}")) as folder:
        model = trainer.model
        tensors = {k: v.detach().cpu().contiguous() for k, v in model.output.state_dict().items()}
        save_file(tensors, folder / "head.safetensors")
        about = {
            "loss": asdict(trainer.config.pretraining.loss),
            "tokenization": asdict(tokenization),
            "max_characters": trainer.corpus.manifest["max_characters"],
        }
        (folder / "head.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf8")
        words = "".join(f"{word}\n" for word in trainer.corpus.vocabulary())
        (folder / "vocab.txt").write_text(words, encoding="utf8")


def head_folder(model: Path) -> Path:
    return model.with_name(f"{model.name}.head")


def load_language_model(
    bilm: BiLM, folder: Path
) -> tuple[LanguageModel, list[str], dict[str, Any]]:
    """Put a biLM and its output layer together.

    RETURNS (tuple): The model, its words, and what `head.json` says.
    RAISES (ValueError): If there is no output layer, or it is another model's.
    """
    try:
        about = json.loads((folder / "head.json").read_text(encoding="utf8"))
        words = (folder / "vocab.txt").read_text(encoding="utf8").splitlines()
        tensors = load_file(folder / "head.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"no output layer in {folder} ({error}): perplexity needs what `spacy elmo pretrain` "
            "keeps beside a model"
        ) from error
    model = LanguageModel(bilm, len(words), LossConfig(**about["loss"]), 0.0)
    try:
        model.output.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"the output layer in {folder} is another model's: {error}") from error
    return model.eval(), words, about
