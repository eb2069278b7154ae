"""What comes out of pretraining: spaCy pipelines, with the output layer beside them."""

from __future__ import annotations

import copy

import spacy

from ..component import Elmo
from ..files import atomic_folder
from ..layers.encoder import set_bilm
from .head import head_folder, write_head
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
    elmo = nlp.add_pipe("elmo", config={"model": {"weights": None}})
    assert isinstance(elmo, Elmo)
    set_bilm(elmo.model, copy.deepcopy(trainer.model.bilm).cpu())
    # An interrupted run has not evaluated its last step.
    history = [r for r in trainer.progress.history if r["step"] == trainer.progress.step]
    nlp.meta["name"] = "elmo"
    nlp.meta["description"] = "A bidirectional language model, pretrained with spacy-elmo"
    if history:
        names = ("forward", "backward", "average", "unigram")
        nlp.meta["performance"] = {f"perplexity_{key}": history[-1][key] for key in names}
    path = trainer.output / f"model-{name}"
    # Both are written before either takes its place. A kill between the two leaves an evaluation
    # pending in the checkpoint, which writes both again.
    with atomic_folder(path) as folder, atomic_folder(head_folder(path)) as head:
        nlp.to_disk(folder)
        write_head(
            head,
            trainer.model.output,
            trainer.config.pretraining.loss,
            trainer.corpus.words,
            tokenization,
            trainer.corpus.manifest["max_characters"],
        )
