"""The code keeps to the import rule of docs/design.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spacy_elmo"
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf8")


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


# The rows of the table of parts: the files and folders of a part, and the parts it may import.
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| **")]
PARTS = {part.strip(" *"): names(files) for part, files, _, _ in ROWS}
ALLOWED = {
    part.strip(" *"): set(PARTS) if allowed.strip() == "all" else set(names(allowed))
    for part, _, _, allowed in ROWS
}
FILES = sorted(PACKAGE.rglob("*.py"))
# What the network and the engine must not import.
PURE, FOREIGN = ("bilm", "inference"), (":spacy", ":thinc")


def part_of(path: str) -> str:
    """RETURNS (str): The part of a path below the package, without suffix."""
    (part,) = [part for part, entries in PARTS.items() if path.split("/")[0] in entries]
    return part


def imports(path: Path) -> set[str]:
    """RETURNS (set): The modules that a file imports: those of the package as paths below it, such
    as "bilm/model", others by their first name, with a colon before it."""
    modules = set()
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            modules |= {f":{alias.name.split('.')[0]}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(f":{node.module.split('.')[0]}")
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1]
            module = [*base, *(node.module or "").split(".")] if node.module else list(base)
            for alias in node.names:
                # `from . import name`: a module, or a name that the package defines.
                target = PACKAGE.joinpath(*module, alias.name)
                is_module = target.with_suffix(".py").exists() or target.is_dir()
                modules.add("/".join([*module, alias.name] if is_module else module))
    return modules


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")


def test_every_file_is_in_one_part():
    assert len(PARTS) > 5
    for path in FILES:
        assert name_of(path) == "__init__" or part_of(name_of(path))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports(path: Path):
    name = name_of(path)
    if name == "__init__":  # The public names.
        return
    part = part_of(name)
    for module in imports(path):
        if module.startswith(":"):
            assert part not in PURE or module not in FOREIGN, f"{part} must not import {module}"
        elif module and part_of(module) != part:
            assert part_of(module) in ALLOWED[part], f"{part} must not import {module}"


# Windows lacks the first ones, WebAssembly and some builds the others.
WITHOUT_POSIX = """
import importlib.util, pathlib, pkgutil, sys
import filelock, h5py, safetensors.torch, smart_open, spacy.cli, torch.distributed, tqdm
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "syslog"):
    sys.modules[name] = None
import spacy_elmo
left_out = ["_kernels", "__main__", "triton_cell"]
if importlib.util.find_spec("spacy_elmo.kernels._kernels") is None:  # It was not built.
    left_out.append("compiled")
for module in pkgutil.walk_packages(spacy_elmo.__path__, "spacy_elmo."):
    if not module.name.endswith(tuple(left_out)):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_no_module_needs_posix():
    """What the dependencies need is theirs: they are imported before."""
    command = [sys.executable, "-c", WITHOUT_POSIX]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert {"spacy_elmo.files", "spacy_elmo.tools.embedder"} <= set(output.split())
