"""How well a language model predicts text that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy
import torch

from ..bilm.lstm_layer import LayerState
from .batches import Batch, ContiguousBatches, SentenceBatches, find_places, group_by_length
from .corpus import Sentences
from .distributed import rank, sum_over_processes, world_size
from .language_model import LanguageModel
from .vocabulary import UNK_ID

# With the LSTMs' states, or with the place of each row's prediction; see `perplexity`.
Batches = Iterator[tuple[Optional[Batch], Optional[list[LayerState]], Any]]
_SAMPLE_SEED = 0  # The same for all runs, so that their perplexities can be compared.
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
    log_probabilities: Optional[numpy.ndarray] = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], object] = lambda n, total: None,
) -> Optional[dict[str, Any]]:
    """Evaluate with exact probabilities of every word and, in each direction, one boundary per
    sentence. A word outside the vocabulary counts as a prediction of `<UNK>`.

    max_words (int): Words of the random sample that is read, the same every time; 0 for all.
    carry_state (bool): Read the sentences in a random order, with the LSTMs' states carried over.
    log_probabilities (Optional[ndarray]): Filled with those of all that is predicted, in nats, if
        no state is carried. Shape (2, predictions): of each sentence, in both directions, its words
        in order, then the boundary.
    should_stop (Callable): Called before every batch.
    progress (Callable): Called after every batch, with the words of all processes, and their total.
    RETURNS (Optional[dict]): Perplexities, counts, and the share of "unknown" words; None: stopped.
    """
    chosen = _choose(sentences, max_words, carry_state)
    read = _carried_rows if carry_state else _whole_sentences
    was_training, n_chosen = model.training, int(sentences.lengths[chosen].sum())
    model.eval()
    # Forward and backward log probabilities, unigram's, unknown words, words, predictions.
    sums = numpy.zeros(6)
    try:
        for batch, states, places in read(model, sentences, chosen, batch_words):
            if should_stop():
                return None
            if batch is None:
                continue
            both = model.log_likelihood(batch, states).double().cpu().numpy()
            sums += _sum(both, batch, unigram)
            progress(batch.n_words * world_size(), n_chosen)
            if log_probabilities is not None:
                numpy.put_along_axis(log_probabilities, places, both, axis=1)
    finally:
        model.train(was_training)
    total = sum_over_processes(torch.from_numpy(sums).to(model.bilm.device))
    return {**_perplexities(total.tolist(), unigram is not None), "n_sentences": len(chosen)}


def _perplexities(sums: list[float], has_unigram: bool) -> dict[str, Any]:
    *logarithms, n_unknown, n_words, n_targets = sums
    forward, backward, words = (-value / n_targets for value in logarithms)
    means = {"forward": forward, "backward": backward, "average": (forward + backward) / 2}
    means |= {"unigram": words} if has_unigram else {}
    return {
        "unigram": None,
        **{name: math.exp(x) if x < 700 else math.inf for name, x in means.items()},
        "n_words": int(n_words),
        "unknown": n_unknown / max(n_words, 1),
    }


def _sum(both: numpy.ndarray, batch: Batch, unigram: Optional[numpy.ndarray]) -> numpy.ndarray:
    targets = batch.targets[0]
    of_unigram = 0.0 if unigram is None else unigram[targets].sum()
    n_unknown = (targets == UNK_ID).sum()
    return numpy.array([*both.sum(1), of_unigram, n_unknown, batch.n_words, batch.n_targets])


def _choose(sentences: Sentences, max_words: int, carry_state: bool) -> numpy.ndarray:
    if not len(sentences):
        raise ValueError("no sentence to evaluate on")
    if not max_words and not carry_state:
        return numpy.arange(len(sentences))
    # Not the beginning: a corpus is in the order of its files.
    chosen = numpy.random.default_rng(_SAMPLE_SEED).permutation(len(sentences))
    n_before = numpy.cumsum(sentences.lengths[chosen])
    return chosen[: int(numpy.searchsorted(n_before, max_words or math.inf, side="left")) + 1]


def finite(scores: dict[str, Any]) -> dict[str, Any]:
    """RETURNS (dict): As JSON can hold it: infinite perplexities are None."""
    return {name: None if value == math.inf else value for name, value in scores.items()}


def _whole_sentences(
    model: LanguageModel, sentences: Sentences, chosen: numpy.ndarray, batch_words: int
) -> Batches:
    # Each process reads other batches; None if none is left for it.
    epoch = SentenceBatches(sentences, group_by_length(sentences.lengths, chosen, batch_words))
    for number in range(rank(), len(epoch) + rank(), world_size()):
        if number >= len(epoch):
            yield None, None, None
            continue
        yield epoch.read(number), None, find_places(sentences, epoch.plan[number])


def _carried_rows(
    model: LanguageModel, sentences: Sentences, chosen: numpy.ndarray, batch_words: int
) -> Batches:
    n_predictions = int(sentences.lengths[chosen].sum()) + len(chosen)
    n_rows = max(1, min(n_predictions // _ROW_LENGTH, batch_words))
    # The number of steps per batch changes no result, as there are no gradients.
    epoch = ContiguousBatches(sentences, chosen, n_rows, batch_words // n_rows)
    first, last = epoch.rows(rank(), world_size())
    states = model.new_states(last - first)
    for number in range(len(epoch)):
        yield epoch.read(number, rank(), world_size()), states, None
