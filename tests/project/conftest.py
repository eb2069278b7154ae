"""Running the project's scripts in this process."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

PROJECT = Path(__file__).parents[2] / "project"
SCRIPTS = str(PROJECT / "scripts")


def script(name: str, *arguments: object, fails: bool = False) -> str:
    """What a script prints, in one line; it must end with exit code 0, or 1 if it is to fail."""
    path = str(PROJECT / "scripts" / f"{name}.py")
    output, code = io.StringIO(), 0
    with (
        patch.object(sys, "argv", [path, *map(str, arguments)]),
        patch.object(sys, "path", [SCRIPTS, *sys.path]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as exit:
            code = exit.code
    assert code == int(fails), output.getvalue()
    return " ".join(output.getvalue().split())
