"""How well a language model predicts text it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy
import torch

from ..bilm.characters import character_ids
from .batches import Batch, CarriedRows, SentenceBatches, plan_evaluation
from .corpus import Corpus, Sentences
from .distributed import rank, summed, world_size
from .language_model import LanguageModel
from .vocabulary import BOS_ID, EOS_ID, UNK_ID

# Of the sample of a text: the same for all runs, or their perplexities could not be compared.
_SAMPLE_SEED = 0
# Predictions per row of a stream, or more. Each row begins with zero states, which a model that was
# trained with carried ones predicts badly from: rows must be long for that not to count.
_ROW_LENGTH = 1000


@dataclass(frozen=True)
class Perplexity:
    """Perplexities over all predictions of a text: every word, and in each direction one sentence
    boundary. A word outside the vocabulary counts as a prediction of `<UNK>`, so that figures for
    other vocabularies are not comparable.

    forward, backward (float): exp of the mean negative log probability in nats.
    average (float): exp of the mean of both.
    unigram (Optional[float]): Of the words' frequencies in the training text alone; None if they
        are not known.
    n_words (int): Words, boundaries not counted.
    n_sentences (int): Sentences.
    unknown (float): The part of the words that are outside the vocabulary.
    """

    forward: float
    backward: float
    average: float
    unigram: Optional[float]
    n_words: int
    n_sentences: int
    unknown: float

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): As JSON can hold it: a perplexity that is infinite is None."""
        values = asdict(self).items()
        return {name: None if value == math.inf else value for name, value in values}


def perplexity(
    model: LanguageModel,
    corpus: Corpus,
    sentences: Sentences,
    *,
    batch_words: int = 4096,
    max_words: int = 0,
    carry_state: bool = False,
    counts: Optional[numpy.ndarray] = None,
    before_batch: Optional[Callable[[], None]] = None,
) -> Perplexity:
    """Evaluate with the exact probabilities: of a full softmax, however it was trained.

    model (LanguageModel): The model.
    corpus (Corpus): Where the types' characters are.
    sentences (Sentences): What to predict.
    batch_words (int): Words at a time.
    max_words (int): Evaluate only a sample of the sentences, of so many words together, which is
        the same every time; 0 for all.
    carry_state (bool): Read the sentences in a random order, which is the same every time, as rows
        that go on from batch to batch with the LSTMs' states, as a training with
        `pretraining.carry_state` does. Less than one word per row is left out at the end.
    counts (Optional[ndarray]): How often each type occurs in the training text, if known.
    before_batch (Optional[Callable]): Called again and again while the sentences are read, equally
        often in all processes. What it raises ends the evaluation.
    RETURNS (Perplexity): Of all processes together, each of which must call it.
    RAISES (ValueError): If there is nothing to predict.
    """
    if not len(sentences):
        raise ValueError("no sentence to evaluate on")
    chosen = numpy.arange(len(sentences))
    if max_words or carry_state:
        # Not the beginning: a corpus is in the order of its files.
        chosen = numpy.random.default_rng(_SAMPLE_SEED).permutation(len(sentences))
    if max_words:
        n_before = numpy.cumsum(sentences.lengths[chosen])
        chosen = chosen[: int(numpy.searchsorted(n_before, max_words, side="left")) + 1]
    n_vocabulary = model.output.n_words
    unigram = None if counts is None else unigram_log_probabilities(counts, n_vocabulary, corpus)
    states = None
    batches: Iterator[Optional[Batch]]
    if carry_state:
        n_predictions = int(sentences.lengths[chosen].sum()) + len(chosen)
        n_rows = max(1, min(n_predictions // _ROW_LENGTH, batch_words))
        # The number of steps per batch changes no result, as there are no gradients.
        stream = CarriedRows(sentences, chosen, n_rows, batch_words // n_rows, n_vocabulary)
        first, last = stream.rows(rank(), world_size())
        states = model.new_states(last - first)
        batches = (stream.read(number, rank(), world_size()) for number in range(len(stream)))
    else:
        plan = plan_evaluation(sentences.lengths, chosen, batch_words)
        whole = SentenceBatches(sentences, plan, n_vocabulary)
        # Each process reads other batches.
        batches = (
            whole.read(number) if number < len(whole) else None
            for number in range(rank(), len(whole) + rank(), world_size())
        )
    # Forward and backward log probabilities, unigram's, unknown words, words, predictions.
    sums = numpy.zeros(6)
    for batch in batches:
        if before_batch is not None:
            before_batch()
        if batch is None:
            continue
        targets = batch.targets[0]
        likelihoods = model.log_likelihood(batch, corpus, states)
        sums[:2] += likelihoods.double().sum(1).cpu().numpy()
        sums[2] += 0 if unigram is None else unigram[targets].sum()
        sums[3:] += (targets == UNK_ID).sum(), batch.n_words, batch.n_targets
    *totals, n_unknown, n_words, n_targets = summed(
        torch.from_numpy(sums).to(model.bilm.device)
    ).tolist()
    forward, backward, alone = (-total / n_targets for total in totals)
    return Perplexity(
        forward=_exp(forward),
        backward=_exp(backward),
        average=_exp((forward + backward) / 2),
        unigram=None if unigram is None else _exp(alone),
        n_words=int(n_words),
        n_sentences=len(chosen),
        unknown=n_unknown / n_words,
    )


def unigram_log_probabilities(
    counts: numpy.ndarray, n_vocabulary: int, corpus: Corpus
) -> numpy.ndarray:
    """The frequencies of the words that are predicted forward, in nats. A word of the vocabulary
    that did not occur counts as half a word."""
    words = counts[:n_vocabulary].astype("float64")
    words[UNK_ID] += counts[n_vocabulary:].sum()
    words[BOS_ID] = 0
    words[EOS_ID] = len(corpus.train)
    words = numpy.maximum(words, 0.5)
    return numpy.log(words / words.sum())


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def text_corpus(
    sentences: Iterable[list[str]], vocabulary: list[str], max_characters: int
) -> Corpus:
    """Sentences as a corpus in memory, all of them in `dev`.

    sentences (Iterable): Sentences as lists of tokens.
    vocabulary (list[str]): The model's words, special ones first.
    max_characters (int): Character ids per type at most.
    """
    ids = {word: i for i, word in enumerate(vocabulary)}
    tokens: list[int] = []
    ends: list[int] = []
    for sentence in sentences:
        tokens += (ids.setdefault(word, len(ids)) for word in sentence)
        ends.append(len(tokens))
    characters, lengths = character_ids(list(ids), max_characters)
    found = Sentences(numpy.array(tokens, dtype="uint32"), numpy.array(ends, dtype="int64"))
    nothing = Sentences(found.ids[:0], found.ends[:0])
    return Corpus(
        Path(),
        {},
        train=nothing,
        dev=found,
        words=vocabulary,
        counts=numpy.zeros(len(ids), dtype="int64"),
        characters=characters,
        lengths=lengths,
    )
