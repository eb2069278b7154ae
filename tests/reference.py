"""The biLM's arithmetic once more: one token, one step, one direction at a time, in float64.

Written from the published description and from bilm-tf's conventions, not from `spacy_elmo.bilm`:
it shares nothing with the models under test but the names of their parameters and settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy import ndarray

# Rows of the character table; a byte b has row b + 1 and row 0 is never read.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261


class Reference(NamedTuple):
    layers: ndarray  # (L+1, tokens, 2P)
    cell_clips: int  # How many values were clipped in the last sentence, all layers together.
    projection_clips: int


def reference_layers(
    bilm, tokens: Sequence[str], before: Sequence[Sequence[str]] = ()
) -> Reference:
    """All layers of one sentence.

    before: The sentences that the states have seen before, for stateful models.
    """
    config, weights = bilm.config, float64_weights(bilm)
    p = config.lstm.projection_dim
    framed = [["<S>", *sentence, "</S>"] for sentence in (*before, tokens)]
    encodings: dict[str, ndarray] = {}
    layers = numpy.zeros((config.lstm.n_layers + 1, len(tokens), 2 * p))
    clips = numpy.zeros(2, dtype=int)
    for number, direction in enumerate(("forward", "backward")):
        turned = [sentence[:: 1 - 2 * number] for sentence in framed]
        flat = [token for sentence in turned for token in sentence]
        for token in flat:
            if token not in encodings:
                encodings[token] = encode_token(bilm, weights, token)
        x = numpy.stack([encodings[token] for token in flat])
        ours = slice(len(flat) - len(tokens) - 1, len(flat) - 1)
        side = slice(number * p, (number + 1) * p)
        layers[0, :, side] = x[ours][:: 1 - 2 * number]
        for layer in range(config.lstm.n_layers):
            stem = f"lstm.{direction}_layers.{layer}."
            y, counts = run_lstm(config.lstm, weights, stem, x)
            clips += counts[ours].sum(0)
            x = x + y if layer > 0 and config.lstm.use_skip_connections else y
            layers[layer + 1, :, side] = x[ours][:: 1 - 2 * number]
    return Reference(layers, int(clips[0]), int(clips[1]))


def float64_weights(bilm) -> dict[str, ndarray]:
    return {
        name: parameter.detach().cpu().numpy().astype(numpy.float64)
        for name, parameter in bilm.named_parameters()
    }


def encode_token(bilm, weights: dict[str, ndarray], token: str) -> ndarray:
    """Layer 0 of one token, shape (P,)."""
    config = bilm.config.char_cnn
    if config is None:
        rows = {word: row for row, word in enumerate(bilm.vocabulary)}
        return weights["token_encoder.embedding.weight"][rows.get(token, rows["<UNK>"])]
    rows = character_rows(token, config.max_characters_per_token)
    characters = weights["token_encoder.char_embedding.weight"][rows]
    x = numpy.concatenate(
        [
            convolve(weights, f"token_encoder.convolutions.{i}.", characters, width)
            for i, (width, _) in enumerate(config.filters)
        ]
    )
    x = numpy.maximum(x, 0) if config.activation == "relu" else numpy.tanh(x)
    for i in range(config.n_highway):
        stem = f"token_encoder.highways.{i}."
        gate = sigmoid(affine(weights, stem + "carry.", x))
        x = gate * numpy.maximum(affine(weights, stem + "transform.", x), 0) + (1 - gate) * x
    if "token_encoder.projection.weight" in weights:
        x = affine(weights, "token_encoder.projection.", x)
    return x


def character_rows(token: str, length: int) -> list[int]:
    if token == "<S>":
        inner = [BEGIN_SENTENCE]
    elif token == "</S>":
        inner = [END_SENTENCE]
    else:
        text = "".join(c for c in token if not "\ud800" <= c <= "\udfff")
        inner = [byte + 1 for byte in text.encode("utf8")][: length - 2]
    rows = [BEGIN_WORD, *inner, END_WORD]
    return rows + [PADDING] * (length - len(rows))


def convolve(weights: dict[str, ndarray], stem: str, x: ndarray, width: int) -> ndarray:
    """The maximum of each filter over all windows, padding included."""
    kernel, bias = weights[stem + "weight"], weights[stem + "bias"]
    windows = [x[start : start + width].T for start in range(len(x) - width + 1)]
    return numpy.max([(kernel * window).sum((1, 2)) for window in windows], axis=0) + bias


def run_lstm(config, weights: dict[str, ndarray], stem: str, x: ndarray) -> tuple[ndarray, ndarray]:
    """One layer in one direction: outputs (steps, P), and what each step clipped (steps, 2)."""
    weight, bias = weights[stem + "gate_weight"], weights[stem + "gate_bias"]
    projection = weights.get(stem + "projection_weight")
    h, c = numpy.zeros(config.projection_dim), numpy.zeros(config.dim)
    outputs, clips = [], []
    for step in x:
        gates = weight @ numpy.concatenate((step, h)) + bias
        i, j, f, o = gates.reshape(4, config.dim)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * numpy.tanh(j)
        c, cell_clips = clip(c, config.cell_clip)
        h, projection_clips = sigmoid(o) * numpy.tanh(c), 0
        if projection is not None:
            h, projection_clips = clip(projection @ h, config.proj_clip)
        outputs.append(h)
        clips.append((cell_clips, projection_clips))
    return numpy.stack(outputs), numpy.array(clips)


def clip(x: ndarray, bound: float | None) -> tuple[ndarray, int]:
    if bound is None:
        return x, 0
    return numpy.clip(x, -bound, bound), int((abs(x) > bound).sum())


def affine(weights: dict[str, ndarray], stem: str, x: ndarray) -> ndarray:
    return weights[stem + "weight"] @ x + weights[stem + "bias"]


def sigmoid(x: ndarray) -> ndarray:
    return 0.5 * (1 + numpy.tanh(0.5 * x))
