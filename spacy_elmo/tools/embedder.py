"""Embed lists of tokens, with the interfaces of AllenNLP, ELMoForManyLangs and TF Hub."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import numpy
import torch
from spacy.util import minibatch

from ..bilm.validation import check_batch
from ..formats import load
from ..inference import Settings, current_session
from ..inference.settings import Precision, check_precision
from ..weights import DEFAULT, load_bilm

# What to give in place of a batch that is none.
_SENTENCES = "give a list of lists of tokens; embed_sentence takes one of them"


class Embedder:
    """Embeds lists of tokens. The vectors are those of the pipeline component.

    weights (Union[str, Path]): A name, a folder, a file of weights, or a pipeline.
    options_file, weight_file (Optional[Union[str, Path]]): The two published files, instead of
        `weights`. The arguments of AllenNLP.
    precision (str): Arithmetic; see `spacy-elmo.PretrainedBiLM.v1`.
    device (str): The device, such as "cpu" or "cuda".
    stateful (bool): Carry LSTM states from batch to batch, row by row, as AllenNLP does.
    RAISES (ValueError): If the weights cannot be read, there is no such device, or it does not have
        the precision.
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
        if options_file is None or weight_file is None:
            bilm = load_bilm(weights)
        else:
            bilm = load(weight_file, Path(options_file))
        try:
            self.bilm = bilm.to(device)
        except (AssertionError, RuntimeError) as error:
            others = ", 'cuda' or 'cuda:1'" if torch.cuda.is_available() else ""
            raise ValueError(f"device {device!r}: {error}; give 'cpu'{others}") from error
        self._settings = Settings(precision=precision, stateful=stateful)
        check_precision(precision, self.bilm.device)

    def embed_sentence(self, tokens: Iterable[str]) -> numpy.ndarray:
        """RETURNS (ndarray): All layers of one sentence, shape (L+1, tokens, 2P)."""
        return self.embed_batch([tokens])[0]

    def embed_batch(self, sentences: Iterable[Iterable[str]]) -> list[numpy.ndarray]:
        """Embed sentences together.

        sentences (Iterable[Iterable[str]]): Lists of tokens without padding; may be empty. A token
            "" or "<pad>" is a word like any other, as in AllenNLP. There is a warning of "".
        RETURNS (list): All layers of each sentence, shape (L+1, tokens, 2P). No two share memory.
        RAISES (ValueError): If there is one string in place of the sentences, if a sentence is a
            string (split it into tokens first), or if a token is not a string.
        """
        check_batch(sentences, "sentences", _SENTENCES)
        tokens = [s if isinstance(s, str) else list(s) for s in sentences]
        for number, token in ((i, token) for i, s in enumerate(tokens) for token in s):
            if not isinstance(token, str):
                raise ValueError(
                    f"sentence {number} has a token of type {type(token).__name__} ({token!r}): "
                    "give strings, such as [token.text for token in doc]"
                )
        if any("" in sentence for sentence in tokens if not isinstance(sentence, str)):
            warnings.warn(
                "there is an empty token (''): it is read as a word, and changes the vectors of "
                "its sentence; leave out padding, or give a dict of tokens and sequence_len",
                stacklevel=2,
            )
        embedded = current_session(self.bilm, self._settings).embed(tokens)
        if embedded and self.bilm.device.type != "cpu":  # One transfer, not one per sentence.
            lengths = [len(sentence) for sentence in tokens]
            embedded = list(torch.cat(embedded, dim=1).cpu().split(lengths, dim=1))
        # Copies: a view would keep the whole batch in memory.
        return [numpy.array(layers.numpy(), order="C") for layers in embedded]

    def embed_sentences(
        self, sentences: Iterable[Iterable[str]], batch_size: int = 64
    ) -> Iterator[numpy.ndarray]:
        """Embed a stream.

        sentences (Iterable[Iterable[str]]): Lists of tokens.
        batch_size (int): Sentences per batch.
        YIELDS (ndarray): All layers of each sentence in order, shape (L+1, tokens, 2P).
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, found {batch_size}")
        check_batch(sentences, "sentences", _SENTENCES)
        for batch in minibatch(sentences, batch_size):
            yield from self.embed_batch(batch)

    def sents2elmo(
        self, sentences: Iterable[Iterable[str]], output_layer: int = -1
    ) -> list[numpy.ndarray]:
        """Embed sentences, as ELMoForManyLangs does.

        sentences (Iterable[Iterable[str]]): Lists of tokens.
        output_layer (int): A layer (0 is the token encoder), -1 for the mean of all layers, or -2
            for all layers.
        RETURNS (list): For each sentence, shape (tokens, 2P), or (L+1, tokens, 2P) for -2.
        RAISES (ValueError): If there is no such layer.
        """
        n_layers = self.bilm.config.n_activations
        if not -2 <= output_layer < n_layers:
            raise ValueError(
                f"output_layer must be from -2 to {n_layers - 1}, found {output_layer}"
            )
        embedded = self.embed_batch(sentences)
        if output_layer == -1:
            return [layers.mean(axis=0) for layers in embedded]
        return embedded if output_layer == -2 else [x[output_layer].copy() for x in embedded]

    def __call__(
        self, inputs: Union[Iterable[Union[str, Iterable[str]]], Mapping[str, Any]]
    ) -> dict[str, numpy.ndarray]:
        """Embed sentences, as the TF Hub module (google/elmo/3) does.

        inputs (Union[Iterable, Mapping]): Lists of tokens, or strings, which are split at spaces
            (the module's signature "default"); or a dict of `tokens`, rows of equal length that are
            padded at their ends, and `sequence_len`, the length of each (its signature "tokens").
        RETURNS (dict): Padded with zeros to the longest sentence (or to the rows' length):
            word_emb: The token encoder, shape (sentences, longest, P).
            lstm_outputs1, lstm_outputs2, ...: The biLSTM layers, (sentences, longest, 2P).
            elmo: The mean of all layers, (sentences, longest, 2P).
            default: The mean of `elmo` over the tokens, (sentences, 2P).
        RAISES (ValueError): If the input is a string, or if rows and lengths do not match.
        """
        if isinstance(inputs, Mapping):
            tokens, longest = _cut_rows(inputs)
        else:
            check_batch(inputs, "inputs", "give a list of strings, or of lists of tokens")
            tokens = [text.split() if isinstance(text, str) else list(text) for text in inputs]
            longest = max(map(len, tokens), default=0)
        config = self.bilm.config
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


def _cut_rows(inputs: Mapping[str, Any]) -> tuple[list[list[str]], int]:
    """RETURNS (tuple): The sentences without padding, and the length of the rows."""
    if set(inputs) != {"tokens", "sequence_len"}:
        raise ValueError(
            f"a dict of inputs has the keys 'tokens' and 'sequence_len', found {list(inputs)}"
        )
    for name, values in inputs.items():
        check_batch(values, name, "give an item for each sentence")
    # `embed_batch` refuses strings in place of rows.
    rows: list[Any] = [row if isinstance(row, str) else list(row) for row in inputs["tokens"]]
    lengths = [int(length) for length in inputs["sequence_len"]]
    if len(rows) != len(lengths) or any(not 0 <= n <= len(row) for row, n in zip(rows, lengths)):
        raise ValueError(
            f"sequence_len {lengths} does not match tokens, rows of {[len(row) for row in rows]}"
        )
    return [row[:n] for row, n in zip(rows, lengths)], max(map(len, rows), default=0)
