"""What an experiment's result depends on."""

from __future__ import annotations

import runpy

import pytest

from spacy_elmo.weights import DEFAULT

from ..conftest import elmo_pipeline
from .conftest import PROJECT


def test_weights_are_those_that_are_used(tmp_path, weights_folder, monkeypatch):
    """A folder that is called like bundled weights has another hash than these."""
    script = runpy.run_path(str(PROJECT / "scripts" / "fingerprints.py"))
    hash_weights = script["hash_weights"]
    bundled = hash_weights(DEFAULT)
    elmo_pipeline(weights_folder).to_disk(tmp_path / DEFAULT)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="is read as a name"):
        assert hash_weights(DEFAULT) == bundled
    assert hash_weights(f"./{DEFAULT}") == hash_weights(str(tmp_path / DEFAULT)) != bundled
    with pytest.raises(ValueError, match="no weights 'nowhere'"):
        hash_weights("nowhere")
