"""What pip is told."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from .conftest import needs_extension

ROOT = Path(__file__).parents[1]


def requirements(package, *extras):
    """What the package needs by itself (extra ""), or for extras, on Python 3.11."""
    for requirement in map(Requirement, requires(package)):
        marker = requirement.marker
        named = marker is not None and "extra" in str(marker)
        for extra in extras:
            environment = {"python_version": "3.11", "extra": extra}
            if named == bool(extra) and (marker is None or marker.evaluate(environment)):
                yield requirement


def test_the_readme_of_an_index_has_no_link_into_the_repository():
    text = metadata("spacy-elmo")["Description"]
    assert "[" in text and "](docs" not in text and "](project" not in text


@pytest.mark.parametrize("extra", ["cuda11x", "cuda12x", "cuda-autodetect"])
def test_extras_for_gpus_go_together_with_spacys(extra):
    """`pip install "spacy[cuda12x]" "spacy-elmo[cuda12x]"` can be solved: CuPy 12 is for both."""
    [ours] = requirements("spacy-elmo", extra)
    [spacys] = [line for line in requirements("spacy", extra) if "cupy" in line.name]
    assert ours.name == spacys.name
    assert ours.specifier.contains("12.3.0") and spacys.specifier.contains("12.3.0")


def test_lower_bounds_are_the_versions_that_are_tested():
    needed = requirements("spacy-elmo", "", "viz", "arrow", "search", "report")
    bounds = {r.name: s.version for r in needed for s in r.specifier if s.operator == ">="}
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tested = [Requirement(line) for line in lines if line and line[0] != "#"]
    assert {r.name for r in tested} == set(bounds)
    for requirement in tested:
        [pin] = requirement.specifier
        assert Version(pin.version) == Version(bounds[requirement.name]), requirement.name


CHECK = """
import sys, importlib.machinery, importlib.util, torch
name, path = "spacy_elmo.kernels._kernels", sys.argv[1]
loader = importlib.machinery.ExtensionFileLoader(name, path)
module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
import spacy_elmo.bilm
sys.modules[name] = spacy_elmo.kernels._kernels = module
from spacy_elmo.kernels import compiled
assert compiled._kernels is module
assert compiled.max_error(torch.device("cpu"), torch.float32) < 1e-6
loss = torch.zeros(1)
arguments = torch.tensor([[0.0, torch.nan]]), torch.zeros(2), torch.tensor([0]), None
compiled.softmax_gradient(*arguments, loss=loss, d_bias=torch.zeros(2))
assert loss.isnan()
assert torch.tensor([1e-40]) * 1 != 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="CFLAGS are not for its compiler")
@needs_extension
@pytest.mark.slow
def test_the_extension_is_exact_whatever_cflags_say(tmp_path):
    command = [sys.executable, "setup.py", "-q", "build_ext", "-b", tmp_path, "-t", tmp_path]
    flags = os.environ | {"CFLAGS": "-Ofast -ffast-math"}
    subprocess.run(command, cwd=ROOT, env=flags, check=True)
    built = tmp_path.glob("spacy_elmo/kernels/_kernels*")
    subprocess.run([sys.executable, "-c", CHECK, *built], check=True)
