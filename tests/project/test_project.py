"""project.yml, and the README that is generated from it."""

from __future__ import annotations

import re
import shutil

import pytest
from weasel.cli.document import project_document
from weasel.util import load_project_config

from .conftest import CONFIG_FOLDER, PROJECT


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """project.yml with its variables put in; loading it makes folders, so a copy is loaded."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(PROJECT / "project.yml", folder)
    return load_project_config(folder)


def test_what_commands_name_exists(project):
    for command in project["commands"]:
        words = [*" ".join(command["script"]).split(), *command.get("deps", [])]
        for word in words:
            if word.startswith("scripts/"):
                assert (PROJECT / word).exists(), (command["name"], word)
            if word.startswith("configs/"):
                path = CONFIG_FOLDER / word.removeprefix("configs/")
                assert path.is_file(), (command["name"], word)


def test_outputs_are_made_before_they_are_needed(project):
    commands = {command["name"]: command for command in project["commands"]}
    for steps in project["workflows"].values():
        made = {asset["dest"] for asset in project["assets"]} | {"metrics", "assets/imdb"}
        for step in steps:
            command = commands[step]
            for path in command.get("deps", []):
                # Other folders may have the outputs of a run.
                ours = path.startswith("scripts/") and (PROJECT / path).exists()
                is_known = path in made or ours
                inside = any(path.startswith(f"{m}/") or m.startswith(f"{path}/") for m in made)
                assert is_known or inside, (step, path)
            made.update(command.get("outputs", []))
            if "--metrics" in " ".join(command["script"]):
                made.add(re.search(r"--metrics (\S+)", " ".join(command["script"]))[1])


def test_readme_is_up_to_date(tmp_path):
    for name in ("project.yml", "README.md"):
        shutil.copy(PROJECT / name, tmp_path)
    project_document(tmp_path, tmp_path / "README.md")
    written = (tmp_path / "README.md").read_text(encoding="utf8")
    assert written == (PROJECT / "README.md").read_text(encoding="utf8"), (
        "run `python -m spacy project document --output README.md` in project/"
    )
