"""What the architecture of a biLM builds."""

from __future__ import annotations

import pytest
import spacy
from spacy.util import registry

from spacy_elmo.inference import current_session
from spacy_elmo.layers.encoder import get_shim

from .conftest import max_difference


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


def test_the_defaults_of_code_and_config_agree():
    """Leaving a block out of a config must not change its meaning."""
    nlp = spacy.blank("en")
    written = nlp.add_pipe("elmo").model
    block = {"@architectures": "spacy-elmo.PretrainedBiLM.v1"}
    bare = registry.resolve({"model": block})["model"]
    assert get_shim(bare).settings == get_shim(written).settings
    assert bare.attrs["segmenter"].keywords == written.attrs["segmenter"].keywords
