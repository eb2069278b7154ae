"""Running the project's scripts in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import run_script

PROJECT = Path(__file__).parents[2] / "project"
CONFIG_FOLDER = Path(__file__).parents[2] / "spacy_elmo" / "configs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scripts that made figures once are tested with the slow tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


def script(name: str, *arguments: object, fails: bool = False) -> str:
    """What a script prints, in one line."""
    path = PROJECT / "scripts" / f"{name}.py"
    return " ".join(run_script(path, *arguments, fails=fails).split())
