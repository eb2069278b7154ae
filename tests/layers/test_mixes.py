"""Each mix against numpy, and its gradient against small differences."""

from __future__ import annotations

import numpy
import pytest
from thinc.api import registry

from spacy_elmo.layers.mixes import ConcatLayers, FrozenMix, SingleLayer

from ..conftest import max_difference

N_LAYERS, WIDTH = 3, 4

MIXES = {
    "uniform": (FrozenMix(), lambda X: X.mean(axis=0)),
    "scaled": (FrozenMix(gamma=-0.5), lambda X: -0.5 * X.mean(axis=0)),
    "weighted": (
        FrozenMix([0.2, 0.0, 3.0], gamma=2.0),
        lambda X: 2.0 * (0.2 * X[0] + 3.0 * X[2]),
    ),
    "all zero": (FrozenMix([0, 0, 0]), lambda X: numpy.zeros_like(X[0])),
    "bottom": (SingleLayer(0), lambda X: X[0]),
    "top": (SingleLayer(), lambda X: X[2]),
    "counted from the top": (SingleLayer(-2), lambda X: X[1]),
    "concatenated": (ConcatLayers(), lambda X: numpy.concatenate(list(X), axis=1)),
}
every_mix = pytest.mark.parametrize("mix, expected", MIXES.values(), ids=MIXES)


def activations(n_tokens=5, dtype="float32"):
    return numpy.random.default_rng(0).normal(size=(N_LAYERS, n_tokens, WIDTH)).astype(dtype)


@every_mix
def test_values(mix, expected):
    X = activations()
    before = X.copy()
    Y = mix.predict(X)
    assert max_difference(Y, expected(X)) < 1e-6
    assert Y.dtype == X.dtype
    assert numpy.array_equal(X, before)
    # The result is its own: writing to it must not reach the activations.
    Y[:] = 7
    assert numpy.array_equal(X, before)


@every_mix
def test_backprop_is_the_numerical_gradient(mix, expected):
    X = activations(dtype="float64")
    Y, backprop = mix.begin_update(X)
    dY = numpy.random.default_rng(1).normal(size=Y.shape)
    dX = backprop(dY)
    numerical = numpy.zeros_like(X)
    step = 1e-4
    for at in numpy.ndindex(X.shape):
        moved = X.copy()
        moved[at] += step
        numerical[at] = ((expected(moved) - expected(X)) * dY).sum() / step
    assert max_difference(dX, numerical) < 1e-6


@every_mix
def test_no_tokens(mix, expected):
    X = activations(n_tokens=0)
    Y, backprop = mix.begin_update(X)
    assert Y.shape == expected(X).shape
    assert Y.shape[0] == 0 and Y.shape[1] > 0
    assert backprop(Y).shape == X.shape


@every_mix
def test_tokens_are_mixed_one_by_one(mix, expected):
    """The encoder mixes batch by batch, which must not matter."""
    X = activations()
    parts = [mix.predict(X[:, :2]), mix.predict(X[:, 2:])]
    assert max_difference(numpy.concatenate(parts), mix.predict(X)) < 1e-6


@pytest.mark.parametrize("weights", [[1.0], [0.25] * 4])
def test_wrong_number_of_weights(weights):
    with pytest.raises(ValueError, match=f"{len(weights)} weights, but the biLM has 3 layers"):
        FrozenMix(weights).predict(activations())


def test_no_weights_at_all():
    with pytest.raises(ValueError, match="weights is empty"):
        FrozenMix([])


@pytest.mark.parametrize("layer", [3, -4])
def test_no_such_layer(layer):
    with pytest.raises(ValueError, match=f"there is no layer {layer}"):
        SingleLayer(layer).predict(activations())


@pytest.mark.parametrize("mix", [FrozenMix([0.2, 0.3, 0.5], 2.0), SingleLayer(1), ConcatLayers()])
def test_copies_and_bytes_keep_the_settings(mix):
    X = activations()
    assert numpy.array_equal(mix.copy().predict(X), mix.predict(X))
    again = mix.copy().from_bytes(mix.to_bytes())
    assert numpy.array_equal(again.predict(X), mix.predict(X))


@pytest.mark.parametrize("name", ["FrozenMix", "SingleLayer", "ConcatLayers"])
def test_the_registry_builds_them_with_their_defaults(name):
    block = {"mix": {"@layers": f"spacy-elmo.{name}.v1"}}
    assert registry.resolve(block)["mix"].predict(activations()).shape[0] == 5
