"""A token's vectors depend on its sentence alone: not on how the work is cut, cached or padded."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.inference import Session, Settings, current_session

from ..conftest import TINY, assert_close, max_difference, random_bilm
from ..reference import reference_layers

moderate = settings(deadline=None, max_examples=30)

ODD_TOKENS = ["<S>", "</S>", "", " ", "\0", "\n", "\ud800", "\udfff\ud800", "e\u0301", "漢字", "ǅ"]
ODD_TOKENS += ["a" + "\u0300" * 30, "👩‍👩‍👧‍👦", "😀" * 20, "שלום", "\u202eabc", "한국어", "\ufeff"]
ODD_TOKENS += ["\U0010ffff", "x" * 47, "x" * 48, "x" * 49, "x" * 500]
tokens = st.one_of(
    st.sampled_from(ODD_TOKENS),
    st.text(st.characters(exclude_categories=()), max_size=12),
    st.text("ab", max_size=3),
)
sentences = st.lists(st.lists(tokens, max_size=7), min_size=1, max_size=5)
budgets = st.sampled_from([1, 5, 12, 4096])
bounds = st.sampled_from([0, 400, 2000, 1 << 20])

# Skips, clips that fire, several layers and filters of several widths.
CONFIG = BiLMConfig(
    LSTMConfig(dim=12, projection_dim=6, n_layers=3, cell_clip=0.5, proj_clip=0.2),
    CharCNNConfig(((1, 4), (2, 6), (5, 8)), "tanh", n_highway=1, embedding_dim=4),
)


@functools.cache
def shared_bilm():
    """One model for all examples of a property: its cache fills as it goes."""
    return random_bilm(CONFIG)


@functools.cache
def plain_session():
    """No cache, no batching: one sentence at a time."""
    return Session(random_bilm(CONFIG), Settings(type_cache_mb=0))


def one_by_one(sentences):
    return [plain_session().embed([sentence])[0] for sentence in sentences]


@moderate
@given(sentences, budgets)
def test_batch_size_changes_nothing(sentences, max_tokens):
    session = Session(shared_bilm(), Settings(max_tokens_per_batch=max_tokens))
    assert_close(session.embed(sentences), one_by_one(sentences))


@moderate
@given(st.lists(sentences, min_size=2, max_size=3), bounds)
def test_the_cache_changes_nothing(calls, max_bytes):
    session = Session(shared_bilm(), Settings(type_cache_mb=max_bytes / 2**20))
    for sentences in (*calls, *calls):
        assert_close(session.embed(sentences), one_by_one(sentences))


@moderate
@given(st.lists(tokens, max_size=5))
def test_any_text_gives_what_the_reference_gives(sentence):
    reference = reference_layers(shared_bilm(), sentence).layers
    assert max_difference(current_session(shared_bilm()).embed([sentence])[0], reference) <= 1e-5


@pytest.mark.parametrize("n_types", [127, 128, 129, 300])
def test_many_types_at_once(n_types):
    """More than the character CNN takes in one go."""
    bilm = random_bilm(TINY)
    words = [f"{'w' * (i % 60)}{i}" for i in range(n_types)]
    [together] = current_session(bilm).embed([words])
    apart = torch.cat(
        [current_session(random_bilm(TINY)).embed([[word]])[0][0] for word in words[::37]]
    )
    assert max_difference(together[0, ::37], apart) <= 1e-6


def test_long_sequences_that_need_several_input_products():
    """8 MiB of gates are those of 512 rows here."""
    config = BiLMConfig(LSTMConfig(dim=1024, projection_dim=4, n_layers=1), CONFIG.char_cnn)
    bilm = random_bilm(config)
    sentence = ["a", "b", "c"] * 200
    [layers] = Session(bilm, Settings()).embed([sentence])
    assert max_difference(layers, reference_layers(bilm, sentence).layers) <= 1e-5
