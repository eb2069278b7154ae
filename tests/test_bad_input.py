"""Strange texts and impossible settings."""

from __future__ import annotations

import gc
import os

import numpy
import psutil
import pytest
import safetensors.torch
import spacy
import srsly
import torch
from spacy.tokens import Doc
from thinc.api import Model

from spacy_elmo.inference import Session, Settings, current_session

from .conftest import TINY, elmo_pipeline, max_difference

# Long texts among them have no sentence boundaries, which is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.* without sentence boundaries")

STRANGE = {
    "empty": [],
    "whitespace": [" ", "\n\n", "\t"],
    "no-break space": ["\u00a0", "\u2003", "a"],
    "one token": ["bank"],
    "very long token": ["x" * 1000, "bank"],
    "long token of wide characters": ["界" * 1000],
    "emoji": ["👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "ok"],
    "combining marks": ["e\u0301", "Z" + "\u0300\u0301\u0302" * 30, "\u0301"],
    "NUL": ["\x00", "a\x00b", "\x00" * 60],
    "right to left": ["שלום", "עולם", "\u202eabc\u202c", "مرحبا"],
    "CJK": ["私", "は", "銀行", "が", "好き", "。"],
    "boundaries as tokens": ["<S>", "bank", "</S>", "<UNK>"],
    "private and unassigned": ["\ue000", "\U0010ffff", "\ufeff", "\ufffd"],
    "the same again and again": ["a"] * 300,
}


def strange_docs(nlp):
    return [Doc(nlp.vocab, words=words) for words in STRANGE.values()]


@pytest.mark.parametrize("size", [2, 1000])
def test_strange_docs(nlp, size):
    """In a batch and each alone."""
    together = list(nlp.pipe(strange_docs(nlp), batch_size=size))
    for name, doc, alone in zip(STRANGE, together, map(nlp, strange_docs(nlp)), strict=True):
        assert [token.text for token in doc] == STRANGE[name]
        layers = doc._.elmo_layers
        assert layers.shape == (TINY.n_activations, len(doc), TINY.output_dim)
        assert numpy.isfinite(layers).all()
        is_space = [token.is_space for token in doc]
        assert [not layers[:, i].any() for i in range(len(doc))] == is_space
        assert max_difference(layers, alone._.elmo_layers) < 1e-5, name
        assert max_difference(doc._.elmo_tokens, alone._.elmo_tokens) < 1e-5, name


# Texts and streams without end


def test_a_long_doc_runs_in_bounded_memory(nlp, weights_folder, monkeypatch):
    """All layers exist side by side for one batch at a time only, and the vectors are those of its
    windows."""
    n_tokens, spaces, window, overlap = 6_000, [10, 5000, 5999], 512, 64
    nlp = elmo_pipeline(weights_folder, keep_layers=False)
    elmo = nlp.get_pipe("elmo")
    words = [f"w{i * 7919 % 1009}" for i in range(n_tokens)]
    for at in spaces:
        words[at] = "\n"
    computed, mixed = [], []
    batches, mix = Session.batches, elmo.mix

    def spy_on_batches(*args):
        for tokens, layers in batches(*args):
            computed.append(layers.shape[1])
            yield tokens, layers

    def spy_on_mix(model, X, is_train):
        mixed.append(X.shape[1])
        return mix(X, is_train)

    elmo.mix = Model("spy", spy_on_mix)
    monkeypatch.setattr(Session, "batches", spy_on_batches)
    doc = nlp(Doc(nlp.vocab, words=words))
    assert max(computed + mixed) <= Settings().max_tokens(torch.device("cpu"))
    # Every token at least once, those in overlaps twice.
    assert n_tokens < sum(computed) < 1.25 * n_tokens
    assert sum(mixed) == n_tokens - len(spaces) + 1  # A token of zeros tells the width.
    assert doc._.elmo_layers is None
    assert numpy.flatnonzero(~doc._.elmo_tokens.any(axis=1)).tolist() == spaces
    tokens = numpy.array([token.i for token in doc if not token.is_space])
    # In the middle of each window; its edges may belong to the neighbours.
    middle = slice(overlap, window - overlap)
    for start in (0, window - overlap, 10 * (window - overlap)):
        rows = tokens[start : start + window]
        [layers] = current_session(elmo.bilm).embed([[words[i] for i in rows.tolist()]])
        expected = layers.mean(dim=0).numpy()
        assert max_difference(doc._.elmo_tokens[rows[middle]], expected[middle]) < 1e-5


TOKENS_PER_DOC = 20


def stream(nlp, n_tokens, seed=0):
    """Docs of about 20 tokens, made one at a time."""
    rng = numpy.random.default_rng(seed)
    shares = 1 / numpy.arange(1, 20_001)  # As Zipf's law has it.
    words, shares = [f"w{i}" for i in range(len(shares))], shares / shares.sum()
    while n_tokens > 0:
        length = int(rng.integers(1, 2 * TOKENS_PER_DOC))
        chosen = rng.choice(len(words), min(length, n_tokens), p=shares)
        n_tokens -= length
        yield Doc(nlp.vocab, words=[words[i] for i in chosen])


def growth(nlp, n_tokens, n_warm, **kwargs):
    """Resident memory in bytes: the most above what stood after `n_warm` tokens."""
    process = psutil.Process(os.getpid())
    seen, measured, before, most = 0, 0, None, 0
    for doc in nlp.pipe(stream(nlp, n_tokens), **kwargs):
        assert len(doc._.elmo_tokens) == len(doc)
        seen += len(doc)
        if before is None and seen >= n_warm:
            gc.collect()
            before = process.memory_info().rss
        # Now and then: reading it takes longer than a doc.
        if before is not None and seen - measured > n_tokens // 100:
            measured = seen
            most = max(most, process.memory_info().rss - before)
    assert seen == n_tokens
    assert before is not None
    return most


@pytest.mark.parametrize("n_tokens", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_stream(weights_folder, n_tokens):
    nlp = elmo_pipeline(weights_folder, keep_layers=False)
    assert growth(nlp, n_tokens, n_warm=max(20_000, n_tokens // 10)) < 50 << 20


# Settings


@pytest.mark.parametrize(
    "config, message",
    [
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"activation_cache": {"memory_mb": "many"}}, "memory_mb"),
        ({"model": {"type_cache_mb": -1}}, "type_cache_mb must be 0 or more"),
        (
            {"model": {"precision": "fp16"}},
            "unknown precision 'fp16': choose one of float32, float16, int8",
        ),
        ({"model": {"max_tokens_per_batch": 0}}, "must be 1 or more"),
        ({"model": {"segmenter": {"window": 0}}}, "window must be 1 or more"),
        ({"model": {"segmenter": {"@misc": "spacy-elmo.nothing.v1"}}}, "spacy-elmo.nothing.v1"),
        ({"model": {"wieghts": "x"}}, "wieghts"),
    ],
)
def test_wrong_settings_are_refused_when_the_component_is_made(weights_folder, config, message):
    with pytest.raises(ValueError, match=message):
        elmo_pipeline(weights_folder, **config)


# Damaged pipelines


def changed_model(data: bytes, change) -> bytes:
    """Rewrite the bytes of a component's model; `change` takes and returns those of its biLM."""
    model = srsly.msgpack_loads(data)
    shims = [shim for shims in model["shims"] for shim in shims]
    assert len(shims) == 1
    contents = srsly.msgpack_loads(shims[0])
    contents["state"] = change(contents["state"])
    for shims in model["shims"]:
        shims[:] = [srsly.msgpack_dumps(contents) for _ in shims]
    return srsly.msgpack_dumps(model)


def with_options(data: bytes, section: str, **values) -> bytes:
    """The bytes of a biLM with other options in its metadata."""
    with_length = int.from_bytes(data[:8], "little")
    header = srsly.json_loads(data[8 : 8 + with_length])
    contents = srsly.json_loads(header["__metadata__"]["spacy-elmo"])
    contents["options"][section].update(values)
    tensors = safetensors.torch.load(data)
    return safetensors.torch.save(tensors, {"spacy-elmo": srsly.json_dumps(contents)})


DAMAGE = {
    "cut in the middle": (lambda data: data[: len(data) // 2], ""),
    "no shims": (lambda data: srsly.msgpack_dumps({**srsly.msgpack_loads(data), "shims": []}), ""),
    "cut weights": (
        lambda data: changed_model(data, lambda state: state[:-100]),
        "the serialized biLM cannot be read",
    ),
    "no weights": (lambda data: changed_model(data, lambda state: 5), ""),
    "another shape": (
        lambda data: changed_model(data, lambda state: with_options(state, "lstm", dim=14)),
        r"the options make \(56,.*, and the weights hold \(48,",
    ),
    "options out of range": (
        lambda data: changed_model(data, lambda state: with_options(state, "lstm", n_layers=10**9)),
        "lstm.n_layers must be",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_pipelines_name_the_component_and_the_file(nlp, tmp_path, damage):
    change, message = DAMAGE[damage]
    nlp.to_disk(tmp_path / "saved")
    path = tmp_path / "saved" / "elmo" / "model"
    data = change(path.read_bytes())
    path.write_bytes(data)
    begin = "cannot load the component 'elmo' from "
    with pytest.raises(ValueError, match=f"{begin}{tmp_path / 'saved' / 'elmo'}: .*{message}"):
        spacy.load(tmp_path / "saved")
