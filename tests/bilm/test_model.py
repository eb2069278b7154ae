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
    arguments,
    assert_close,
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


# ------------------------------------------------------------------------- equality with reference


@pytest.mark.parametrize("seed", SEEDS)
def test_forward_and_sessions_equal_the_reference(seed):
    case = random_case(seed)
    expected = [reference.layers for reference in case.references]
    assert_close(current_session(case.bilm).embed(SENTENCES), expected)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            layers = case.bilm(*arguments(SENTENCES))
        assert layers.requires_grad == enabled
        assert max_difference(layers, numpy.concatenate(expected, axis=1)) <= 1e-5


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
    names, parameters = zip(*bilm.named_parameters())
    assert torch.autograd.gradcheck(
        lambda *values: functional_call(bilm, dict(zip(names, values)), inputs),
        parameters,
        atol=1e-9,  # An error of 0.1% of one gradient is found.
        rtol=1e-5,
        fast_mode=True,
    )


# --------------------------------------------------------------------------- what depends on what


@pytest.mark.parametrize("k", range(5))
def test_the_directions_never_see_each_other(k):
    """A token changes nothing that was read before it: not a bit."""
    bilm, tokens = random_case(7).bilm, ["the", "bank", "of", "the", "river"]
    other = [*tokens[:k], "money", *tokens[k + 1 :]]
    before, after = (current_session(bilm).embed([x])[0] for x in (tokens, other))
    forward, backward = (before - after).abs().split(bilm.config.lstm.projection_dim, dim=2)
    assert not forward[:, :k].any() and not backward[:, k + 1 :].any()
    assert all(x[1:, k].any(dim=1).all() for x in (forward, backward))
