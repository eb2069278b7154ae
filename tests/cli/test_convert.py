from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import spacy

from spacy_elmo.bilm import BiLM
from spacy_elmo.bilm.formats import load

from ..conftest import max_difference, shared_path
from .conftest import fail, succeed


def datasets(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def test_converted_pipeline_gives_the_weights_vectors(pipeline: Path, bilm: BiLM):
    doc = spacy.load(pipeline)("the bank")
    assert max_difference(doc._.elmo_layers, bilm.embed([["the", "bank"]])[0]) <= 1e-6


def test_hdf5_to_pipeline_to_hdf5_is_bit_equal(tmp_path: Path):
    """With the published weights."""
    published = shared_path("fixtures/allennlp")
    weights = published / "lm_weights.hdf5"
    succeed("convert", published / "options.json", weights, tmp_path / "pipeline")
    succeed("export", tmp_path / "pipeline", tmp_path / "out")
    assert datasets(tmp_path / "out" / "weights.hdf5") == datasets(weights)
    options = json.loads((tmp_path / "out" / "options.json").read_text())
    assert options == json.loads((published / "options.json").read_text())


def test_pipeline_needs_no_other_file(pipeline: Path, hdf5_folder: Path):
    shutil.rmtree(hdf5_folder)
    assert spacy.load(pipeline)("the bank")._.elmo_tokens.shape == (2, 12)
    assert "hdf5" not in (pipeline / "config.cfg").read_text()


def test_half_storage_halves_the_file(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    succeed("convert", options, weights, tmp_path / "half", "--half")
    sizes = [(path / "elmo" / "model").stat().st_size for path in (tmp_path / "half", pipeline)]
    n_parameters = sum(p.numel() for p in load(hdf5_folder).parameters())
    assert sizes[1] - sizes[0] == pytest.approx(2 * n_parameters, rel=0.2)
    assert "float16" in succeed("info", tmp_path / "half")


def test_package_is_importable(
    tmp_path: Path, pipeline: Path, monkeypatch: pytest.MonkeyPatch, bilm: BiLM
):
    from spacy.cli import package

    (tmp_path / "packages").mkdir()
    package(pipeline, tmp_path / "packages", name="elmo_test", version="1.0.0", create_sdist=False)
    (folder,) = (tmp_path / "packages").iterdir()
    # What building a wheel does, without pip's own network.
    command = [sys.executable, "setup.py", "-q", "build"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(folder / "build" / "lib"))
    import en_elmo_test

    nlp = en_elmo_test.load()
    assert any(name.startswith("spacy-elmo") for name in nlp.meta["requirements"])
    layers = nlp("the bank")._.elmo_layers
    assert max_difference(layers, bilm.embed([["the", "bank"]])[0]) <= 1e-6
    sys.modules.pop("en_elmo_test")


def test_sentencizer_and_language(tmp_path: Path, hdf5_folder: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    succeed("convert", options, weights, tmp_path / "de", "--lang", "de", "--sentencizer")
    nlp = spacy.load(tmp_path / "de")
    assert (nlp.lang, nlp.pipe_names) == ("de", ["sentencizer", "elmo"])


def test_export_formats_reload_to_equal_vectors(tmp_path: Path, pipeline: Path, bilm: BiLM):
    succeed("export", pipeline, tmp_path / "out" / "hdf5")
    succeed("export", pipeline, tmp_path / "out" / "native", "--safetensors")
    expected = bilm.embed([["the", "bank"]])[0]
    for folder in ("hdf5", "native"):
        assert (
            max_difference(load(tmp_path / "out" / folder).embed([["the", "bank"]])[0], expected)
            == 0
        )


def test_info_of_every_format(pipeline: Path, hdf5_folder: Path, weights_folder: Path):
    for path, kind in ((hdf5_folder, "hdf5"), (weights_folder, "safetensors")):
        facts = json.loads(succeed("info", path, "--json"))[str(path)]
        assert facts["format"] == kind
        assert facts["parameters"] == sum(p.numel() for p in load(path).parameters())
        assert facts["bytes in memory"] == 4 * facts["parameters"]
    report = succeed("info", pipeline)
    for text in (
        "1x4 2x6 3x8",
        "frozen_mix weights=None gamma=1.0 seed=None",
        "3 layers of width 12",
    ):
        assert text in report


def test_info_of_a_name_beside_a_folder(tmp_path, monkeypatch):
    """The name goes first, as it does when weights are loaded."""
    (tmp_path / "en_elmo_sm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert json.loads(succeed("info", "en_elmo_sm", "--json"))["en_elmo_sm"]["format"] == "bundled"


def test_swapped_files_are_named(tmp_path: Path, hdf5_folder: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    assert "swapped" in fail("convert", weights, options, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_existing_output_is_kept_without_force(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    assert "--force" in fail("convert", options, weights, pipeline)
    assert "--force" in fail("export", pipeline, hdf5_folder)
    succeed("convert", options, weights, pipeline, "--force")
    assert "no meta.json in it" in fail("convert", options, weights, hdf5_folder, "--force")
    assert "no options.json in it" in fail("export", hdf5_folder, pipeline, "--force")
    assert options.is_file() and weights.is_file()
    (tmp_path / "empty").mkdir()
    succeed("export", pipeline, tmp_path / "empty", "--force")


def test_failure_leaves_the_old_output_alone(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    weights = hdf5_folder / "weights.hdf5"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "not a complete HDF5" in fail(
        "convert", hdf5_folder / "options.json", weights, pipeline, "--force"
    )
    assert len(spacy.load(pipeline)("the bank")._.elmo_tokens) == 2


@pytest.mark.parametrize("command", ["info", "export"])
def test_path_that_does_not_exist(command: str, tmp_path: Path):
    out = [tmp_path / "out"] if command == "export" else []
    assert "nowhere" in fail(command, tmp_path / "nowhere", *out)


def test_unknown_language_and_component(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    assert "qqq" in fail("convert", options, weights, tmp_path / "out", "--lang", "qqq")
    assert "'other'" in fail("export", pipeline, tmp_path / "out", "--name", "other")


def test_pipeline_without_elmo(tmp_path: Path):
    spacy.blank("en").to_disk(tmp_path / "blank")
    assert "no elmo component" in fail("info", tmp_path / "blank")
    assert "no elmo component" in fail("export", tmp_path / "blank", tmp_path / "out")
