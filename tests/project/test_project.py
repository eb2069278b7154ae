"""project.yml, and the README that is generated from it."""

from __future__ import annotations

import re
import shutil

import pytest
import srsly
from weasel.cli.document import project_document
from weasel.util import load_project_config

from .conftest import PROJECT


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """project.yml with its variables put in; loading it makes folders, so a copy is loaded."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(PROJECT / "project.yml", folder)
    return load_project_config(folder)


def test_variables_leave_lists_as_they_are(project):
    """A list of nothing but several variables is read as one string."""
    written = srsly.read_yaml(PROJECT / "project.yml")["commands"]
    for before, after in zip(written, project["commands"], strict=True):
        for key in ("script", "deps", "outputs"):
            assert len(before.get(key, [])) == len(after.get(key, [])), (before["name"], key)


def test_what_commands_name_exists(project):
    for command in project["commands"]:
        words = [*" ".join(command["script"]).split(), *command.get("deps", [])]
        for word in words:
            if re.match(r"(scripts|configs)/", word):
                assert (PROJECT / word).exists(), (command["name"], word)


def test_every_size_has_a_config():
    for size in ("tiny", "small", "medium", "original"):
        assert (PROJECT / "configs" / "pretraining" / f"{size}.cfg").is_file()


def test_outputs_are_made_before_they_are_needed(project):
    commands = {command["name"]: command for command in project["commands"]}
    for steps in project["workflows"].values():
        made = {asset["dest"] for asset in project["assets"]} | {"metrics", "assets/imdb"}
        for step in steps:
            command = commands[step]
            for path in command.get("deps", []):
                # What lies in other folders may be of a run.
                ours = path.startswith(("scripts/", "configs/")) and (PROJECT / path).exists()
                known = path in made or ours
                inside = any(path.startswith(f"{m}/") or m.startswith(f"{path}/") for m in made)
                assert known or inside, (step, path)
            made.update(command.get("outputs", []))
            if "--metrics" in " ".join(command["script"]):
                made.add(re.search(r"--metrics (\S+)", " ".join(command["script"]))[1])


def test_readme_is_up_to_date(tmp_path):
    for name in ("project.yml", "README.md"):
        shutil.copy(PROJECT / name, tmp_path)
    project_document(tmp_path, tmp_path / "README.md")
    found = (tmp_path / "README.md").read_text(encoding="utf8")
    assert found == (PROJECT / "README.md").read_text(encoding="utf8"), (
        "run `python -m spacy project document --output README.md` in project/"
    )
