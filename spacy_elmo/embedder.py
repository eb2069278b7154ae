"""For people who come from AllenNLP, ELMoForManyLangs or TF Hub: token lists in, arrays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Union

import numpy

from .bilm.precision import Precision
from .resolve import load_weights


class Embedder:
    """Embeds lists of tokens, with the same encoder as the pipeline component.

    weights (Union[str, Path]): A name, a folder, or a file of weights.
    precision (str): Arithmetic; see `spacy-elmo.PretrainedBiLM.v1`.
    device (str): Where to compute, "cpu" or "cuda".
    stateful (bool): Carry LSTM states from batch to batch, row by row, as AllenNLP does.
    RAISES (ValueError): If the weights cannot be read, or there is no such device.
    """

    def __init__(
        self,
        weights: Union[str, Path],
        *,
        precision: Precision = "float32",
        device: str = "cpu",
        stateful: bool = False,
    ) -> None:
        bilm = load_weights(weights)
        try:
            self.bilm = bilm.to(device)
        except (AssertionError, RuntimeError) as error:  # PyTorch's, for what it does not have.
            raise ValueError(
                f"device {device!r}: {error}; give 'cpu', 'cuda' or 'cuda:1'"
            ) from error
        self.bilm.precision = precision
        self.bilm.stateful = stateful

    def embed_sentence(self, tokens: Sequence[str]) -> numpy.ndarray:
        """RETURNS (ndarray): All layers of one sentence, shape (L+1, tokens, 2P)."""
        return self.embed_batch([tokens])[0]

    def embed_batch(self, sentences: Sequence[Sequence[str]]) -> list[numpy.ndarray]:
        """Embed sentences together.

        sentences (Sequence[Sequence[str]]): Lists of tokens; may be empty.
        RETURNS (list): All layers of each sentence, shape (L+1, tokens, 2P).
        RAISES (ValueError): If a sentence is a string: it must be cut into tokens first; or if a
            token is none.
        """
        sentences = list(sentences)
        for number, sentence in enumerate(sentences):
            for token in sentence:
                if not isinstance(token, str):
                    raise ValueError(
                        f"sentence {number} has a token of type {type(token).__name__} ({token!r}):"
                        " give strings, such as [token.text for token in doc]"
                    )
        return [layers.cpu().numpy() for layers in self.bilm.embed(sentences)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = 64
    ) -> Iterator[numpy.ndarray]:
        """Embed a stream.

        sentences (Iterable[Sequence[str]]): Lists of tokens.
        batch_size (int): Sentences per batch.
        YIELDS (ndarray): All layers of each sentence in order, shape (L+1, tokens, 2P).
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, found {batch_size}")
        stream = iter(sentences)
        while batch := list(islice(stream, batch_size)):
            yield from self.embed_batch(batch)

    def __call__(self, sentences: Sequence[Union[str, Sequence[str]]]) -> dict[str, numpy.ndarray]:
        """The named outputs of the TF Hub module (google/elmo/3).

        sentences (Sequence): Lists of tokens, or strings, which are cut at spaces.
        RETURNS (dict): Padded with zeros to the longest sentence:
            word_emb: The token encoder, shape (sentences, longest, P).
            lstm_outputs1, lstm_outputs2, ...: The biLSTM layers, (sentences, longest, 2P).
            elmo: The mean of all layers, (sentences, longest, 2P).
            default: The mean of `elmo` over the tokens, (sentences, 2P).
        """
        if isinstance(sentences, str):
            raise ValueError(f"give a list of sentences, not one string: {sentences[:40]!r}")
        tokens = [text.split() if isinstance(text, str) else text for text in sentences]
        config = self.bilm.config
        longest = max(map(len, tokens), default=0)
        layers = numpy.zeros(
            (config.n_activations, len(tokens), longest, config.output_dim), dtype=numpy.float32
        )
        for row, sentence in enumerate(self.embed_batch(tokens)):
            layers[:, row, : sentence.shape[1]] = sentence
        elmo = layers.mean(0)
        counts = numpy.array([[max(len(sentence), 1)] for sentence in tokens], dtype=numpy.float32)
        return {
            "word_emb": layers[0, :, :, : config.projection_dim],
            **{f"lstm_outputs{i}": layers[i] for i in range(1, len(layers))},
            "elmo": elmo,
            "default": elmo.sum(1) / counts.reshape(-1, 1),
        }
