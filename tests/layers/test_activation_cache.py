"""What the cache keeps, where, and for how long."""

from __future__ import annotations

import copy
import pickle

import numpy
import pytest
from spacy.training import Example
from spacy.util import registry
from thinc.api import Adam, Model, NumpyOps, get_current_ops, set_current_ops

from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import Session, current_session
from spacy_elmo.layers.activation_cache import ActivationCache

from ..conftest import add_tagger, elmo_pipeline, listener, max_difference, random_bilm, tagged

N_BYTES = 3 * 5 * 4 * 4
MB = N_BYTES / 2**20


def activations(seed=0):
    return numpy.random.default_rng(seed).normal(size=(3, 5, 4)).astype("float32")


def test_what_came_first_stays():
    cache = ActivationCache(2.1 * MB)
    for seed in range(4):
        cache.put(seed, activations(seed))
    assert [cache.get(seed) is not None for seed in range(4)] == [True, True, False, False]
    assert cache.n_bytes == 2 * N_BYTES


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_empty(again):
    cache = ActivationCache(MB, half_precision=True)
    assert cache.put("a", activations()).dtype == cache.get("a").dtype == "float16"
    other = again(cache)
    assert len(other) == 0 and len(cache) == 1
    assert (other.memory_mb, other.half_precision) == (MB, True)


def test_impossible_settings():
    with pytest.raises(ValueError, match="memory_mb must be 0 or more, found -1"):
        ActivationCache(memory_mb=-1)


# In a pipeline


def training_pipeline(path, frozen_components=(), **cache):
    """With a tagger that listens."""
    safetensors_format.write(random_bilm(), path / "weights")
    block = {"@misc": "spacy-elmo.ActivationCache.v1", **cache}
    nlp = elmo_pipeline(path / "weights", activation_cache=block)
    add_tagger(nlp)
    with nlp.select_pipes(disable=frozen_components):  # As `spacy train` does.
        nlp.initialize(lambda: tagged(nlp))
    return nlp


@pytest.fixture
def runs(monkeypatch):
    """Grows with every run of a biLM."""
    runs, batches = [], Session.batches

    def count(*args):
        runs.append(1)
        return batches(*args)

    monkeypatch.setattr(Session, "batches", count)
    return runs


def test_predictions_between_updates_are_exact_and_not_kept(tmp_path):
    nlp = training_pipeline(tmp_path, half_precision=True)
    nlp.update(tagged(nlp), sgd=Adam(0.01))
    cache = nlp.get_pipe("elmo").activation_cache
    n_entries = len(cache)
    assert n_entries > 0
    for text in ["The bank flows.", "Money flows", "Money in the bank"]:  # Two were trained on.
        doc = nlp(text)
        [expected] = current_session(random_bilm()).embed([[token.text for token in doc]])
        assert max_difference(doc._.elmo_layers, expected) < 1e-5
    nlp.evaluate(tagged(nlp))
    assert len(cache) == n_entries


@pytest.mark.parametrize("where", ["first", "last"])
def test_evaluations_while_training_are_kept(tmp_path, runs, where):
    """From the second one on. Also if components after it set the boundaries of sentences."""
    nlp = training_pipeline(tmp_path)
    nlp.add_pipe("sentencizer", **{where: True})
    unseen = [Example.from_dict(nlp.make_doc(text), {}) for text in ("A b . C d .", "E f")]
    nlp.update(tagged(nlp), sgd=Adam(0.01))
    runs.clear()
    for _ in range(4):
        nlp.evaluate(unseen)
        nlp.update(tagged(nlp), sgd=Adam(0.01))
    assert len(runs) == 2
    nlp.get_pipe("elmo").end_training()
    nlp.evaluate(unseen)
    assert len(nlp.get_pipe("elmo").activation_cache) == 0


def test_a_component_that_only_annotates_uses_the_cache(tmp_path, runs):
    """It keeps what it predicts twice, and knows of the training from the second step on."""
    nlp = training_pipeline(tmp_path, frozen_components=["elmo"])
    runs.clear()
    for _ in range(4):
        nlp.update(tagged(nlp), sgd=Adam(0.01), annotates=["elmo"], exclude=["elmo"])
    assert len(runs) == 3


class DeviceArray(numpy.ndarray):
    """What FakeGPU holds."""


class FakeGPU(NumpyOps):
    """Its arrays are of another class, and thinc counts what comes and goes."""

    def __init__(self):
        super().__init__()
        self.transfers = []

    def asarray(self, data, dtype=None):
        array = super().asarray(data, dtype=dtype)
        if array.ndim == 3 and not isinstance(array, DeviceArray):
            self.transfers.append(array.shape)
            array = array.view(DeviceArray)
        return array

    def to_numpy(self, data, *, byte_order=None):
        return super().to_numpy(data, byte_order=byte_order).view(numpy.ndarray)


def test_arrays_are_those_of_the_ops_and_the_cache_is_in_main_memory(tmp_path):
    """Also while other ops are current."""
    seen = []

    @registry.layers("test.Recorder.v1")
    def make_recorder():
        def forward(model, X, is_train):
            seen.append((type(X), X.shape))
            return X.mean(0), lambda dY: numpy.repeat(dY[None], len(X), 0)

        return Model("recorder", forward)

    before, ops = get_current_ops(), FakeGPU()
    set_current_ops(ops)
    try:
        safetensors_format.write(random_bilm(), tmp_path / "weights")
        nlp = elmo_pipeline(tmp_path / "weights")
        add_tagger(nlp, listener({"@layers": "test.Recorder.v1"}))
        nlp.initialize(lambda: tagged(nlp))
    finally:
        set_current_ops(before)
    for _ in range(2):
        del seen[:], ops.transfers[:]
        nlp.update(tagged(nlp), sgd=Adam(0.01))
        assert [kind for kind, _ in seen] == [DeviceArray]
        assert ops.transfers == [shape for _, shape in seen]  # All sequences at once.
