"""The names a config can say: what they build, and that spaCy finds each of them by itself."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Config

from spacy_elmo.component import DEFAULT_CONFIG_STR
from spacy_elmo.formats import safetensors_format
from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_bilm, get_shim

from .conftest import TINY, max_difference

ROOT = Path(__file__).parents[1]


def build(block):
    return registry.resolve({"model": block})["model"]


def make_doc(words=("the", "bank", "flows")):
    return Doc(spacy.blank("en").vocab, words=list(words))


# spacy-elmo.BiLM.v1


# spacy-elmo.PretrainedBiLM.v1


@pytest.mark.parametrize("source", ["folder", "file", "hdf5"])
def test_pretrained_bilm(weights_folder, hdf5_folder, bilm, source):
    places = {
        "folder": weights_folder,
        "file": weights_folder / safetensors_format.WEIGHTS,
        "hdf5": hdf5_folder,
    }
    model = build(
        {"@architectures": "spacy-elmo.PretrainedBiLM.v1", "weights": str(places[source])}
    )
    layers = model.predict([make_doc()]).layers
    assert max_difference(layers, current_session(bilm).embed([["the", "bank", "flows"]])[0]) < 1e-5


@pytest.mark.parametrize("path", ["weights", "./weights", "~/weights"])
def test_weights_are_those_of_the_folder_where_the_pipeline_was_made(
    tmp_path, weights_folder, bilm, monkeypatch, path
):
    """They are read at first use: the working folder may have changed until then."""
    monkeypatch.chdir(weights_folder.parent)
    monkeypatch.setenv("HOME", str(weights_folder.parent))
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": path}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    [expected] = current_session(bilm).embed([["the", "bank"]])
    assert max_difference(nlp("the bank")._.elmo_layers, expected) < 1e-5
    assert nlp.config["components"]["elmo"]["model"]["weights"] == path


def test_a_name_is_no_path(tmp_path, weights_folder, monkeypatch):
    shutil.copytree(weights_folder, tmp_path / "elsewhere" / "en_elmo_sm")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About the folder of this name.
        assert get_bilm(build({"@architectures": "spacy-elmo.PretrainedBiLM.v1"})).config != TINY


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"precision": "fp16"}, "unknown precision 'fp16': choose one of float32, float16, int8"),
        ({"kernel": "cuda"}, "unknown kernel 'cuda': choose one of auto, torch, triton"),
        ({"max_tokens_per_batch": 0}, "must be 1 or more"),
        ({"max_tokens_per_batch": "many"}, "max_tokens_per_batch"),
        ({"type_cache_mb": -0.5}, "must be 0 or more"),
        ({"segmenter": {"@misc": "spacy-elmo.docs.v1", "window": 0}}, "window must be 1"),
        ({"segmenter": {"@misc": "spacy-elmo.nothing.v1"}}, "spacy-elmo.nothing.v1"),
        ({"wieghts": "x"}, "wieghts"),
    ],
)
def test_wrong_settings_of_pretrained_bilm(wrong, message):
    with pytest.raises(ValueError, match=message):
        build({"@architectures": "spacy-elmo.PretrainedBiLM.v1", **wrong})


# Entry points

REGISTRIES = {
    "spacy_factories": "factories",
    "spacy_architectures": "architectures",
    "thinc_layers": "layers",
    "spacy_misc": "misc",
}


def entry_points():
    """What setup.py declares, as {group: {name: "module:attribute"}}."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf8"))
    (groups,) = (
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "entry_points"
    )
    return {
        group: dict(line.split(" = ") for line in lines)
        for group, lines in ast.literal_eval(groups).items()
        if group in REGISTRIES
    }


RESOLVE = """
import json, sys
import spacy
from spacy.util import registry

spacy.blank("en")  # Makes spaCy look for factories.
targets = {}
for group, names in json.loads(sys.argv[1]).items():
    functions = getattr(registry, group)
    for name in names:
        function = functions.get(name)
        targets[name] = f"{function.__module__}:{function.__name__}"
print(json.dumps(targets))
"""


def test_every_entry_point_resolves_without_an_import():
    """In a fresh process that imports only spaCy; in this one the decorators have run.

    After a change of setup.py: `pip install -e .` again.
    """
    groups = entry_points()
    assert groups.keys() == REGISTRIES.keys()
    names = {REGISTRIES[group]: list(lines) for group, lines in groups.items()}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(names)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    targets = json.loads(done.stdout)
    for lines in groups.values():
        for name, target in lines.items():
            assert targets[name] == target


def test_every_registered_name_has_an_entry_point():
    """A decorator without an entry point works only after its module was imported."""
    declared = {name for lines in entry_points().values() for name in lines}
    for attribute in ("architectures", "layers", "misc"):
        registered = {
            name
            for name in getattr(registry, attribute).get_all()
            if name.startswith("spacy-elmo.")
        }
        assert registered and registered <= declared


# The default config


def test_the_default_config_can_be_pasted():
    block = Config().from_str(DEFAULT_CONFIG_STR)["elmo"]
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config=dict(block))
    plain = spacy.blank("en")
    plain.add_pipe("elmo")
    assert nlp.config["components"]["elmo"] == plain.config["components"]["elmo"]


def test_the_defaults_of_code_and_config_agree():
    """Leaving a block out of a config must not change its meaning."""
    nlp = spacy.blank("en")
    written = nlp.add_pipe("elmo").model
    bare = build({"@architectures": "spacy-elmo.PretrainedBiLM.v1"})
    assert get_shim(bare).settings == get_shim(written).settings
    assert bare.attrs["segmenter"] == written.attrs["segmenter"]
