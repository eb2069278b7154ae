"""What pages need of vectors: the arrays of words, the nearest words, places on a map, colours."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Optional

import numpy
from spacy.tokens import Token
from thinc.api import to_numpy

from ..tools.neighbors import normalize

_VECTOR_BYTES = 1_500_000  # Of all vectors of a page, of which base64 makes four thirds.
_ROWS = 500  # That are compared with all others at once.


def read_arrays(tokens: Sequence[Token], has_layers: bool) -> numpy.ndarray:
    """RETURNS (ndarray): The vectors of tokens in the mix, or in each layer, float32, shape
    (layers, tokens, width)."""
    arrays: list[numpy.ndarray] = []
    for doc, group in groupby(tokens, attrgetter("doc")):
        members = list(group)
        if has_layers and (layers := doc._.elmo_layers) is not None:
            arrays.append(to_numpy(layers)[:, [token.i for token in members]])
        elif not has_layers and members[0]._.elmo is not None:
            # Each of them compares its word, so that a retokenised doc is an error.
            arrays.append(numpy.stack([to_numpy(token._.elmo) for token in members])[None])
        else:
            what = "layers" if has_layers else "vectors"
            need = "an elmo component" + " that has keep_layers = true" * has_layers
            raise ValueError(f"no ELMo {what} in the doc '{doc.text:.50}': process it with {need}")
    if len({(len(array), array.shape[2]) for array in arrays}) > 1:
        raise ValueError("the docs have vectors of several widths: process all by one pipeline")
    return numpy.concatenate(arrays, axis=1, dtype="float32")


def read_layer(tokens: Sequence[Token], layer: Optional[int]) -> tuple[numpy.ndarray, str]:
    """RETURNS (tuple): The same for a layer, or None for the mix, shape (1, tokens, width), and
    what a page calls it."""
    arrays = read_arrays(tokens, layer is not None)
    if layer is None:
        return arrays, "the component's mix of the layers"
    if not -len(arrays) <= layer < len(arrays):
        raise ValueError(f"no layer {layer}: the docs have layers 0 to {len(arrays) - 1}")
    return arrays[layer][None], f"layer {layer % len(arrays)}"


def find_nearest(
    arrays: numpy.ndarray, sentences: Sequence[Sequence[Token]], n: int
) -> list[list[list[tuple[int, int]]]]:
    """RETURNS (list): By layer and word, the nearest words of other sentences, or of the only one,
    without punctuation: their numbers and cosines in per cent, best first."""
    units, lengths = normalize(arrays), [len(sentence) for sentence in sentences]
    number = numpy.repeat(numpy.arange(len(lengths)), lengths)
    is_punct = numpy.array([token.is_punct for sentence in sentences for token in sentence])
    found: list[list] = [[] for _ in units]
    for layer, rows in zip(units, found):
        for start in range(0, len(layer), _ROWS):
            part = slice(start, start + _ROWS)
            cosines = layer[part] @ layer.T
            if len(sentences) > 1:
                cosines[number[part, None] == number] = -numpy.inf
            cosines[:, is_punct] = -numpy.inf
            numpy.fill_diagonal(cosines[:, part], -numpy.inf)
            best = numpy.argpartition(-cosines, min(n, len(layer)) - 1, axis=1)[:, :n]
            for row, chosen in zip(cosines, best):
                chosen = chosen[numpy.argsort(-row[chosen], kind="stable")]
                rows.append([(int(j), round(100 * float(row[j]))) for j in chosen if row[j] >= -2])
    return found


def pack(vectors: numpy.ndarray) -> dict[str, Any]:
    """RETURNS (dict): What the script computes colours from: unit vectors in 8 bits, projected to
    their principal directions where a page would be too large."""
    units, (n_words, width) = normalize(vectors), vectors.shape
    n_kept = min(width, _VECTOR_BYTES // n_words)
    if n_kept < width:
        units = units @ numpy.linalg.eigh(units.T @ units).eigenvectors[:, -n_kept:]
        units = normalize(units)
    scale = max(float(numpy.abs(units).max()), 1e-9) / 127
    codes = numpy.rint(units / scale).astype("int8")
    text = base64.b64encode(codes.tobytes()).decode("ascii")
    return {"width": n_kept, "scale": scale**2, "vectors": text}


def project(vectors: numpy.ndarray) -> tuple[numpy.ndarray, float, float]:
    """RETURNS (tuple): The places of vectors on a map of their two principal components, in per
    cent of its width and height; width / height; and how much of the variance it shows."""
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = numpy.linalg.svd(centred, full_matrices=False)
    places = numpy.zeros((len(vectors), 2))
    places[:, : len(values)] = (left * values)[:, :2]
    centre = (places.max(axis=0) + places.min(axis=0)) / 2
    # Both axes have one scale. The map is neither very flat nor higher than wide.
    width, height = numpy.maximum(numpy.ptp(places, axis=0), 1e-6)
    width, height = max(width, height), max(height, width / 2)
    places = 50 + 92 * (places - centre) / (width, -height)
    total = (values**2).sum()
    shown = float((values[:2] ** 2).sum() / total) if total else 1.0
    return places, float(width / height), shown
