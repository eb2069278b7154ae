"""project.yml, and the README that is generated from it."""

from __future__ import annotations

import re
import shutil

import pytest
from weasel.cli.document import project_document
from weasel.util import load_project_config, parse_config_overrides

from .conftest import CONFIG_FOLDER, PROJECT, script


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


def test_every_size_has_a_config():
    for size in ("tiny", "small", "medium", "original"):
        assert (CONFIG_FOLDER / "pretraining" / f"{size}.cfg").is_file()


def test_options_that_readme_names_reach_the_commands(tmp_path):
    """weasel takes dashes out of values, and spaCy packages only what has the name of a module."""
    overrides = parse_config_overrides(["--vars.broken", "skip", "--vars.size", "tiny-words"])
    shutil.copy(PROJECT / "project.yml", tmp_path)
    project = load_project_config(tmp_path, overrides=overrides)
    commands = {command["name"]: command["script"] for command in project["commands"]}
    for name in ("convert-ud", "convert-agnews", "convert-imdb"):
        assert commands[name][0].endswith("--broken skip")
    [package] = commands["package"]
    assert re.search(r"--name (\S+)", package)[1].isidentifier()


def test_configs_are_copied_where_there_are_none(tmp_path):
    script("configs", tmp_path)
    copied = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.cfg"))
    assert copied == sorted(
        path.relative_to(CONFIG_FOLDER) for path in CONFIG_FOLDER.rglob("*.cfg")
    )
    changed, missing = tmp_path / "tagger.cfg", tmp_path / "pretraining" / "tiny.cfg"
    changed.write_text("mine")
    missing.unlink()
    output = script("configs", tmp_path)
    assert f"{changed} differs" in output and "remove it to get the new one" in output
    assert output.count("differs") == 1
    assert changed.read_text() == "mine"
    assert missing.read_text() == (CONFIG_FOLDER / "pretraining" / "tiny.cfg").read_text()


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
