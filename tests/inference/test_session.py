"""Sessions against the plain reference: batches, states, precisions, and changes of weights."""

import copy
import dataclasses
import gc
import os
import pickle
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch

from spacy_elmo.bilm import mixed_precision
from spacy_elmo.inference import Session, Settings, current_session

from ..bilm.test_model import SEEDS, SENTENCES, random_case
from ..conftest import (
    TINY,
    TINY_WORDS,
    WIDER,
    arguments,
    assert_close,
    max_difference,
    needs_bfloat16,
    random_bilm,
)
from ..reference import reference_layers


def embed(bilm, sentences, **settings):
    return current_session(bilm, Settings(**settings)).embed(sentences)


def assert_equals_reference(bilm, session=None):
    expected = [reference_layers(bilm, tokens).layers for tokens in SENTENCES]
    assert_close((session or current_session(bilm)).embed(SENTENCES), expected)


# ------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("max_tokens", [1, 8, 1000])
@pytest.mark.parametrize("seed", SEEDS[::6])
def test_batches(seed, max_tokens):
    """Each token is in one batch, with the layers that the network gives it."""
    bilm = random_case(seed).bilm
    inputs = arguments(SENTENCES)
    session = current_session(bilm, Settings(max_tokens_per_batch=max_tokens))
    batches = list(session.batches(*inputs))
    tokens = numpy.concatenate([numbers for numbers, _ in batches])
    assert sorted(tokens) == list(range(len(inputs[1])))
    layers = torch.cat([layers for _, layers in batches], dim=1)
    assert max_difference(layers, bilm(*inputs)[:, tokens]) <= 1e-5
    if max_tokens == 1:
        assert len(batches) == sum(map(bool, SENTENCES))


# ----------------------------------------------------------------------------------------- stateful


@pytest.fixture
def bilm():
    return random_bilm(scale=2.0)


@pytest.fixture
def stateful(bilm):
    return Session(bilm, Settings(stateful=True, max_tokens_per_batch=3))


CALLS = (
    (("the", "bank"), ("money", "is", "time", ".")),
    (("one", "more", "time", "again"), ("a",), ("b", "c")),  # A new row.
    (("d",), (), ("e", "f", "g")),
    (("h", "i"), ("j",)),  # A row is missing, and keeps its state.
    (("y",), ("y",), ("y",)),
)


def history(row, n_calls):
    """The sentences that a row has seen; an empty one leaves its state alone."""
    return [call[row] for call in CALLS[:n_calls] if row < len(call) and call[row]]


def test_a_row_continues_from_the_same_row_of_the_last_call(stateful, bilm):
    for n_calls, sentences in enumerate(CALLS):
        for row, layers in enumerate(stateful.embed(sentences)):
            reference = reference_layers(bilm, sentences[row], before=history(row, n_calls))
            assert max_difference(layers, reference.layers) <= 1e-5


# ---------------------------------------------------------------------------------------- precision


def test_float16_is_exact_for_weights_stored_in_half_precision():
    bilm = random_bilm(WIDER)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(parameter.half())
    exact = current_session(bilm).embed(SENTENCES)
    assert_close(embed(bilm, SENTENCES, precision="float16"), exact)


def test_int8_points_the_same_way():
    bilm = random_bilm(WIDER)
    exact = current_session(bilm).embed(SENTENCES)
    for layers, other in zip(exact, embed(bilm, SENTENCES, precision="int8")):
        cosine = torch.cosine_similarity(layers, other, dim=-1)
        assert (cosine >= 0.99).all()
        assert not len(layers[0]) or not torch.equal(layers, other)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("n_highway", [0, 1])
def test_autocast_around_inference_changes_nothing(precision, n_highway):
    config = dataclasses.replace(
        WIDER, char_cnn=dataclasses.replace(WIDER.char_cnn, n_highway=n_highway)
    )
    bilm, fresh = random_bilm(config), random_bilm(config)
    expected = embed(fresh, SENTENCES, precision=precision)
    with torch.autocast("cpu", torch.bfloat16):
        inside = embed(bilm, SENTENCES, precision=precision)
        assert torch.is_autocast_enabled("cpu")
    for found in (inside, embed(bilm, SENTENCES, precision=precision)):
        assert all(torch.equal(x, y) for x, y in zip(found, expected))


def test_sentences_may_be_iterators():
    bilm = random_bilm()
    expected = current_session(bilm).embed(SENTENCES)
    for sentences in (iter(SENTENCES), (iter(tokens) for tokens in SENTENCES)):
        found = current_session(bilm).embed(sentences)
        assert_close(found, expected, 0)


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[2:3]])
@pytest.mark.parametrize("inference_mode", [False, True])
def test_each_sentence_has_memory_of_its_own(sentences, inference_mode):
    with torch.inference_mode(inference_mode):
        result = current_session(random_bilm()).embed(sentences)
    for layers in result:
        assert layers.is_contiguous() and not layers.is_inference()
        assert layers.untyped_storage().nbytes() == layers.numel() * layers.element_size()


@needs_bfloat16
@pytest.mark.parametrize("config", [TINY, TINY_WORDS, None], ids=["tiny", "words", "wider"])
def test_bfloat16_is_close(config):
    bilm = random_bilm(config or WIDER)
    sentences = [*SENTENCES, ["a", "longer", "sentence"] * 15]
    exact = current_session(bilm).embed(sentences)
    for layers, other in zip(exact, embed(bilm, sentences, precision="bfloat16")):
        assert other.dtype == torch.float32
        assert max_difference(layers, other) <= 0.05
        assert (torch.cosine_similarity(layers, other, dim=-1) >= 0.999).all()
        assert not len(layers[0]) or not torch.equal(layers, other)


@pytest.mark.parametrize("kind, chosen", [("slow", "float32"), ("fast", "bfloat16")])
def test_auto_goes_by_the_speed_of_a_product(monkeypatch, kind, chosen):
    """Whatever instructions a processor has: some are slower with them."""
    clock, product = [0.0], torch.mm

    def timed(x, weight):
        clock[0] += {"slow": 2, "fast": 0.5}[kind] if x.dtype == torch.bfloat16 else 1
        return product(x, weight)

    monkeypatch.setattr(torch, "mm", timed)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    mixed_precision.bfloat16_speed.cache_clear()
    try:
        settings = Settings("auto", kernel="torch")
        assert Session(random_bilm(WIDER), settings).settings.precision == chosen
    finally:
        mixed_precision.bfloat16_speed.cache_clear()


def test_auto_is_float32_where_others_are_not_close(monkeypatch):
    monkeypatch.setattr("spacy_elmo.inference.session.MIN_COSINE", 1.1)
    assert Session(random_bilm(WIDER), Settings("auto")).settings.precision == "float32"


# ------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "auto"])
@pytest.mark.parametrize("stateful", [False, True])
def test_vectors_do_not_depend_on_the_number_of_threads(set_num_threads, precision, stateful):
    sentences = [[f"w{i * j % 97}" for j in range(i % 30)] for i in range(120)]
    expected = None
    for number in (1, 2, 5):
        set_num_threads(number)
        session = Session(random_bilm(WIDER), Settings(precision, 200, stateful=stateful))
        embedded = session.embed(sentences) + session.embed(sentences)
        expected = expected or embedded
        assert all(torch.equal(*pair) for pair in zip(embedded, expected))


def test_the_number_of_threads_is_left_alone(set_num_threads):
    set_num_threads(3)
    current_session(random_bilm()).embed(SENTENCES)
    with ThreadPoolExecutor(1) as new:
        assert [torch.get_num_threads(), new.submit(torch.get_num_threads).result()] == [3, 3]


# ----------------------------------------------------------------------------------- weight changes


def step(bilm):
    optimizer = torch.optim.SGD(bilm.parameters(), lr=0.1)
    layers = bilm(*arguments(SENTENCES))
    layers.square().mean().backward()
    current_session(bilm).embed(SENTENCES)  # Fills the caches between gradient and step.
    optimizer.step()


def load_in_place(bilm):
    bilm.load_state_dict(random_bilm(bilm.config, seed=1).state_dict())


def load_assigned(bilm):
    bilm.load_state_dict(random_bilm(bilm.config, seed=1).state_dict(), assign=True)


def write_through_data(bilm):
    for parameter in bilm.parameters():
        parameter.data *= 1.1
    bilm.invalidate()


def write_in_place(bilm):
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(1.1)


@pytest.mark.parametrize(
    "change", [step, load_in_place, load_assigned, write_through_data, write_in_place]
)
@pytest.mark.parametrize("config", [TINY, TINY_WORDS], ids=["characters", "words"])
def test_changed_weights_change_the_output(change, config):
    bilm = random_bilm(config)
    before = current_session(bilm).embed(SENTENCES)
    change(bilm)
    assert_equals_reference(bilm)
    assert max_difference(before[0][0], current_session(bilm).embed(SENTENCES)[0][0]) > 1e-4


def test_a_change_of_inference_tensors_is_noticed():
    """PyTorch does not count the changes of weights that were made in inference mode."""
    with torch.inference_mode():
        bilm = random_bilm()
    current_session(bilm).embed(SENTENCES)
    with torch.inference_mode():
        write_in_place(bilm)
    assert_equals_reference(bilm)


def test_a_parameter_that_replaces_another_in_the_same_memory_is_noticed():
    bilm = random_bilm()
    layer = bilm.lstm.forward_layers[0]
    memory = layer.gate_weight.detach().numpy().copy()
    for _ in range(2):
        memory *= 1.1
        layer.gate_weight = torch.nn.Parameter(torch.from_numpy(memory))
        assert_equals_reference(bilm)


# ------------------------------------------------------------------------------------------- copies


def pickled(bilm):
    return pickle.loads(pickle.dumps(bilm))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_goes_its_own_way(duplicate):
    bilm = random_bilm()
    original = current_session(bilm).embed(SENTENCES)
    other = duplicate(bilm)
    write_in_place(other)
    assert_equals_reference(other)
    assert all(torch.equal(x, y) for x, y in zip(original, current_session(bilm).embed(SENTENCES)))


def test_a_session_lasts_until_the_weights_change():
    bilm = random_bilm()
    session = current_session(bilm)
    assert current_session(bilm) is session
    assert current_session(bilm, Settings(precision="float16")) is not session
    assert current_session(bilm) is session
    write_in_place(bilm)
    assert current_session(bilm) is not session


def test_sessions_do_not_keep_a_network_alive():
    bilm = random_bilm()
    current_session(bilm).embed(SENTENCES)
    alive = weakref.ref(bilm)
    del bilm
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_where_none_can_be_used():
    """After the main thread has ended, and in a child that continues what its parent began."""
    program = Path(__file__).parents[1] / "programs" / "embed_at_the_end.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("child 0\nthread 2\n", 0), done.stderr
