"""The language model that a training starts from: a new one, or a pretrained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bilm import BiLM, BiLMConfig
from ..weights import find_source, load_bilm
from .config import LossConfig, PretrainingConfig, RunConfig
from .corpus import Corpus
from .head import Head, find_head
from .language_model import LanguageModel
from .vocabulary import BOS_ID, EOS_ID


def build_model(config: RunConfig, corpus: Corpus) -> tuple[LanguageModel, str]:
    """RETURNS (tuple): The model that a config describes, and the origin of its weights in words.
    RAISES (ValueError): If architecture, model and corpus do not fit together."""
    words, settings, source = corpus.words, config.pretraining, config.paths.init_from
    architecture = config.bilm
    if architecture is not None and architecture.char_cnn is None:
        architecture = BiLMConfig(architecture.lstm, n_tokens_vocab=len(words))
    if source is None:
        if architecture is None:
            raise ValueError("no [bilm] section, and no --paths.init_from to take it from")
        bilm = BiLM(architecture, None if architecture.char_cnn else words)
        return _new_model(bilm, corpus, settings), "new weights"
    bilm = load_bilm(source)
    bilm.trained_mix = bilm.pooling = None  # They are for the weights as they were.
    if architecture not in (None, bilm.config):
        raise ValueError(f"the [bilm] section differs from {source}: leave it out")
    if bilm.config.char_cnn is None and bilm.vocabulary != words:
        raise ValueError(f"{source} has another vocabulary: prepare the corpus with its vocab.txt")
    model = _new_model(bilm, corpus, settings)
    head = find_head(find_source(source))
    output = "" if head is None else _load_matching_rows(head, model, settings.loss, words)
    return model, f"weights of {source}, {output or 'a new output layer'}"


def _new_model(bilm: BiLM, corpus: Corpus, settings: PretrainingConfig) -> LanguageModel:
    model = LanguageModel(bilm, len(corpus.words), settings.loss, settings.dropout)
    log_probabilities = torch.from_numpy(corpus.unigram_log_probabilities())
    # Backward, the beginning of a sentence is predicted where forward its end is.
    log_probabilities[BOS_ID] = log_probabilities[EOS_ID]
    model.output.start_from(log_probabilities)
    return model


def _load_matching_rows(
    head: Head, model: LanguageModel, loss: LossConfig, words: list[str]
) -> str:
    """Copy what fits of an output layer. RETURNS (str): How much, in words; "" for nothing."""
    tensors = model.output.state_dict()
    ours, theirs = _rows(tensors, loss, words), _rows(head.tensors, head.loss, head.words)
    # It would replace the word embeddings; a full softmax and an adaptive one have other rows.
    if (loss.tied and not head.loss.tied) or ("weight" in ours) != ("weight" in theirs):
        return ""
    copied: set[str | int] = set()
    for name in ours.keys() & theirs.keys():
        source, places = head.tensors[name], {key: row for row, key in enumerate(theirs[name])}
        if len(source) != len(places) or source.shape[1:] != tensors[name].shape[1:]:
            return ""  # Another model's.
        common = [(row, places[key]) for row, key in enumerate(ours[name]) if key in places]
        rows, sources = torch.tensor(common).reshape(-1, 2).unbind(1)
        tensors[name][rows] = source[sources]
        copied.update(ours[name][row] for row, _ in common)
    n_words = len(copied.intersection(words))
    return f"and its output layer for {n_words:,} of {len(words):,} words"


def _rows(
    tensors: Mapping[str, Tensor], loss: LossConfig, words: list[str]
) -> dict[str, Sequence[str | int]]:
    # What each row is for: a word, a cluster, or a row of the projection to a cluster's width.
    if "weight" in tensors:
        return dict.fromkeys(tensors, words)
    n_head, *ends = [*(cutoff for cutoff in loss.cutoffs if cutoff < len(words)), len(words)]
    rows: dict[str, Sequence[str | int]] = {}
    for name in ("softmax.head.weight", "softmax.head.bias"):
        rows[name] = [*words[:n_head], *range(len(ends))]
    for number, (start, end) in enumerate(zip([n_head, *ends], ends)):
        projection = f"softmax.tail.{number}.0.weight"
        rows[projection] = range(len(tensors[projection]))
        rows[f"softmax.tail.{number}.1.weight"] = words[start:end]
    return rows
