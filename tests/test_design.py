"""The code keeps to the import rule of docs/design.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spacy_elmo"
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf8")


def cells(text: str) -> list[str]:
    return re.findall(r"`([\w/.]+)`", text)


# Each row of the table of rooms: the files and folders of a room, and the rooms it may import.
ROWS = re.findall(r"^\| \*\*(\w+)\*\* \| ([^|]*) \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE)
ROOMS = {room: cells(paths) for room, paths, _ in ROWS}
ALLOWED = {
    room: set(ROOMS) if allowed.strip() == "all" else {room, *cells(allowed)}
    for room, _, allowed in ROWS
}
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
# What the network and the engine must do without.
PURE, FOREIGN = ("bilm", "inference"), ("spacy", "thinc")


def room_of(path: str) -> str:
    """RETURNS (str): The room of a path below the package, without suffix."""
    matches = [
        room
        for room, entries in ROOMS.items()
        for entry in entries
        if path == entry.removesuffix(".py")
        or (entry + "/").startswith(path + "/")
        or path.startswith(entry)
    ]
    assert len(set(matches)) == 1, f"{path} is in the rooms {matches}"
    return matches[0]


def imports(path: Path) -> set[str]:
    """RETURNS (set): The modules that a file imports: those of the package as paths below it, such
    as "bilm/model", others by their first name, with a colon before it."""
    found = set()
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            found |= {f":{alias.name.split('.')[0]}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(f":{node.module.split('.')[0]}")
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1]
            module = [*base, *(node.module or "").split(".")] if node.module else list(base)
            for alias in node.names:
                # `from . import name`: a module, or a name that the package defines.
                target = PACKAGE.joinpath(*module, alias.name)
                is_module = target.with_suffix(".py").exists() or target.is_dir()
                found.add("/".join([*module, alias.name] if is_module else module))
    return found


def test_every_file_is_in_one_room():
    for path in FILES:
        name = str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")
        assert name == "__init__" or room_of(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports(path: Path):
    name = str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")
    if name == "__init__":  # The public names.
        return
    room = room_of(name)
    for module in imports(path):
        if module.startswith(":"):
            assert not (room in PURE and module[1:] in FOREIGN), (
                f"{room} must not import {module[1:]}"
            )
        elif module:  # Not `from . import __version__` of the package itself.
            assert room_of(module) in ALLOWED[room], f"{room} must not import {module}"
