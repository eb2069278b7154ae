"""How docs are cut into the sequences that the biLM reads.

A sequence is never longer than a window, so that a text of any length runs in bounded memory. A
longer stretch of tokens is read in windows that overlap. The first half of an overlap takes its
vectors from the earlier window, the second half from the later one: there they have more context on
both sides. Whitespace tokens are left out.

A segmenter is a function of a doc, which can be pickled (no lambda). It yields a pair for each
sequence, none of them empty: an array of the indices of the doc's tokens, in order, and the slice
of them whose vectors are kept. The vector of every token that is not whitespace is kept from
exactly one sequence, which `Sequences.cut` checks. One that is a `partial`, as those of `cut_doc`
are, shows its settings in `spacy elmo info`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy
from spacy.attrs import IS_SPACE, ORTH, SENT_START
from spacy.tokens import Doc
from spacy.util import registry

from .bilm.validation import check_range

DEFAULT_WINDOW = 512
DEFAULT_OVERLAP = 64
# A doc with more tokens is rarely a single sentence.
_LONG_SENTENCE = 100

Segmenter = Callable[[Doc], Iterator[tuple[numpy.ndarray, slice]]]


def cut_doc(
    doc: Doc, *, by_sentence: bool, window: int, overlap: int
) -> Iterator[tuple[numpy.ndarray, slice]]:
    """Cut a doc into windows.

    by_sentence (bool): Cut at sentence boundaries, if the doc has them.
    window (int): Maximum number of tokens in a sequence.
    overlap (int): Tokens that neighbouring windows share.
    """
    values = doc.to_array([IS_SPACE, SENT_START])
    words = numpy.flatnonzero(values[:, 0] == 0)
    stretches = [words]
    if by_sentence and doc.has_annotation("SENT_START"):
        sentences = numpy.flatnonzero(values[:, 1] == 1)
        stretches = numpy.split(words, numpy.searchsorted(words, sentences))
    elif by_sentence and len(doc) > _LONG_SENTENCE:
        # The text is always the same: Python shows it once.
        warnings.warn(
            f"elmo reads a text of more than {_LONG_SENTENCE} tokens without sentence "
            "boundaries, not sentence by sentence: this can be several times slower, and gives "
            "other vectors. Add a component that sets them before it, as with "
            'nlp.add_pipe("sentencizer", before="elmo"), or choose the segmenter for whole texts '
            "in the config (model.segmenter): spacy-elmo.docs.v1",
            stacklevel=2,
        )
    for tokens in stretches:
        n = len(tokens)
        if not n:
            continue
        # The last window is a full one: its tokens have context.
        starts = [*range(0, n - window, window - overlap), max(n - window, 0)]
        kept = 0
        for start, following in zip(starts, [*starts[1:], n]):
            end = min(start + window, n)
            last = end if following == n else (end + following) // 2
            yield tokens[start:end], slice(kept - start, last - start)
            kept = last


@dataclass
class Sequences:
    """The sequences of some docs, as the biLM reads them, one after the other.

    orth (ndarray): Word types of all tokens of the docs.
    tokens (ndarray): The numbers, in the concatenation of all docs, of the tokens of the sequences.
    kept (ndarray): Whether the vector is kept, for each of `tokens`.
    lengths (ndarray): Tokens of each sequence.
    """

    docs: Sequence[Doc]
    orth: numpy.ndarray
    tokens: numpy.ndarray
    kept: numpy.ndarray
    lengths: numpy.ndarray

    @classmethod
    def cut(cls, docs: Sequence[Doc], segmenter: Segmenter) -> Sequences:
        """RETURNS (Sequences): What a segmenter makes of docs. It must keep each word once."""
        tokens, kept, lengths = [numpy.zeros(0, dtype=int)], [numpy.zeros(0, dtype=bool)], []
        n_tokens = 0
        for doc in docs:
            for indices, kept_slice in segmenter(doc):
                tokens.append(indices + n_tokens)
                kept.append(numpy.zeros(len(indices), dtype=bool))
                kept[-1][kept_slice] = True
                lengths.append(len(indices))
            n_tokens += len(doc)
        columns: list[numpy.ndarray] = [numpy.zeros((0, 2), dtype=numpy.uint64)]
        columns += [doc.to_array([ORTH, IS_SPACE]) for doc in docs]
        orth, is_space = numpy.concatenate(columns).T
        flat = numpy.concatenate(tokens), numpy.concatenate(kept)
        n_kept = numpy.bincount(flat[0][flat[1]], minlength=n_tokens)
        if not numpy.array_equal(n_kept, is_space == 0):
            raise ValueError(
                f"the segmenter {segmenter} does not keep the vector of each token that is not "
                "whitespace from exactly one sequence"
            )
        return cls(docs, orth, *flat, numpy.array(lengths, dtype=int))

    def types(self) -> tuple[list[str], numpy.ndarray]:
        """RETURNS (tuple): The distinct texts, and the number of each token's text among them."""
        orth = self.orth[self.tokens]
        _, first, index = numpy.unique(orth, return_index=True, return_inverse=True)
        # The text comes from the type's first token: docs may have different vocabs.
        ends = numpy.cumsum([0, *map(len, self.docs)])
        first_tokens = self.tokens[first]
        numbers = numpy.searchsorted(ends, first_tokens, side="right") - 1
        pairs = zip(numbers.tolist(), (first_tokens - ends[numbers]).tolist())
        return [self.docs[number][i].text for number, i in pairs], index.reshape(-1)

    def key(self) -> tuple[bytes, ...]:
        """RETURNS (tuple): What distinguishes these sequences from those of other docs."""
        parts = (self.orth, self.tokens, self.kept, self.lengths)
        return tuple(part.tobytes() for part in parts)


def _segmenter(by_sentence: bool, window: int, overlap: int) -> Segmenter:
    check_range("segmenter: window", window, 1)
    check_range("segmenter: overlap", overlap, 0, window)
    return partial(cut_doc, by_sentence=by_sentence, window=window, overlap=overlap)


@registry.misc("spacy-elmo.sentences.v1")
def sentences(window: int = DEFAULT_WINDOW, overlap: int = DEFAULT_OVERLAP) -> Segmenter:
    """Sentences if the doc has boundaries, else the whole doc; long ones in windows."""
    return _segmenter(True, window, overlap)


@registry.misc("spacy-elmo.docs.v1")
def docs(window: int = DEFAULT_WINDOW, overlap: int = DEFAULT_OVERLAP) -> Segmenter:
    """Whole docs, across sentence boundaries; long ones in windows."""
    return _segmenter(False, window, overlap)
