"""Embed lists of tokens."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional, Union

import numpy
import torch
from spacy.util import minibatch

from ..bilm.validation import token_lists
from ..formats import load
from ..inference import Settings, current_session
from ..inference.settings import Precision, check_precision
from ..weights import DEFAULT, load_bilm


class EmbedTokens:
    """Embeds lists of tokens as the component does, with the methods of AllenNLP's `ElmoEmbedder`.

    weights (Union[str, Path]): A name, a folder, a file of weights, or a pipeline.
    options_file, weight_file (Optional[Union[str, Path]]): The two published files instead.
    precision (str): Arithmetic; see `spacy-elmo.PretrainedBiLM.v1`.
    stateful (bool): Carry LSTM states from batch to batch, row by row, as AllenNLP does.
    """

    def __init__(
        self,
        weights: Union[str, Path] = DEFAULT,
        *,
        options_file: Optional[Union[str, Path]] = None,
        weight_file: Optional[Union[str, Path]] = None,
        precision: Precision = "float32",
        device: str = "cpu",
        stateful: bool = False,
    ) -> None:
        if (options_file is None) != (weight_file is None):
            raise ValueError("give options_file and weight_file together, or weights alone")
        options = None if options_file is None else Path(options_file)
        bilm = load_bilm(weights) if weight_file is None else load(weight_file, options)
        self.bilm, self._name = bilm.to(device), str(weight_file or weights)
        self._settings = Settings(precision=precision, stateful=stateful)
        check_precision(precision, self.bilm.device)

    def __repr__(self) -> str:
        facts = self.bilm.facts(self._settings.precision)
        return f"EmbedTokens({self._name!r}: {', '.join(facts.values())})"

    def embed_sentence(self, tokens: Iterable[str]) -> numpy.ndarray:
        """RETURNS (ndarray): All layers of one sentence, shape (L+1, tokens, 2P)."""
        return self.embed_batch([tokens])[0]

    def embed_batch(self, sentences: Iterable[Iterable[str]]) -> list[numpy.ndarray]:
        """Embed lists of tokens without padding: a token "" or "<pad>" is a word like any other.
        RETURNS (list): All layers of each sentence, shape (L+1, tokens, 2P). No two share memory.
        """
        tokens = token_lists(sentences)
        if any("" in sentence for sentence in tokens):
            message = "there is an empty token (''), which is read as a word: leave out padding"
            warnings.warn(message, stacklevel=2)
        embedded = current_session(self.bilm, self._settings).embed(tokens)
        if embedded and self.bilm.device.type != "cpu":  # One transfer, not one per sentence.
            lengths = [len(sentence) for sentence in tokens]
            embedded = list(torch.cat(embedded, dim=1).cpu().split(lengths, dim=1))
        # Copies: a view would keep the whole batch in memory.
        return [numpy.array(layers.numpy(), order="C") for layers in embedded]

    def embed_sentences(
        self, sentences: Iterable[Iterable[str]], batch_size: int = 64
    ) -> Iterator[numpy.ndarray]:
        """Embed a stream, so many sentences at a time.
        YIELDS (ndarray): All layers of each sentence in order, shape (L+1, tokens, 2P)."""
        for batch in minibatch(sentences, max(batch_size, 1)):
            yield from self.embed_batch(batch)
