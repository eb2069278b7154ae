"""Running `spacy elmo ...` in this process."""

from __future__ import annotations

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


@pytest.fixture
def pipeline(tmp_path: Path, hdf5_folder: Path) -> Path:
    """A pipeline folder with the tiny biLM."""
    out = tmp_path / "pipeline"
    succeed("convert", hdf5_folder / "options.json", hdf5_folder / "weights.hdf5", out)
    return out
