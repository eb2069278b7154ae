"""project.yml, and the README that is generated from it."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import srsly
from weasel.cli.document import project_document
from weasel.util import load_project_config, parse_config_overrides

from .conftest import CONFIG_FOLDER, PROJECT, script


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_killed_copy_of_configs_leaves_no_half_file(tmp_path, monkeypatch):
    def copy_half(source, target):
        with open(target, "wb") as file:
            file.write(Path(source).read_bytes()[:99])
        os.kill(os.getpid(), signal.SIGKILL)

    def run_and_die():
        monkeypatch.setattr(shutil, "copyfile", copy_half)
        script("configs", tmp_path)

    process = multiprocessing.get_context("fork").Process(target=run_and_die)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not list(tmp_path.rglob("*.cfg"))
    script("configs", tmp_path)
    for path in CONFIG_FOLDER.rglob("*.cfg"):
        assert (tmp_path / path.relative_to(CONFIG_FOLDER)).read_bytes() == path.read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_project_has_no_links():
    """A checkout on Windows has none, nor has a copy of the folder alone."""
    assert not [path for path in PROJECT.rglob("*") if path.is_symlink()]


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
