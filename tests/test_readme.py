"""Every block of the README runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import spacy
from spacy.util import load_config_from_str

from spacy_elmo.bilm.formats import allennlp

from .conftest import random_bilm

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(
    r"(<!-- downloads -->\n)?```(\w+)\n(.*?)```", README.read_text(encoding="utf8"), re.DOTALL
)


def blocks(language: str) -> list[str]:
    return [code for downloads, name, code in BLOCKS if name == language and not downloads]


@pytest.fixture
def after_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `make demo` leaves it, with a smaller biLM."""
    allennlp.write(random_bilm(), tmp_path / "demo" / "small")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(code: str, after_demo: Path):
    exec(compile(code, "README.md", "exec"), {})


def test_command_line_blocks_run(after_demo: Path):
    (code,) = [code for code in blocks("bash") if "spacy elmo" in code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("en_small/config.cfg", "exported/weights.hdf5", "vectors.hdf5"):
        assert (after_demo / "demo" / name).exists()


def test_documented_config_is_the_default(after_demo: Path):
    (text,) = blocks("ini")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    assert load_config_from_str(f"[components]\n\n{text}")["components"] == nlp.config["components"]
