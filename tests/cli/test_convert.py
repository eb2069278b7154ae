from __future__ import annotations

import errno
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import spacy

from spacy_elmo.bilm import BiLM
from spacy_elmo.files import exclusive_lock
from spacy_elmo.formats import load
from spacy_elmo.inference import current_session
from spacy_elmo.pretraining.head import HEAD_FILES

from ..conftest import max_difference, shared_path
from ..families.one_layer_hdf5 import read_hdf5
from .conftest import fail, succeed


def test_hdf5_to_pipeline_to_hdf5_is_bit_equal(tmp_path: Path):
    """With the published weights."""

    def datasets(path: Path) -> dict[str, tuple]:
        return {name: (x.dtype, x.tobytes()) for name, x in read_hdf5(path).items()}

    published = shared_path("fixtures/allennlp")
    weights = published / "lm_weights.hdf5"
    succeed("convert", published / "options.json", weights, tmp_path / "pipeline")
    succeed("export", tmp_path / "pipeline", tmp_path / "out")
    assert datasets(tmp_path / "out" / "weights.hdf5") == datasets(weights)
    options = json.loads((tmp_path / "out" / "options.json").read_text())
    assert options == json.loads((published / "options.json").read_text())


def test_half_storage(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    succeed("convert", options, weights, tmp_path / "half", "--half")
    for path, exact in ((tmp_path / "half", "float16"), (pipeline, "float32")):
        assert json.loads(succeed("info", path, "--json"))["elmo"]["exact in"] == exact
    # Other software reads float32, also of weights that are exact in float16.
    succeed("export", tmp_path / "half", tmp_path / "full")
    assert load(tmp_path / "full").config == load(hdf5_folder).config
    assert read_hdf5(tmp_path / "full" / "weights.hdf5")["CNN/b_cnn_0"].dtype == "<f4"


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
    assert max_difference(layers, current_session(bilm).embed([["the", "bank"]])[0]) <= 1e-6
    sys.modules.pop("en_elmo_test")


def test_export_formats_reload_to_equal_vectors(tmp_path: Path, pipeline: Path, bilm: BiLM):
    succeed("export", pipeline, tmp_path / "hdf5")
    succeed("export", pipeline, tmp_path / "native", "--format", "safetensors")
    assert "hdf5" in fail("export", pipeline, tmp_path / "x", "--format", "onnx")
    output = " ".join(succeed("export", "en_elmo_sm", tmp_path / "bundled").split())
    assert "hdf5 has no place for how docs and spans are pooled" in output
    [expected] = current_session(bilm).embed([["the", "bank"]])
    for folder in ("hdf5", "native"):
        [layers] = current_session(load(tmp_path / folder)).embed([["the", "bank"]])
        assert max_difference(layers, expected) == 0


def test_info_of_every_format(pipeline: Path, hdf5_folder: Path, weights_folder: Path):
    for path, kind in ((hdf5_folder, "hdf5"), (weights_folder, "safetensors")):
        facts = json.loads(succeed("info", path, "--json"))[str(path)]
        assert facts["format"] == kind
        assert facts["parameters"] == sum(p.numel() for p in load(path).parameters())
    report = succeed("info", pipeline)
    for text in (
        "[[1, 4], [2, 6], [3, 8]]",
        "frozen_mix weights=None gamma=1.0 seed=None",
        "3 layers of width 12",
    ):
        assert text in report


def test_info_shows_what_runs(pipeline: Path, weights_folder: Path, monkeypatch, without_bfloat16):
    """A build without a compiler says nothing else."""
    built = "compiled C" if find_spec("spacy_elmo.kernels._kernels") else "PyTorch (slower"
    for path in (pipeline, weights_folder):
        [facts] = json.loads(succeed("info", path, "--json")).values()
        assert facts["kernels"].startswith(built)
        assert "times as fast as float32" in facts["bfloat16"]
        assert facts["bfloat16"].endswith("do without")
    monkeypatch.setitem(sys.modules, "spacy_elmo.kernels._kernels", None)
    assert "PyTorch (slower: there was no C compiler" in succeed("info", pipeline)


def test_existing_output_is_kept_without_force(tmp_path: Path, hdf5_folder: Path, pipeline: Path):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    assert "--force" in fail("convert", options, weights, pipeline)
    assert "--force" in fail("export", pipeline, hdf5_folder)
    succeed("convert", options, weights, pipeline, "--force")
    assert "options.json" in fail("convert", options, weights, hdf5_folder, "--force")
    assert "config.cfg" in fail("export", hdf5_folder, pipeline, "--force")
    assert options.is_file() and weights.is_file()
    (tmp_path / "empty").mkdir()
    succeed("export", pipeline, tmp_path / "empty", "--force")


@pytest.mark.parametrize("name", [".git/HEAD", "elmo/thesis.txt"])
def test_force_keeps_files_of_others(name: str, hdf5_folder: Path, pipeline: Path):
    files = hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"
    (pipeline / name).parent.mkdir(exist_ok=True)
    (pipeline / name).write_text("mine")
    assert name in fail("convert", *files, pipeline, "--force")
    assert (pipeline / name).read_text() == "mine"


def test_force_replaces_what_the_command_wrote(tmp_path: Path, hdf5_folder: Path):
    files, out = (hdf5_folder / "options.json", hdf5_folder / "weights.hdf5"), tmp_path / "out"
    succeed("convert", *files, out, "--sentencizer", "--lang", "zh")
    assert (spacy.load(out).lang, spacy.load(out).pipe_names) == ("zh", ["sentencizer", "elmo"])
    succeed("convert", *files, out, "--force")
    assert spacy.load(out).pipe_names == ["elmo"]


def test_a_full_disk_leaves_the_old_output_layer_alone(
    tmp_path: Path, hdf5_folder: Path, pipeline: Path, monkeypatch
):
    """Also where the new weights have none."""
    head = tmp_path / f"{pipeline.name}.head"
    head.mkdir()
    for name in HEAD_FILES:
        (head / name).touch()

    def fail_to_sync(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("spacy_elmo.files.sync", fail_to_sync)
    arguments = ("convert", hdf5_folder / "weights.hdf5", pipeline)
    assert "No space left" in fail(*arguments, "--force")
    assert {path.name for path in head.iterdir()} == set(HEAD_FILES)
    monkeypatch.undo()
    succeed(*arguments, "--force")
    assert not head.exists()


def test_what_a_killed_command_left_is_removed(hdf5_folder: Path, tmp_path: Path):
    """And a second run is refused, also through a link."""
    out, link = tmp_path / "results" / "out", tmp_path / "link"
    link.symlink_to(out)
    left = out.with_name(".out.0123456789ab.tmp")
    (left / "new").mkdir(parents=True)
    with exclusive_lock(out.with_name(".out.lock"), ""):
        for path in (out, link):
            assert "another run is writing" in fail("export", hdf5_folder, path, "--force")
    assert list(out.parent.iterdir()) == [left]
    succeed("export", hdf5_folder, link)
    assert link.is_symlink() and list(out.parent.iterdir()) == [out]
    # A kill between the two steps of a replacement: the old folder returns, and is not
    # overwritten unasked.
    left.mkdir()
    before = sorted(out.iterdir())
    out.rename(left / "old")
    assert "exists already" in fail("export", hdf5_folder, out)
    assert list(out.parent.iterdir()) == [out] and sorted(out.iterdir()) == before
