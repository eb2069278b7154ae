"""The results of a training: a pipeline, with the output layer beside it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Optional

import spacy

from ..component import Elmo
from ..files import atomic_folder
from ..layers.encoder import set_bilm
from .config import LossConfig
from .corpus import Corpus
from .head import Head, head_folder, write_head
from .language_model import LanguageModel


def write_model(
    path: Path,
    model: LanguageModel,
    loss: LossConfig,
    corpus: Corpus,
    record: Optional[dict[str, Any]],
) -> None:
    """Write a pipeline with its evaluation, and its output layer into the folder PATH.head."""
    tokenization = corpus.tokenization
    nlp = spacy.blank(tokenization.lang)
    if not tokenization.one_per_line:
        nlp.add_pipe("sentencizer")
    elmo = nlp.add_pipe("elmo", config={"model": {"weights": None}})
    assert isinstance(elmo, Elmo)
    set_bilm(elmo.model, copy.deepcopy(model.bilm).cpu())
    nlp.meta["name"] = "elmo"
    nlp.meta["description"] = "A bidirectional language model, pretrained with spacy-elmo"
    if record is not None:
        names = ("forward", "backward", "average", "unigram")
        nlp.meta["performance"] = {f"perplexity_{key}": record[key] for key in names}
    # After a kill between the two renames, the resumed run makes the evaluation, and both, again.
    with atomic_folder(path) as folder, atomic_folder(head_folder(path)) as head:
        nlp.to_disk(folder)
        write_head(head, Head(corpus.words, loss, model.output.state_dict(), tokenization))
