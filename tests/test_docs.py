"""The documentation says what the code says, and becomes a site."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from spacy.util import registry

import spacy_elmo
from spacy_elmo.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("script", ["plots", "reference", "settings"])
def test_what_scripts_write_is_up_to_date(script: str):
    for name, text in runpy.run_path(str(DOCS / f"{script}.py"))["pages"]().items():
        assert text == (DOCS / name).read_text(encoding="utf8"), f"run python docs/{script}.py"


def test_everything_that_is_registered_is_documented():
    text = (DOCS / "settings.md").read_text(encoding="utf8")
    for name in ("architectures", "layers", "misc", "callbacks", "loggers"):
        for function in getattr(registry, name).get_all():
            assert not function.startswith("spacy-elmo.") or f"### `{function}`" in text


def test_everything_public_and_every_command_is_documented():
    api = (DOCS / "api.md").read_text(encoding="utf8")
    commands = (DOCS / "cli.md").read_text(encoding="utf8")
    assert all(f"### `{name}`" in api for name in {*spacy_elmo.__all__} - {"__version__"})
    assert all(re.search(rf"^\| `{name}\b", commands, re.MULTILINE) for name in COMMANDS.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path):
    sections = re.split(r"^## ", (DOCS / "commands.md").read_text(encoding="utf8"), flags=re.M)
    options = {text.split("`")[1]: {*re.findall(r"`(--?[\w-]+)`", text)} for text in sections[1:]}
    text = page.read_text(encoding="utf8").replace("\\\n", " ")
    for name, arguments in re.findall(r"spacy elmo ([a-z][\w-]*)([^`\n|]*)", text):
        assert name in options, name
        named = {*re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*(?![\w.])", arguments)}
        assert named <= options[name] | {"--help"}, f"{name}: {named - options[name]}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_other_host(tmp_path: Path):
    for package in ("mkdocs", "material", "latex2mathml"):
        pytest.importorskip(package, reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True)
    concepts = (tmp_path / "docs" / "concepts" / "index.html").read_text(encoding="utf8")
    assert "<math" in concepts and "<svg role" in concepts and "$" not in concepts
    for page in tmp_path.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf8"))
        assert not [tag for tag in tags if re.search(r'"(?:https?:)?//', tag)], page


def test_the_entry_for_spacys_universe(capsys: pytest.CaptureFixture[str]):
    """The keys are those of website/UNIVERSE.md in spaCy's repository, all strings but some."""
    entry = json.loads((DOCS / "universe.json").read_text(encoding="utf8"))
    lists = {"code_example", "category", "tags"}
    needed = {"id", "title", "slogan", "description", "pip", "code_language", "author"} | lists
    assert needed <= set(entry) <= needed | {"github", "url", "thumb", "image", "author_links"}
    assert all(isinstance(entry[key], list if key in lists else str) for key in needed)
    exec(compile("\n".join(entry["code_example"]), "universe.json", "exec"), {})
    shape, similarity, layers = capsys.readouterr().out.splitlines()
    assert (shape, layers) == ("(512,)", "(3, 5, 512)") and float(similarity) < 0.95
