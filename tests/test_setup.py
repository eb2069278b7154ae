"""What pip is told."""

from __future__ import annotations

import runpy
from importlib.metadata import requires
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def settings(monkeypatch):
    """The arguments of `setup`."""
    arguments: dict = {}
    monkeypatch.setattr(setuptools, "setup", arguments.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return arguments


@pytest.mark.parametrize("extra", ["cuda11x", "cuda12x", "cuda-autodetect"])
def test_extras_for_gpus_go_together_with_spacys(settings, extra):
    """`pip install "spacy[cuda12x]" "spacy-elmo[cuda12x]"` can be solved: CuPy 12 is for both."""
    [ours] = [Requirement(line) for line in settings["extras_require"][extra]]
    [spacys] = [
        requirement
        for requirement in map(Requirement, requires("spacy"))
        if requirement.marker and requirement.marker.evaluate({"extra": extra})
        if "cupy" in requirement.name
    ]
    assert ours.name == spacys.name
    assert ours.specifier.contains("12.3.0") and spacys.specifier.contains("12.3.0")


def test_cuda_is_cuda12x(settings):
    extras = settings["extras_require"]
    assert extras["cuda"] == extras["cuda12x"] and "cuda13x" in extras
