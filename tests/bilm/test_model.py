"""The biLM against a plain float64 reference, and the contracts of its forward pass."""

import functools
import random
from typing import NamedTuple

import numpy
import pytest
import torch
from torch.func import functional_call

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.inference import current_session

from ..conftest import (
    TINY,
    TINY_WORDS,
    WORDS,
    assert_gradients,
    max_difference,
    random_bilm,
)
from ..reference import Reference, reference_layers

# One token, none, every kind of script, boundaries as tokens, a repeat, longer than any limit.
SENTENCES = (
    ("The", "bank", "of", "the", "river", "."),
    ("money",),
    (),
    ("naïve", "e\u0301", "漢字", "שלום", "😀👩‍👧", "\ud800", "\0"),
    ("<S>", "", "</S>", "bank", "bank"),
    ("Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 2, "x"),
)
SEEDS = range(36)


class Case(NamedTuple):
    bilm: BiLM
    references: list[Reference]


@functools.cache
def random_case(seed: int) -> Case:
    """A random architecture; the seeds together go through every choice."""
    choose = random.Random(seed)
    dim = choose.randint(3, 16)
    clips = (None, 3.0, 0.3, 0.05)
    lstm = LSTMConfig(
        dim=dim,
        projection_dim=dim if seed % 4 == 0 else choose.randint(2, dim - 1),
        n_layers=1 + seed % 3,
        cell_clip=clips[seed % 4] if seed % 8 < 6 else choose.choice(clips),
        proj_clip=clips[seed // 4 % 4],
        use_skip_connections=seed % 5 < 3,
    )
    if seed % 6 == 5:
        config = BiLMConfig(lstm, n_tokens_vocab=len(WORDS))
    else:
        filters = [(choose.randint(1, 7), choose.randint(1, 9)) for _ in range(1 + seed % 4)]
        config = BiLMConfig(
            lstm,
            CharCNNConfig(
                filters=tuple(filters),
                activation=("relu", "tanh")[seed // 2 % 2],
                n_highway=seed // 3 % 3,
                embedding_dim=choose.randint(1, 6),
                max_characters_per_token=choose.choice((7, 20, 50)),
            ),
        )
    bilm = random_bilm(config, seed, scale=choose.choice((1.0, 2.0)))
    return Case(bilm, [reference_layers(bilm, tokens) for tokens in SENTENCES])


def arguments(sentences):
    """What `BiLM.forward` takes, from sentences as lists of tokens."""
    types = list(dict.fromkeys(token for tokens in sentences for token in tokens))
    index = numpy.array([types.index(token) for tokens in sentences for token in tokens], dtype=int)
    return types, index, [len(tokens) for tokens in sentences]


# ------------------------------------------------------------------------- equality with reference


@pytest.mark.parametrize("seed", SEEDS)
def test_forward_and_sessions_equal_the_reference(seed):
    case = random_case(seed)
    for layers, reference in zip(current_session(case.bilm).embed(SENTENCES), case.references):
        assert max_difference(layers, reference.layers) <= 1e-5
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            layers = case.bilm(*arguments(SENTENCES))
        assert layers.requires_grad == enabled
        expected = numpy.concatenate([reference.layers for reference in case.references], axis=1)
        assert max_difference(layers.detach(), expected) <= 1e-5


def test_weights_that_saturate_the_published_clips():
    bilm = random_bilm()
    with torch.no_grad():
        for layer in (*bilm.lstm.forward_layers, *bilm.lstm.backward_layers):
            layer.gate_weight *= 2
            layer.gate_bias += 2  # Gates that are open nearly always let the cells grow.
            layer.projection_weight *= 3
    tokens = ["the", "bank", "of", "the", "river", "by", "the", "bank", "of", "money"] * 4
    reference = reference_layers(bilm, tokens)
    assert bilm.config.lstm.cell_clip == bilm.config.lstm.proj_clip == 3.0
    assert reference.cell_clips and reference.projection_clips
    assert max_difference(current_session(bilm).embed([tokens])[0], reference.layers) <= 1e-4


def test_no_sentences_and_only_empty_ones():
    bilm = random_bilm()
    assert current_session(bilm).embed([]) == []
    assert [tuple(layers.shape) for layers in current_session(bilm).embed([[], []])] == [
        (3, 0, 12)
    ] * 2
    for lengths in ([], [0, 0]):
        assert bilm([], numpy.array([], dtype=int), lengths).shape == (3, 0, 12)


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_gradients_equal_finite_differences(config):
    bilm = random_bilm(config).double()
    inputs = arguments([["the", "bank", "x"], ["<S>"], [], ["bank", "."]])
    weights = torch.randn(3, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(values):
        return (functional_call(bilm, values, inputs) * weights).sum()

    assert_gradients(bilm, loss, seed=2)


# --------------------------------------------------------------------------- what depends on what


@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("k", [0, 2, 4])
def test_directions_are_uncoupled(seed, k):
    bilm = random_case(seed).bilm
    tokens = ["the", "bank", "of", "the", "river"]
    other = [*tokens[:k], "money", *tokens[k + 1 :]]
    before, after = (
        current_session(bilm).embed([tokens])[0],
        current_session(bilm).embed([other])[0],
    )
    p = bilm.config.lstm.projection_dim
    changed = (before - after).abs().amax(2) > 1e-6
    assert changed[0].tolist() == [i == k for i in range(5)]
    forward, backward = (before - after).abs().split(p, dim=2)
    assert forward[1:, :k].sum() == 0
    assert backward[1:, k + 1 :].sum() == 0
    # Farther away the influence may be less than float32 can tell.
    assert forward[1:, k : k + 2].amax(2).min() > 0
    assert backward[1:, max(k - 1, 0) : k + 1].amax(2).min() > 0
