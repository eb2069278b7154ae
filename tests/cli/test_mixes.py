"""spacy elmo mixes."""

from __future__ import annotations

import pytest
import spacy
from thinc.api import Adam

from ..conftest import SCALAR_MIX, add_tagger, elmo_pipeline, listener, tagged, tok2vec
from .conftest import fail, succeed


@pytest.fixture
def trained(tmp_path, weights_folder):
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp, tok2vec(SCALAR_MIX, {"@layers": "spacy-elmo.SingleLayer.v1"}), name="both")
    learned = {"@layers": "spacy-elmo.LearnedMix.v1", "width": 5}
    add_tagger(nlp, listener(learned), name="learned")
    optimizer = nlp.initialize(lambda: tagged(nlp), sgd=Adam(0.05))
    for _ in range(5):
        nlp.update(tagged(nlp), sgd=optimizer)
    nlp.to_disk(tmp_path / "trained")
    return tmp_path / "trained"


def rows(output):
    return {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}


def test_prints_every_mix(trained):
    table = rows(succeed("mixes", trained))
    nlp = spacy.load(trained)
    [mix] = [node for node in nlp.get_pipe("both").model.walk() if node.name == "scalar_mix"]
    kind, *weights, gamma = table["both/input"]
    assert kind == "scalar_mix" and len(weights) == 3
    assert sum(map(float, weights)) == pytest.approx(1, abs=0.002)
    assert float(gamma) == pytest.approx(float(mix.get_param("gamma")[0]), abs=0.001)
    assert table["both/output"] == ["single_layer", "0.000", "0.000", "1.000"]
    kind, *weights = table["learned"]
    assert kind == "learned_mix"
    assert sum(map(float, weights)) == pytest.approx(1, abs=0.002)


def test_plots_them(trained, tmp_path):
    pytest.importorskip("matplotlib")
    succeed("mixes", trained, "--plot", tmp_path / "plots" / "mixes.png")
    data = (tmp_path / "plots" / "mixes.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 5000
    assert "svg" in fail("mixes", trained, "--plot", tmp_path / "mixes.doc")
    assert not (tmp_path / "mixes.doc").exists()


def test_after_replace_listeners(trained, tmp_path):
    """The biLM is inside the task then."""
    before = rows(succeed("mixes", trained))
    nlp = spacy.load(trained)
    for name in ("both", "learned"):
        nlp.replace_listeners("elmo", name, ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path / "alone")
    after = rows(succeed("mixes", tmp_path / "alone"))
    for task in ("both/input", "both/output", "learned"):
        assert after[task] == before[task]


def test_before_training(tmp_path, weights_folder):
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp, listener())
    nlp.to_disk(tmp_path / "untrained")
    assert "scalar_mix" in succeed("mixes", tmp_path / "untrained")
    plot = tmp_path / "mixes.png"
    assert "no task has layer weights yet" in fail("mixes", tmp_path / "untrained", "--plot", plot)
    nlp = elmo_pipeline(weights_folder)
    add_tagger(nlp, listener({"@layers": "spacy-elmo.SingleLayer.v1", "layer": 9}))
    nlp.to_disk(tmp_path / "ninth")
    assert "there is no layer 9" in fail("mixes", tmp_path / "ninth")


def test_nothing_to_show(pipeline, tmp_path):
    assert "no component that listens to ELMo" in fail("mixes", pipeline)
    assert "cannot load the pipeline" in fail("mixes", tmp_path)  # Neither a pipeline nor weights.
