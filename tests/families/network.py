"""What the networks of all families share, one token and one step at a time.

Written from the specification's section on common ground. Everything that differs between the
families (names, gate orders, highway gates, character ids) stays in their own modules. Arrays keep
the dtype of the weights: float64 for references, float32 to see what rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
from numpy import ndarray

Architecture = dict[str, Any]
Weights = dict[str, ndarray]
GATES = ("input", "forget", "cell", "output")


class Cell(NamedTuple):
    """An LSTM cell with projection; D is its width and P that of its outputs.

    gates (Mapping): For each of `GATES` the input's weights (inputs, D), the state's weights (P, D)
        and the bias (D,). Anything that is added to the forget gate at run time is in its bias.
    projection (ndarray | None): Shape (D, P); None where D = P needs none.
    """

    gates: Mapping[str, tuple[ndarray, ndarray, ndarray]]
    projection: ndarray | None
    cell_clip: float | None
    proj_clip: float | None


def sigmoid(x: ndarray) -> ndarray:
    """The logistic function, without overflow."""
    return 0.5 * (1 + numpy.tanh(0.5 * x))


def activate(x: ndarray, activation: str) -> ndarray:
    return {"relu": lambda: numpy.maximum(x, 0), "tanh": lambda: numpy.tanh(x)}[activation]()


def convolve(
    characters: ndarray, filters: Sequence[tuple[ndarray, ndarray]], activation: str
) -> ndarray:
    """Maximum of each filter over all positions of a token, padding included.

    characters (ndarray): Embedded characters, shape (M, E).
    filters (Sequence): Weights (n_i, E, w_i) and bias (n_i,) of each.
    RETURNS (ndarray): Shape (F,), in the order of the filters.
    """
    features = []
    for weight, bias in filters:
        outputs, _, width = weight.shape
        starts = range(len(characters) - width + 1)
        windows = numpy.stack([characters[start : start + width].ravel() for start in starts])
        matrix = weight.transpose(2, 1, 0).reshape(-1, outputs)  # Its rows are those of (w_i, E).
        features.append(activate((windows @ matrix + bias).max(axis=0), activation))
    return numpy.concatenate(features)


def clip(x: ndarray, limit: float | None) -> ndarray:
    return x if limit is None else numpy.clip(x, -limit, limit)


def run_cell(cell: Cell, inputs: ndarray) -> ndarray:
    """The cell's outputs from zero states.

    inputs (ndarray): Shape (steps, inputs).
    RETURNS (ndarray): Shape (steps, P).
    """
    outputs = []
    bias = cell.gates["input"][2]
    c = numpy.zeros_like(bias)
    width = len(bias) if cell.projection is None else cell.projection.shape[1]
    h = numpy.zeros(width, dtype=bias.dtype)
    for x in inputs:
        z = {name: x @ w + h @ u + b for name, (w, u, b) in cell.gates.items()}
        c = sigmoid(z["input"]) * numpy.tanh(z["cell"]) + sigmoid(z["forget"]) * c
        c = clip(c, cell.cell_clip)
        m = sigmoid(z["output"]) * numpy.tanh(c)
        h = m if cell.projection is None else clip(m @ cell.projection, cell.proj_clip)
        outputs.append(h)
    return numpy.stack(outputs)


def run_stack(cells: Sequence[Cell], inputs: ndarray, skip: bool) -> list[ndarray]:
    """One direction: the inputs and the outputs of every layer, in the order of reading.

    skip (bool): Add a layer's input to its output, from the second layer on.
    RETURNS (list[ndarray]): L + 1 arrays of shape (steps, P).
    """
    layers = [inputs]
    for number, cell in enumerate(cells):
        y = run_cell(cell, layers[-1])
        layers.append(y + layers[-1] if skip and number > 0 else y)
    return layers


def bidirectional(
    encode: Callable[[str], ndarray],
    boundaries: tuple[str, str],
    cells: Sequence[Sequence[Cell]],
    skip: bool,
    sentence: Sequence[str],
) -> tuple[list[ndarray], list[ndarray]]:
    """All layers of both directions, boundaries included, each in its own order of reading.

    encode (Callable): From a token to its encoding, shape (P,).
    boundaries (tuple[str, str]): The tokens before and after the sentence.
    cells (Sequence): The cells of the forward and of the backward layers.
    """
    framed = [boundaries[0], *sentence, boundaries[1]]
    encoded = numpy.stack([encode(token) for token in framed])
    return run_stack(cells[0], encoded, skip), run_stack(cells[1], encoded[::-1], skip)


def side_by_side(forward: Sequence[ndarray], backward: Sequence[ndarray]) -> ndarray:
    """All layers without the boundaries, shape (L + 1, tokens, 2P)."""
    both = [numpy.concatenate([f, b[::-1]], axis=1) for f, b in zip(forward, backward)]
    return numpy.stack(both)[:, 1:-1]


def cached(encode: Callable[[str], ndarray]) -> Callable[[str], ndarray]:
    """Encode every token once: encodings do not depend on the sentence."""
    encodings: dict[str, ndarray] = {}

    def lookup(token: str) -> ndarray:
        if token not in encodings:
            encodings[token] = encode(token)
        return encodings[token]

    return lookup


def cast(weights: Mapping[str, ndarray], dtype: type) -> Weights:
    return {name: array.astype(dtype) for name, array in weights.items()}


def uniform(
    rng: numpy.random.Generator, shape: Sequence[int], fan_in: int, scale: float = 1.0
) -> ndarray:
    """Random float32 weights whose sums over `fan_in` inputs are about as large as `scale`."""
    limit = scale * (3 / fan_in) ** 0.5
    return rng.uniform(-limit, limit, tuple(shape)).astype(numpy.float32)


def random_filters(rng: numpy.random.Generator, widest: int) -> list[list[int]]:
    """One to five filters `[width, outputs]`, in rising order of their widths as published."""
    widths = sorted(rng.choice(widest, size=rng.integers(1, 1 + min(5, widest)), replace=False))
    return [[int(width) + 1, int(rng.integers(2, 7))] for width in widths]


def total_filters(architecture: Architecture) -> int:
    return sum(outputs for _, outputs in architecture["filters"])


def random_model(
    family: Any, seed: int = 0, settings: Mapping[str, Any] | None = None, **changes: Any
) -> tuple[Architecture, Weights, list[list[str]]]:
    """A model of a family, and sentences for it.

    settings (Mapping): Those of the family's `random_architecture`.
    changes: What the architecture has in place of what was drawn.
    """
    rng = numpy.random.default_rng(seed)
    architecture = family.random_architecture(rng, **settings or {}) | changes
    weights = family.random_weights(architecture, rng)
    return architecture, weights, family.random_sentences(architecture, rng)


def pick(rng: numpy.random.Generator, *options: Any) -> Any:
    return options[int(rng.integers(len(options)))]
