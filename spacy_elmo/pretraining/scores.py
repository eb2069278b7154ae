"""How probable each token is, from what stands before it and from what stands after it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

import numpy

from ..bilm.validation import token_lists
from ..weights import DEFAULT
from .corpus import Sentences
from .head import open_language_model
from .language_model import LanguageModel
from .perplexity import perplexity
from .vocabulary import UNK_ID

UNITS = {"nats": 1.0, "bits": math.log(2)}


class TokenScores(NamedTuple):
    """The log probabilities of a sentence; surprisals are these times -1.

    tokens (list[str]): The sentence.
    forward (ndarray): Of each token after those before it, float64, shape (tokens,).
    backward (ndarray): Of each token before those after it, float64, shape (tokens,).
    unknown (ndarray): Whether the output layer lacks the token, so that its log probabilities are
        those of all such tokens together, `<UNK>`; bool, shape (tokens,).
    end, begin (float): Of the end of the sentence, forward, and of its beginning, backward.
    """

    tokens: list[str]
    forward: numpy.ndarray
    backward: numpy.ndarray
    unknown: numpy.ndarray
    end: float
    begin: float


class ScoreTokens:
    """Log probabilities of tokens by a language model (Peters et al. 2018, section 3.1), each list
    a sentence, read from zero states and without padding.

    model (Union[str, Path]): A name, a pipeline or weights that have an output layer.
    head (Optional[Path]): The folder of another output layer.
    unit (str): "nats" or "bits".
    device (str): A device of PyTorch.
    RAISES (ValueError): If there is no such model, or no output layer.
    """

    def __init__(
        self,
        model: Union[str, Path] = DEFAULT,
        *,
        head: Union[str, Path, None] = None,
        unit: Literal["nats", "bits"] = "nats",
        device: str = "cpu",
    ) -> None:
        if unit not in UNITS:
            raise ValueError(f"unknown unit {unit!r}: choose one of {', '.join(UNITS)}")
        self.unit, self._name = unit, str(model)
        language_model, output = open_language_model(model, None if head is None else Path(head))
        self._model, self._words = language_model.to(device), output.words

    def __repr__(self) -> str:
        facts = self._model.bilm.facts()
        size = f"{len(self._words):,} words, {self.unit}"
        return f"ScoreTokens({self._name!r}: {', '.join(facts.values())}, {size})"

    def __call__(self, sentences: Iterable[Iterable[str]]) -> list[TokenScores]:
        """RETURNS (list[TokenScores]): The scores of each sentence.
        RAISES (ValueError): If a sentence is no list of tokens."""
        tokens = Sentences.from_tokens(token_lists(sentences), self._words)
        scores: list[TokenScores] = []
        if len(tokens):
            scores.extend(score(self._model, tokens, UNITS[self.unit])[1])
        return scores


def score(
    model: LanguageModel, sentences: Sentences, unit: float = 1.0, **settings: Any
) -> tuple[dict[str, Any], Iterator[TokenScores]]:
    """RETURNS (tuple): What `perplexity` returns, with these settings, and the scores of each
    sentence, in so many nats."""
    both = numpy.empty((2, len(sentences.ids) + len(sentences)))
    result = perplexity(model, sentences, log_probabilities=both, **settings)
    assert result is not None
    both /= unit
    return result, _by_sentence(sentences, both)


def _by_sentence(sentences: Sentences, both: numpy.ndarray) -> Iterator[TokenScores]:
    is_unknown = (sentences.ids >= sentences.n_vocabulary) | (sentences.ids == UNK_ID)
    start = 0
    for number, end in enumerate(sentences.ends.tolist()):
        words = slice(start + number, end + number)
        tokens = [sentences.types[i] for i in sentences.ids[start:end].tolist()]
        forward, backward = both[:, words]
        boundaries = both[:, end + number].tolist()
        yield TokenScores(tokens, forward, backward, is_unknown[start:end], *boundaries)
        start = end
