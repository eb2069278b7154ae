"""Every name that the package registers, built from its defaults as a config builds it."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Config, Model

from spacy_elmo.layers.batch_layers import BatchLayers
from spacy_elmo.layers.listener import NAME as LISTENER

from .conftest import SCALAR_MIX, listener, max_difference, tok2vec

ENTRY_POINTS = sorted(distribution("spacy-elmo").entry_points)
# What has no default.
REQUIRED = {
    "spacy-elmo.ElmoListener.v1": {"mix": SCALAR_MIX},
    "spacy-elmo.ElmoTok2Vec.v1": {
        key: value for key, value in tok2vec(SCALAR_MIX, None).items() if key[0] != "@"
    },
    "spacy-elmo.LearnedMix.v1": {"width": 5},
    "spacy-elmo.TextCatSum.v1": {"tok2vec": listener(), "exclusive_classes": True, "nO": 2},
}
NAMES = {
    entry_point.name: entry_point
    for entry_point in ENTRY_POINTS
    if entry_point.group not in ("spacy_factories", "spacy_cli", "console_scripts")
}
REGISTRIES = {
    "spacy_architectures": "architectures",
    "thinc_layers": "layers",
    "spacy_misc": "misc",
    "spacy_loggers": "loggers",
}


def build(name: str) -> object:
    """Through the text of a config, as `spacy train` reads it."""
    block = {f"@{REGISTRIES[NAMES[name].group]}": name, **REQUIRED.get(name, {})}
    config = Config().from_str(Config({"block": block}).to_str())
    filled = registry.fill(config)
    assert registry.fill(Config().from_str(filled.to_str())) == filled
    return registry.resolve(filled)["block"]


def test_all_groups_are_known():
    groups = {entry_point.group for entry_point in ENTRY_POINTS}
    assert groups == {*REGISTRIES, "spacy_factories", "spacy_cli"}
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_builds_from_its_defaults(name):
    assert callable(NAMES[name].load())
    assert build(name) is not None


LAYERS = numpy.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


def inputs(model: Model, docs: list[Doc]) -> object:
    """What the model reads; a listener finds its layers on the docs."""
    if any(node.name == LISTENER for node in model.walk()):
        for doc in docs:
            doc._.elmo_layers = LAYERS[:, : len(doc)]
        return docs
    return docs if any(node.name == "elmo_encoder" for node in model.walk()) else LAYERS


@pytest.mark.parametrize(
    "name",
    [name for name, e in NAMES.items() if e.group in ("spacy_architectures", "thinc_layers")],
)
def test_models_round_trip(name):
    model, again = build(name), build(name)
    if name == "spacy-elmo.PretrainedBiLM.v1":  # Has no weights by default; nor has what it saves.
        assert again.from_bytes(model.to_bytes()).to_bytes() == model.to_bytes()
        return
    vocab = Vocab()
    docs = [Doc(vocab, words=["The", "bank", "flows"]), Doc(vocab), Doc(vocab, words=["river"])]
    X = inputs(model, docs)
    for node in model.walk():
        if node.name == LISTENER:  # It has no upstream here from which it could get the width.
            node.init = None
    model.initialize(X=X)
    again.from_bytes(model.to_bytes())
    for first, second in zip(arrays(model.predict(X)), arrays(again.predict(X)), strict=True):
        assert max_difference(first, second) < 1e-6


def arrays(output: object) -> list:
    if isinstance(output, BatchLayers):
        return [output.layers]
    return output if isinstance(output, list) else [output]


def test_the_factory():
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    again = spacy.blank("en").from_config(Config().from_str(nlp.config.to_str()))
    assert again.config["components"] == nlp.config["components"]
    assert again.from_bytes(nlp.to_bytes()).to_bytes() == nlp.to_bytes()
