"""Fit a `WordPooling` for the weights of a pipeline."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import numpy
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import to_numpy

from ..component import Elmo, pipe_settings
from ..pooling import WordPooling
from .records import Progress

# Chosen on the training and development parts of the STS benchmark, and on search.
SMOOTHING, CONTEXTUAL_SHARE, POWER, WIDTH, N_WORDS = 1e-4, 0.3, -0.35, 256, 5_000
MAX_SENTENCES = 20_000


def fit_pooling(
    nlp: Language, elmo: Elmo, docs: Iterable[Doc], progress: Progress = None
) -> WordPooling:
    """Fit what `WeightedPooling` uses, and give it to the weights of a component.

    docs (Iterable[Doc]): Tokenised texts: word frequencies are those of all, the mean and the
        principal components those of the sentences of a random sample of them.
    progress (Optional[Callable]): Called with docs of the sample, and the number of all.
    RAISES (ValueError): If there are too few sentences, they are all the same, or the component
        pools in another way.
    """
    counts, sample = _count_and_sample(docs)
    if not counts:
        raise ValueError("the texts have no words")
    bilm, width = elmo.bilm, elmo.bilm.config.output_dim
    plain = _weighted_mean(counts, bilm.config.n_activations, width)
    if elmo.pooling is not None and elmo.pooling(plain) is not plain:
        raise ValueError(
            f"{elmo.name} would not use what is fitted: its setting `pooling` says otherwise, set "
            "it to null"
        )
    elmo.pooling, bilm.pooling, before = None, plain, (elmo.pooling, bilm.pooling)
    try:
        vectors = _sentence_vectors(nlp, elmo, sample, progress)
    finally:
        elmo.pooling, bilm.pooling = before
    if len(vectors) < 2 * width:
        raise ValueError(
            f"{len(vectors)} sentences are too few to fit a pooling of width {width}: give texts "
            f"with {2 * width} at least"
        )
    mean = vectors.mean(axis=0)
    variances, axes = numpy.linalg.eigh(numpy.cov((vectors - mean).T))
    if not variances[-1] > 1e-9 * (mean @ mean):  # Equal vectors may differ in their last bits.
        raise ValueError(f"all {len(vectors)} sentences have the same vector: give other texts")
    scales = numpy.maximum(variances, 1e-6 * variances[-1]) ** POWER  # Below, it is rounding.
    matrix = (axes * scales)[:, ::-1][:, :WIDTH]
    # A sentence's vector has a length of about 1.
    matrix /= numpy.sqrt((((vectors - mean) @ matrix) ** 2).sum(axis=1).mean())
    arrays = mean.astype("float32"), numpy.ascontiguousarray(matrix, dtype="float32")
    bilm.pooling = WordPooling(plain.words, plain.word_weights, plain.shares, *arrays)
    return bilm.pooling


def _weighted_mean(counts: Counter[int], n_layers: int, width: int) -> WordPooling:
    """RETURNS (WordPooling): The weights of words and layers, and no more than these."""
    frequent, total = sorted(counts.most_common(N_WORDS)), counts.total()
    weights = [SMOOTHING / (SMOOTHING + n / total) for _, n in frequent]
    shares = numpy.full(n_layers, CONTEXTUAL_SHARE / max(n_layers - 1, 1), dtype="float32")
    shares[0] = 1 - shares[1:].sum()
    words = numpy.array([word for word, _ in frequent], dtype=numpy.uint64)
    identity = numpy.zeros(width, dtype="float32"), numpy.eye(width, dtype="float32")
    return WordPooling(words, numpy.array(weights, dtype="float32"), shares, *identity)


def _count_and_sample(docs: Iterable[Doc]) -> tuple[Counter[int], list[Doc]]:
    """RETURNS (tuple): How often each word is there, and docs in a random order."""
    counts: Counter[int] = Counter()
    sample: list[Doc] = []
    chance = random.Random(0)
    for number, doc in enumerate(docs):
        counts.update(token.lower for token in doc if not token.is_space)
        place = number if number < MAX_SENTENCES else chance.randrange(number + 1)
        sample[place : place + 1] = [doc] if place < MAX_SENTENCES else sample[place : place + 1]
    chance.shuffle(sample)
    return counts, sample


def _sentence_vectors(
    nlp: Language, elmo: Elmo, docs: list[Doc], progress: Progress
) -> numpy.ndarray:
    """RETURNS (ndarray): Those of at most `MAX_SENTENCES`; whole docs without boundaries."""
    vectors: list[numpy.ndarray] = []
    for doc in nlp.pipe(docs, **pipe_settings(nlp, elmo, keep_layers=False)):
        spans = doc.sents if doc.has_annotation("SENT_START") else [doc]
        vectors += (to_numpy(x._.elmo) for x in spans if not all(token.is_space for token in x))
        doc._.elmo_tokens = None  # The sample keeps the doc.
        if progress is not None:
            progress(1, len(docs))
        if len(vectors) >= MAX_SENTENCES:
            break
    return numpy.stack(vectors or [numpy.zeros(0)])
