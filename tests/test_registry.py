"""Every name that the package registers: spaCy finds it, and builds it from its defaults."""

from __future__ import annotations

import json
import subprocess
import sys
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

# What has no default.
REQUIRED = {
    "spacy-elmo.ElmoListener.v1": {"mix": SCALAR_MIX},
    "spacy-elmo.ElmoTok2Vec.v1": {
        key: value for key, value in tok2vec(SCALAR_MIX, None).items() if key[0] != "@"
    },
    "spacy-elmo.LearnedMix.v1": {"width": 5},
    "spacy-elmo.TextCatSum.v1": {"tok2vec": listener(), "exclusive_classes": True, "nO": 2},
}
REGISTRIES = {
    "spacy_architectures": "architectures",
    "thinc_layers": "layers",
    "spacy_misc": "misc",
    "spacy_loggers": "loggers",
}
NAMES = {e.name: e for e in distribution("spacy-elmo").entry_points if e.group in REGISTRIES}
MODELS = [name for name, e in NAMES.items() if REGISTRIES[e.group] in ("architectures", "layers")]

RESOLVE = """
import json, sys
import spacy
from spacy.util import registry

spacy.blank("en")  # Makes spaCy look for factories.
functions = [registry.factories.get("elmo")]
functions += [getattr(registry, group).get(name) for group, name in json.loads(sys.argv[1])]
print(json.dumps([f"{x.__module__}:{x.__name__}" for x in functions]))
"""


def test_spacy_finds_every_name():
    """In a fresh process that imports only spaCy; in this one the decorators have run.

    After a change of pyproject.toml: `pip install -e .` again.
    """
    pairs = [(REGISTRIES[e.group], name) for name, e in NAMES.items()]
    command = [sys.executable, "-c", RESOLVE, json.dumps(pairs)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    targets = [e.value for e in NAMES.values()]
    assert json.loads(output) == ["spacy_elmo.component:Elmo", *targets]


@pytest.mark.parametrize("group", ["architectures", "layers", "misc"])
def test_every_registered_name_has_an_entry_point(group):
    """A decorator without an entry point works only after its module was imported."""
    names = {name for name in getattr(registry, group).get_all() if name.startswith("spacy-elmo.")}
    assert names and names <= set(NAMES)


def build(name: str) -> object:
    """Through the text of a config, as `spacy train` reads it."""
    block = {f"@{REGISTRIES[NAMES[name].group]}": name, **REQUIRED.get(name, {})}
    config = Config().from_str(Config({"block": block}).to_str())
    filled = registry.fill(config)
    assert registry.fill(Config().from_str(filled.to_str())) == filled
    return registry.resolve(filled)["block"]


@pytest.mark.parametrize("name", NAMES)
def test_builds_from_its_defaults(name):
    assert build(name) is not None


LAYERS = numpy.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


def inputs(model: Model, docs: list[Doc]) -> object:
    """What the model reads; a listener finds its layers on the docs."""
    if any(node.name == LISTENER for node in model.walk()):
        for doc in docs:
            doc._.elmo_layers = LAYERS[:, : len(doc)]
        return docs
    return LAYERS


@pytest.mark.parametrize("name", MODELS)
def test_models_round_trip(name):
    model, again = build(name), build(name)
    if name == "spacy-elmo.PretrainedBiLM.v1":  # Has no weights by default; nor has what it saves.
        assert again.from_bytes(model.to_bytes()).to_bytes() == model.to_bytes()
        return
    vocab = Vocab()
    docs = [Doc(vocab, words=["The", "bank", "flows"]), Doc(vocab), Doc(vocab, words=["river"])]
    X = inputs(model, docs)
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
