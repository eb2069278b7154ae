"""Each mix against numpy, against numerical gradients in float64; the ScalarMix also against the
PyTorch module of the same name."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy
import pytest
import torch
from thinc.api import Model, Ops

from spacy_elmo.bilm.mixes import ScalarMix as TorchScalarMix
from spacy_elmo.layers.batch_layers import BatchLayers
from spacy_elmo.layers.mix_docs import mix_docs
from spacy_elmo.layers.mixes import (
    ConcatLayers,
    FrozenMix,
    LearnedMix,
    MixState,
    ScalarMix,
    SingleLayer,
    mix_state,
)

from ..conftest import max_difference

N_LAYERS, WIDTH = 3, 4
RAW, GAMMA = [0.3, -1.0, 0.8], 1.7


class Case(NamedTuple):
    """A mix, and what it computes with its parameters in float64."""

    mix: Callable[[], Model]
    expected: Callable


def softmax(x):
    exp = numpy.exp(numpy.asarray(x, dtype="float64"))
    return exp / exp.sum()


def weighted(weights, gamma=1.0):
    return lambda X: gamma * sum(weight * layer for weight, layer in zip(weights, X))


def layer_normed(X):
    return (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True)


def linear(model, X):
    return X @ model.get_param("W").T + model.get_param("b")


def learned(X, mix):
    """The linear layers of a LearnedMix over all layers side by side, ReLU between them."""
    first, *others = (node for node in mix.walk() if node.has_param("W"))
    Y = linear(first, numpy.concatenate(list(X), axis=1))
    for other in others:
        Y = linear(other, numpy.maximum(Y, 0))
    return Y


MIXES = {
    "uniform": Case(FrozenMix, lambda X: X.mean(axis=0)),
    "weighted": Case(lambda: FrozenMix([0.2, 0.0, 3.0], gamma=2.0), weighted([0.2, 0.0, 3.0], 2.0)),
    "top": Case(SingleLayer, lambda X: X[2]),
    "counted from the top": Case(lambda: SingleLayer(-2), lambda X: X[1]),
    "concatenated": Case(ConcatLayers, lambda X: numpy.concatenate(list(X), axis=1)),
    "scalar": Case(ScalarMix, lambda X: X.mean(axis=0)),
    "scalar, given start": Case(lambda: ScalarMix(RAW, GAMMA), weighted(softmax(RAW), GAMMA)),
    "scalar, layer norm, l2": Case(
        lambda: ScalarMix(RAW, GAMMA, layer_norm=True, l2=0.3),
        lambda X: weighted(softmax(RAW), GAMMA)(layer_normed(X)),
    ),
    "learned, linear": Case(lambda: LearnedMix(5), learned),
    "learned, hidden layer": Case(lambda: LearnedMix(5, hidden_width=7), learned),
}
every_mix = pytest.mark.parametrize("case", MIXES.values(), ids=MIXES)


def activations(n_tokens=5, dtype="float32"):
    return numpy.random.default_rng(0).normal(size=(N_LAYERS, n_tokens, WIDTH)).astype(dtype)


def ready(case: Case, dtype="float32") -> Model:
    """The mix, initialised, its weights of the given type."""
    mix = case.mix()
    mix.initialize(X=activations())
    for node in mix.walk():
        for name in node.param_names:
            node.set_param(name, node.get_param(name).astype(dtype))
        if dtype == "float64":
            node.ops = Ops()  # NumpyOps multiplies float32 matrices only.
    return mix


def parameters(mix: Model) -> list[tuple[Model, str]]:
    return [(node, name) for node in mix.walk() for name in node.param_names]


@every_mix
def test_values(case):
    mix, X = ready(case), activations()
    before = X.copy()
    Y = mix.predict(X)
    expected = case.expected(X, mix) if case.expected is learned else case.expected(X)
    assert max_difference(Y, expected) < 1e-6
    assert Y.dtype == X.dtype
    assert numpy.array_equal(X, before)
    # The result is its own: writing to it must not reach the activations.
    Y[:] = 7
    assert numpy.array_equal(X, before)


@every_mix
def test_gradients_are_the_numerical_ones(case):
    """Of the loss `sum(Y * dY)`, plus the penalty, for the layers and every weight."""
    mix, X = ready(case, "float64"), activations(dtype="float64")
    Y, backprop = mix.begin_update(X)
    dY = numpy.random.default_rng(1).normal(size=Y.shape)
    dX = backprop(dY)

    def loss():
        l2 = getattr(mix.attrs.get("settings"), "l2", 0.0)
        penalty = l2 * (mix.get_param("weights") ** 2).sum() if l2 else 0.0
        return (mix.predict(X) * dY).sum() + penalty

    def numerical(array):
        gradient, step = numpy.zeros_like(array), 1e-6
        for index in numpy.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            more = loss()
            array[index] = value - step
            gradient[index] = (more - loss()) / (2 * step)
            array[index] = value
        return gradient

    assert max_difference(dX, numerical(X)) < 1e-7
    for node, name in parameters(mix):
        value = node.get_param(name)
        assert value.dtype == "float64"
        expected = numerical(value)
        node.set_param(name, value)
        assert max_difference(node.get_grad(name), expected) < 1e-7, name


@pytest.mark.parametrize(
    "settings",
    [{}, {"weights": RAW, "gamma": GAMMA}, {"weights": RAW, "layer_norm": True, "l2": 0.3}],
)
def test_scalar_mix_equals_the_torch_module(settings):
    mix = ready(Case(lambda: ScalarMix(**settings), weighted), "float64")
    X = activations(5, "float64")
    twin = TorchScalarMix(N_LAYERS, **settings).double()
    with torch.no_grad():
        twin.weights[:] = torch.from_numpy(mix.get_param("weights"))
        twin.gamma[:] = torch.from_numpy(mix.get_param("gamma"))
    layers = torch.from_numpy(X.copy()).requires_grad_()
    Y, backprop = mix.begin_update(X)
    Y_twin = twin(layers)
    assert max_difference(Y, Y_twin.detach()) < 1e-12
    dY = numpy.random.default_rng(1).normal(size=Y.shape)
    ((Y_twin * torch.from_numpy(dY)).sum() + twin.penalty()).backward()
    assert max_difference(backprop(dY), layers.grad) < 1e-12
    assert max_difference(mix.get_grad("weights"), twin.weights.grad) < 1e-12
    assert max_difference(mix.get_grad("gamma"), twin.gamma.grad) < 1e-12


@pytest.mark.parametrize("mix", [ScalarMix(dropout=0.5), LearnedMix(WIDTH, dropout=0.5)])
def test_dropout(mix):
    """While it trains, and only then, half of the values are dropped and the others doubled; the
    gradient goes the same way."""
    X = BatchLayers(activations(n_tokens=500), [500])
    model = mix_docs(mix)
    model.initialize(X=X)
    [plain] = model.predict(X)
    [Y], backprop = model.begin_update(X)
    kept = Y != 0
    assert 0.4 < kept.mean() < 0.6
    assert max_difference(Y[kept], 2 * plain[kept]) < 1e-5
    assert not backprop([numpy.where(kept, 0.0, 1.0).astype("float32")]).any()
    assert numpy.array_equal(model.predict(X)[0], plain)


@pytest.mark.parametrize(
    "mix, message",
    [
        (FrozenMix([1.0]), "FrozenMix has 1 weights, but the biLM has 2 layers"),
        (ScalarMix(), "ScalarMix has 3 weights, but the biLM has 2 layers"),
        (SingleLayer(2), "there is no layer 2, the biLM has .* to 1"),
        (LearnedMix(2), r"12 numbers per token.* has 2 layers of width 4"),
    ],
)
def test_wrong_number_of_layers(mix, message):
    mix.initialize(X=activations())
    with pytest.raises(ValueError, match=message):
        mix.predict(activations()[:2])


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: FrozenMix([1.0], seed=0), "either weights or the seed"),
        (lambda: ScalarMix(l2=-1), "l2 must be 0 or more, found -1"),
        (lambda: LearnedMix(4, dropout=1.0), "dropout must be .* less than 1, found 1.0"),
        (lambda: TorchScalarMix(3, [1.0]), "1 weights for 3 layers"),
    ],
)
def test_impossible_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@every_mix
def test_state(case):
    """What the log and `spacy elmo mixes` print; without an upstream, the number of layers is not
    known, which only the weights of a ScalarMix tell."""
    mix = ready(case)
    state, X = mix_state(mix, N_LAYERS), activations()
    if state.gamma is not None and not getattr(mix.attrs["settings"], "layer_norm", False):
        assert max_difference(mix.predict(X), weighted(state.weights, state.gamma)(X)) < 1e-6
    if mix.name == "single_layer":
        assert max_difference(mix.predict(X), weighted(state.weights)(X)) < 1e-6
    if mix.name == "learned_mix":
        assert sum(state.weights) == pytest.approx(1) and len(state.weights) == N_LAYERS
    assert mix_state(mix, 0) == (state if mix.name == "scalar_mix" else MixState(mix.name))


@every_mix
def test_no_tokens(case):
    mix, X = ready(case), activations(n_tokens=0)
    Y, backprop = mix.begin_update(X)
    assert Y.shape == (0, mix.predict(activations()).shape[1])
    assert backprop(Y).shape == X.shape


@every_mix
def test_frozen_layers_change_nothing_but_their_gradient(case):
    """The vectors and the gradients of the weights are the same if the biLM is frozen."""
    mix, X = ready(case), activations()
    dY = numpy.ones_like(mix.predict(X))
    gradients = []
    for frozen in (False, True):
        model = mix_docs(mix)
        Y, backprop = model.begin_update(BatchLayers(X, [3, 2], frozen))
        assert numpy.array_equal(numpy.concatenate(Y), mix.predict(X))
        backprop([dY[:3], dY[3:]])
        gradients.append([node.get_grad(name).copy() for node, name in parameters(mix)])
        for node, name in parameters(mix):
            node.set_grad(name, numpy.zeros_like(node.get_grad(name)))
    for first, second in zip(*gradients, strict=True):
        assert first.any() and numpy.array_equal(first, second)
