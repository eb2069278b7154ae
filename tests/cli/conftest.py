"""Running `spacy elmo ...` in this process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spacy_elmo.cli import app


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def succeed(*arguments: object, stdin: str | None = None) -> str:
    """The output of a command that must succeed."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def fail(*arguments: object, stdin: str | None = None) -> str:
    """The message of a command that must fail with exit code 1."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    # The message is wrapped to the terminal's width.
    return " ".join(result.output.split())


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory, tiny_folders: Path) -> Path:
    """A pipeline folder with the tiny biLM, written once."""
    out = tmp_path_factory.mktemp("converted") / "pipeline"
    hdf5 = tiny_folders / "hdf5"
    succeed("convert", hdf5 / "options.json", hdf5 / "weights.hdf5", out)
    return out


@pytest.fixture
def pipeline(tmp_path: Path, converted: Path) -> Path:
    """A pipeline folder with the tiny biLM, which the test may change."""
    return Path(shutil.copytree(converted, tmp_path / "pipeline"))


@pytest.fixture
def text(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the `LINES` of the module of the test."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(request.module.LINES) + "\n", encoding="utf8")
    return path
