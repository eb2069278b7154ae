"""Plots: that they hold what they are given, in every format."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spacy_elmo.plots import INK, PAPER, draw_curves, draw_mixes, save

pytest.importorskip("matplotlib")
NAMES = ("forward", "backward", "average")


def history(*values: float | None) -> list[dict]:
    """Evaluations with these perplexities."""
    return [
        {**dict.fromkeys(NAMES, value), "unigram": 900.0, "words": 1e6 * number}
        for number, value in enumerate(values, 1)
    ]


def texts(path: Path) -> list[str]:
    """What an SVG says: matplotlib names each text in a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    nodes = ElementTree.parse(path, parser).iter()
    return [node.text.strip() for node in nodes if node.tag is ElementTree.Comment]


@pytest.mark.parametrize("values", [(800, 400, 50), (800, 790), (500,), (None, 600, 500)])
def test_curves(values, tmp_path):
    path = tmp_path / "curves.svg"
    draw_curves(history(*values), path)
    shown = texts(path)
    assert {*NAMES, "million words read"} <= {*shown}
    # Numbers as people write them, and enough of them.
    numbers = [float(x.replace(",", "")) for x in shown if x.replace(",", "").isdecimal()]
    assert sum(number >= 40 for number in numbers) >= 3
    assert not [text for text in shown if "times" in text or "^" in text]


def test_mixes(tmp_path):
    """Rows may have equal labels, and fewer layers than others."""
    path = tmp_path / "mixes.svg"
    draw_mixes([("tagger", [0.31, 0.33, 0.36]), ("tagger", [0.25, 0.75])], path, "A title")
    shown = texts(path)
    assert {"0.31", "0.33", "0.36", "0.25", "0.75", "layer 2", "A title"} <= {*shown}
    assert shown.count("tagger") == 2


def test_equal_weights(tmp_path):
    draw_mixes([("tagger", [0.5, 0.5])], tmp_path / "mixes.svg")
    assert texts(tmp_path / "mixes.svg").count("0.50") >= 2


@pytest.mark.parametrize(
    "suffix, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_formats(suffix, start, tmp_path):
    path = tmp_path / "new" / f"plot.{suffix}"
    draw_curves(history(5, 4), path)
    assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match="svg"):
        draw_curves(history(5, 4), tmp_path / "plot.doc")
    assert not (tmp_path / "plot.doc").exists()


def test_the_same_plot_has_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_curves(history(5, 4), tmp_path / name)
    data = (tmp_path / "a.svg").read_bytes()
    assert data == (tmp_path / "b.svg").read_bytes()
    assert INK.encode() in data and PAPER.encode() in data


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install \"spacy-elmo\[viz\]\""):
        save(tmp_path / "a.png", "", lambda axes: None)
    assert not (tmp_path / "a.png").exists()
