"""The page about all experiments: its statistics, and that what is missing or broken is named."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from spacy_elmo.plots import INK, PAPER

sys.path.insert(0, str(Path(__file__).parents[2] / "project" / "scripts"))
report = import_module("report")
results = import_module("results")

MIX = {"tagger": {"input": {"weights": [0.2, 0.5, 0.3], "gamma": 1.5}}}


def write(folder, system, score, seed=0, task="ewt-tagger", size="full", **values) -> Path:
    """Write a result as experiment.py does."""
    path = folder / task / system / size / f"seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"task": task, "system": system, "size": size, "seed": seed, "n_train": 1000}
    record["scores"] = {"token_acc": 1.0, "tag_acc": score}
    record.update(per_class=None, mixes={}, seconds=90.0, steps=10, weights=None, hardware="cpu")
    path.write_text(json.dumps({**record, **values}))
    return path


@pytest.fixture
def metrics(tmp_path):
    """Two systems, three seeds, two sizes; the baseline wins at the smaller one."""
    folder = tmp_path / "metrics"
    for seed, (baseline, elmo) in enumerate([(0.90, 0.92), (0.91, 0.94), (0.89, 0.93)]):
        write(folder, "baseline", baseline, seed)
        write(folder, "elmo", elmo, seed, mixes=MIX, weights="en_elmo_sm")
        write(folder, "baseline", baseline - 0.2, seed, size="p10", n_train=100)
        write(folder, "elmo", baseline - 0.25, seed, size="p10", n_train=100)
    return folder


def page(metrics, out, pretraining=()) -> tuple[str, str]:
    """The page as Markdown and as HTML."""
    report.write_report(metrics, out, pretraining)
    return tuple((out / name).read_text(encoding="utf8") for name in ("report.md", "index.html"))


def rows_of(markdown: str, first: str) -> list[list[str]]:
    """The cells of the table rows whose first cell is this."""
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line[:1] == "|"]
    return [line for line in lines if line[0].strip() == first]


def test_statistics(metrics):
    runs = [run for run in results.read_runs(metrics) if run.size == "full"]
    systems = results.by(lambda run: run.system, runs)
    elmo = results.spread(run.scores["tag_acc"] for run in systems["elmo"])
    assert elmo == (pytest.approx(0.93), pytest.approx(0.01), 3)
    compared = results.compare(systems["elmo"], systems["baseline"], "tag_acc")
    assert compared.difference == (pytest.approx(0.03), pytest.approx(0.01), 3)
    assert compared.error_reduction == pytest.approx(0.3)
    assert compared.n_better == 3 and compared.is_clear


def test_tables(metrics, tmp_path):
    markdown, _ = page(metrics, tmp_path / "out")
    main = ["elmo", "93.00 ± 1.00", "3", "+3.00 ± 1.00", "30.00%", "1.5", "10"]
    assert main in rows_of(markdown, "elmo")
    assert ["System", "10% (100)", "all (1,000)"] in rows_of(markdown, "System")
    assert ["elmo", "65.00 ± 1.00", "93.00 ± 1.00"] in rows_of(markdown, "elmo")
    assert ["baseline", "70.00 ± 1.00", "90.00 ± 1.00"] in rows_of(markdown, "baseline")
    mix = ["0.200 ± 0.000", "0.500 ± 0.000", "0.300 ± 0.000", "1.500 ± 0.000"]
    assert ["ewt-tagger", "elmo", "tagger/input", *mix] in rows_of(markdown, "ewt-tagger")
    weak = ["ewt-tagger", "elmo", "10%", "tag_acc −5.00 ± 0.00 (0 of 3)"]
    assert rows_of(markdown.replace(report.NO_BREAK, " "), "ewt-tagger")[-1] == weak
    assert "Of 2 comparisons of a main score with `baseline`, 1 did not" in markdown
    assert "token_acc" not in markdown


def test_a_row_per_task_comes_first(metrics, tmp_path):
    """Of the most training data that both systems have."""
    write(metrics, "baseline", 0.6, task="part", size="10", per_class=10)
    write(metrics, "words-scalar", 0.7, task="part", size="10", per_class=10)
    write(metrics, "words-scalar", 0.7, task="part")
    markdown, _ = page(metrics, tmp_path / "out")
    first = markdown.split("## Scores")[0]
    scores = ["90.00 ± 1.00", "93.00 ± 1.00", "+3.00 ± 1.00"]
    expected = [["ewt-tagger", *scores, "accuracy of tags", "all", "elmo"]]
    assert rows_of(first, "ewt-tagger") == expected
    scores = ["60.00", "70.00", "+10.00"]
    expected = [["part", *scores, "accuracy of tags", "10 per class", "words-scalar"]]
    assert rows_of(first, "part") == expected


def test_the_page_is_one_file(metrics, tmp_path):
    """With its plots, contents whose links lead somewhere, and versions."""
    markdown, html = page(metrics, tmp_path / "out")
    assert "<img" not in html and html.count('<svg role="img" aria-label="') == 2
    plots = "".join(re.findall("<svg.*?</svg>", html, re.DOTALL))
    for colour in (INK, PAPER):
        assert colour not in plots and colour in (tmp_path / "out" / "mixes.svg").read_text()
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len({*ids})
    links = re.findall(r'href="#([^"]*)"', html)
    assert {"scores", "what-did-not-help-or-not-clearly", "versions"} <= {*links} <= {*ids}
    assert {x.split("#")[1].strip(")") for x in markdown.splitlines() if "](#" in x} <= {*ids}
    assert rows_of(markdown, "spacy-elmo") == [["spacy-elmo", version("spacy-elmo")]]
