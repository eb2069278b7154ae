"""How well a language model predicts text that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy
import torch

from ..bilm.lstm_layer import LayerState
from .batches import Batch, ContiguousBatches, SentenceBatches, group_by_length
from .corpus import Sentences
from .distributed import rank, sum_over_processes, world_size
from .language_model import LanguageModel
from .vocabulary import UNK_ID

# Of the sample of a text: the same for all runs, or their perplexities could not be compared.
_SAMPLE_SEED = 0
# Predictions per row of a stream, or more. Each row begins with zero states, from which a model
# that was trained with carried ones predicts badly: rows are long, so that this hardly counts.
_ROW_LENGTH = 1000


def perplexity(
    model: LanguageModel,
    sentences: Sentences,
    *,
    batch_words: int = 4096,
    max_words: int = 0,
    carry_state: bool = False,
    unigram: Optional[numpy.ndarray] = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Optional[dict[str, Any]]:
    """Evaluate with exact probabilities: of a full softmax, however it was trained.

    Perplexities are over all predictions of a text: every word, and in each direction one sentence
    boundary. A word outside the vocabulary counts as a prediction of `<UNK>`, so that figures for
    other vocabularies are not comparable.

    max_words (int): Evaluate a sample of the sentences, of about so many words, which is the same
        every time; 0 for all.
    carry_state (bool): Read the sentences in a random order, which is the same every time, as rows
        that continue from batch to batch with the LSTMs' states, as a training with
        `pretraining.carry_state` does. Less than one word per row is left out at the end.
    unigram (Optional[ndarray]): See `Corpus.unigram_log_probabilities`.
    should_stop (Callable): Called before every batch, equally often in all processes.
    RETURNS (Optional[dict]): Of all processes together, each of which must call it. None if it was
        stopped. "forward", "backward": exp of the mean negative log probability in nats. "average":
        exp of the mean of both. "unigram": of the words' frequencies in the training text, or None.
        "n_words": words, boundaries not counted. "n_sentences". "unknown": the fraction of the
        words that are outside the vocabulary.
    RAISES (ValueError): If there is no sentence.
    """
    if not len(sentences):
        raise ValueError("no sentence to evaluate on")
    chosen = _choose(sentences, max_words, carry_state)
    if carry_state:
        batches, states = _contiguous(model, sentences, chosen, batch_words)
    else:
        batches, states = _whole_sentences(sentences, chosen, batch_words), None
    was_training = model.training
    model.eval()
    try:
        sums = _sum(model, batches, states, unigram, should_stop)
    finally:
        model.train(was_training)
    if sums is None:
        return None
    total = sum_over_processes(torch.from_numpy(sums).to(model.bilm.device)).tolist()
    *log_probabilities, n_unknown, n_words, n_targets = total
    forward, backward, of_unigram = (-value / n_targets for value in log_probabilities)
    return {
        "forward": _exp(forward),
        "backward": _exp(backward),
        "average": _exp((forward + backward) / 2),
        "unigram": None if unigram is None else _exp(of_unigram),
        "n_words": int(n_words),
        "n_sentences": len(chosen),
        "unknown": n_unknown / n_words,
    }


def _sum(
    model: LanguageModel,
    batches: Iterable[Optional[Batch]],
    states: Optional[list[LayerState]],
    unigram: Optional[numpy.ndarray],
    should_stop: Callable[[], bool],
) -> Optional[numpy.ndarray]:
    """RETURNS (Optional[ndarray]): Forward and backward log probabilities, unigram's, unknown
    words, words, predictions. None if it was stopped."""
    sums = numpy.zeros(6)
    for batch in batches:
        if should_stop():
            return None
        if batch is not None:
            targets = batch.targets[0]
            sums[:2] += model.log_likelihood(batch, states).double().sum(1).cpu().numpy()
            sums[2] += 0 if unigram is None else unigram[targets].sum()
            sums[3:] += (targets == UNK_ID).sum(), batch.n_words, batch.n_targets
    return sums


def finite(scores: dict[str, Any]) -> dict[str, Any]:
    """RETURNS (dict): As JSON can hold it: infinite perplexities are None."""
    return {name: None if value == math.inf else value for name, value in scores.items()}


def _choose(sentences: Sentences, max_words: int, carry_state: bool) -> numpy.ndarray:
    """RETURNS (ndarray): The sentences to read."""
    if not max_words and not carry_state:
        return numpy.arange(len(sentences))
    # Not the beginning: a corpus is in the order of its files.
    chosen = numpy.random.default_rng(_SAMPLE_SEED).permutation(len(sentences))
    if max_words:
        n_before = numpy.cumsum(sentences.lengths[chosen])
        chosen = chosen[: int(numpy.searchsorted(n_before, max_words, side="left")) + 1]
    return chosen


def _whole_sentences(
    sentences: Sentences, chosen: numpy.ndarray, batch_words: int
) -> Iterator[Optional[Batch]]:
    """YIELDS (Optional[Batch]): Each process reads other batches; None if none is left for it."""
    epoch = SentenceBatches(sentences, group_by_length(sentences.lengths, chosen, batch_words))
    for number in range(rank(), len(epoch) + rank(), world_size()):
        yield epoch.read(number) if number < len(epoch) else None


def _contiguous(
    model: LanguageModel, sentences: Sentences, chosen: numpy.ndarray, batch_words: int
) -> tuple[Iterator[Optional[Batch]], list[LayerState]]:
    """RETURNS (tuple): Batches of this process's rows, and the states of these rows."""
    n_predictions = int(sentences.lengths[chosen].sum()) + len(chosen)
    n_rows = max(1, min(n_predictions // _ROW_LENGTH, batch_words))
    # The number of steps per batch changes no result, as there are no gradients.
    epoch = ContiguousBatches(sentences, chosen, n_rows, batch_words // n_rows)
    first, last = epoch.rows(rank(), world_size())
    batches = (epoch.read(number, rank(), world_size()) for number in range(len(epoch)))
    return batches, model.new_states(last - first)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
