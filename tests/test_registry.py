"""Every name that the package registers: spaCy finds it, and builds it from its defaults."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution

import pytest
import spacy
from spacy.util import registry
from thinc.api import Config

from .conftest import SCALAR_MIX, listener, tok2vec

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


def test_the_factory():
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    again = spacy.blank("en").from_config(Config().from_str(nlp.config.to_str()))
    assert again.config["components"] == nlp.config["components"]
    assert again.from_bytes(nlp.to_bytes()).to_bytes() == nlp.to_bytes()
