"""Running the project's scripts in this process."""

from __future__ import annotations

from pathlib import Path

from ..conftest import run_script

PROJECT = Path(__file__).parents[2] / "project"
SCRIPTS = str(PROJECT / "scripts")
CONFIG_FOLDER = Path(__file__).parents[2] / "spacy_elmo" / "configs"


def script(name: str, *arguments: object, fails: bool = False) -> str:
    """What a script prints, in one line."""
    path = PROJECT / "scripts" / f"{name}.py"
    return " ".join(run_script(path, *arguments, fails=fails).split())
