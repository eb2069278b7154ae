"""The language model that a training begins with: a new one, or a pretrained one."""

from __future__ import annotations

import torch

from ..bilm import BiLM, BiLMConfig
from ..weights import find_source, load_bilm
from .config import RunConfig
from .corpus import Corpus
from .head import Head, head_folder, load_head
from .language_model import LanguageModel
from .losses import Softmax


def build_model(config: RunConfig, corpus: Corpus) -> tuple[LanguageModel, str]:
    """Build what a config asks for.

    RETURNS (tuple): The model, and in words where its weights are from.
    RAISES (ValueError): If there is neither an architecture nor a model, or they do not go
        together, or not with the corpus.
    """
    model, origin = _build(config, corpus)
    char_cnn = model.bilm.config.char_cnn
    if char_cnn and char_cnn.max_characters_per_token != corpus.manifest["max_characters"]:
        raise ValueError(
            f"the corpus has {corpus.manifest['max_characters']} characters per token "
            f"(--max-characters of `spacy elmo prepare`), the model "
            f"{char_cnn.max_characters_per_token} (max_characters_per_token): make them the same"
        )
    return model, origin


def _build(config: RunConfig, corpus: Corpus) -> tuple[LanguageModel, str]:
    words = corpus.words
    settings = config.pretraining
    if config.init_from is None:
        if config.bilm is None:
            raise ValueError("no [bilm] section in the config, and no paths.init_from")
        bilm = BiLM(
            _with_vocabulary(config.bilm, len(words)), None if config.bilm.char_cnn else words
        )
        return LanguageModel(bilm, len(words), settings.loss, settings.dropout), "new weights"
    bilm = load_bilm(config.init_from)
    folder = head_folder(find_source(config.init_from))
    head = load_head(folder) if folder.is_dir() else None
    if config.bilm is not None and _with_vocabulary(config.bilm, len(words)) != bilm.config:
        raise ValueError(
            f"the [bilm] section differs from {config.init_from}: leave it out, or make it the same"
        )
    if bilm.vocabulary not in (None, words):
        raise ValueError(
            f"{config.init_from} reads words, and the corpus has another vocabulary: prepare it "
            "with the model's vocab.txt"
        )
    model = LanguageModel(bilm, len(words), settings.loss, settings.dropout)
    output = "a new output layer" if head is None else _take_over(head, model, words)
    return model, f"weights of {config.init_from}, {output}"


def _take_over(head: Head, model: LanguageModel, words: list[str]) -> str:
    """Use as much of an output layer as fits. RETURNS (str): How much, in words."""
    tensors = model.output.state_dict()
    if isinstance(model.output, Softmax) and model.output.tied and not head.loss.tied:
        # Its weights would take the place of the word embeddings.
        return "a new output layer"
    shapes = {name: value.shape for name, value in tensors.items()}
    if head.words == words and shapes == {k: v.shape for k, v in head.tensors.items()}:
        model.output.load_state_dict(head.tensors)
        return "and its output layer"
    if not isinstance(model.output, Softmax) or set(tensors) != set(head.tensors):
        return "a new output layer"
    if any(head.tensors[name].shape[1:] != value.shape[1:] for name, value in tensors.items()):
        raise ValueError("the output layer beside the model is another model's: remove it")
    # Each word of a full softmax has a row of its own: those of common words go on.
    known = {word: number for number, word in enumerate(head.words)}
    common = [(row, known[word]) for row, word in enumerate(words) if word in known]
    rows, sources = torch.tensor(common).reshape(-1, 2).unbind(1)
    for name, value in tensors.items():
        value[rows] = head.tensors[name][sources]
    return f"and its output layer for {len(common):,} of {len(words):,} words"


def _with_vocabulary(config: BiLMConfig, n_words: int) -> BiLMConfig:
    return config if config.char_cnn else BiLMConfig(config.lstm, n_tokens_vocab=n_words)
