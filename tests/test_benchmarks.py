"""The benchmarks run, at their smallest size, and fill their tables. What they measure is not
tested."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = (
    *("bulk", "common", "count", "embed", "frontier", "frontier_models", "peers", "plain"),
    *("pretrain", "texts", "train"),
)
# What every row has, whatever is measured.
RATES = "GFLOP/s", "mm GFLOP/s", "fraction", "peak MB"
COUNTS = "kernels", "MB/token"
SMALL_CORPUS = "--shapes", "tiny", "--sentences", "600", "--steps", "1", "--precision", "float32"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder with files of sentences where the benchmarks look for them."""
    folder = tmp_path_factory.mktemp("shared")
    treebank = folder / "data" / "ud_en_ewt"
    treebank.mkdir(parents=True)
    for part in ("train", "test"):
        with (treebank / f"en_ewt-ud-{part}.conllu").open("w", encoding="utf8") as file:
            for number in range(600):
                for i in range(1, 5 + number % 7):
                    file.write(f"{i}\tword{number * i % 397}\t_\tNOUN\tNN\n")
                file.write("\n")
    return folder


@pytest.fixture(scope="module")
def modules(shared):
    """The benchmarks, which measure everything once, and in this process."""
    environment = patch.dict(os.environ, {"SPACY_ELMO_SHARED": str(shared)})
    with patch.object(sys, "path", [str(FOLDER), *sys.path]), environment:
        common = importlib.import_module("common")
        seconds = common.seconds
        # The other modules take them from here.
        common.seconds = lambda run, device, repeats=1: seconds(run, device, 1)
        common.in_own_process = in_this_process
        yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def run(modules, capsys):
    """Runs a benchmark. RETURNS (list): The rows of its table, as dicts."""
    n_threads = torch.get_num_threads()

    def run_main(name: str, *options: str) -> list[dict[str, str]]:
        with patch.object(sys, "argv", [name, *options]):
            assert not modules[name].main()
        return read_table(capsys.readouterr().out)

    yield run_main
    torch.set_num_threads(n_threads)


def in_this_process(script: str, measure: str, args: Namespace, **settings: object) -> Any:
    row = sys.modules[Path(script).stem].MEASURES[measure](Namespace(**{**vars(args), **settings}))
    return json.loads(json.dumps(row))


def read_table(output: str) -> list[dict[str, str]]:
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    names, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


def assert_filled(row: dict[str, str], *columns: str) -> None:
    assert [name for name in columns if not row[name] or "nan" in row[name]] == []


def test_embed(run):
    options = "--shapes", "tiny", "--precision", "float32", "int8", "--max-tokens", "64"
    exact, coarse = run("embed", *options, "--sentences", "20", "--pipe-tokens", "50", "--peers")
    for row in (exact, coarse):
        assert (row["shape"], row["kernel"], row["max tokens"]) == ("tiny", "auto", "64")
        assert_filled(row, *RATES, "cold", "warm", "nlp.pipe", "latency ms", "weights MB")
    assert_filled(exact, *COUNTS, "plain")
    assert_filled(coarse, "min cosine")


@pytest.mark.parametrize("rows", [(), ("--carry-state", "--rows", "4")], ids=str)
def test_pretrain(run, rows):
    batch = rows or ("--batch-words", "100")
    table = run("pretrain", *SMALL_CORPUS, *batch, "--vocabulary", "50", "3000")
    assert [row["vocabulary"] for row in table] == ["50", "3,000"]
    for row in table:
        assert_filled(row, *RATES, *COUNTS, "words/s", "data words/s")


@pytest.mark.slow
def test_bulk(run):
    pytest.importorskip("pyarrow", reason="needs the extra arrow")
    options = "--runs", "local:1", "local:2", "--sentences", "40", "--rows", "10"
    one, two = run("bulk", *options)
    assert_filled(one, "seconds", "start", "sentences/s", "tokens/s")
    assert_filled(two, "to 1 worker")
    with pytest.raises(SystemExit):
        run("bulk", "--runs", "spark:1")


def test_frontier(run, tmp_path):
    for name in ("train.txt", "test.txt"):
        text = "-DOCSTART- -X- O\n\n" + "Ann NNP B-PER\nsleeps VBZ O\n\n" * 9
        (tmp_path / name).write_text(text, encoding="utf8")
    options = ["--train", "9", "--test", "6", "--words", "20", "--conll", str(tmp_path)]
    options += ["--tweets", str(tmp_path / "train.txt"), "--folder", str(tmp_path)]
    options += ["--models", "en_elmo_sm float32"]
    mix, *others = run("frontier", *options)
    views = ["mean of layers", "side by side", "best layer"]
    assert [x["view"] for x in (mix, *others)] == ["default mix", *views]
    mean = others[0]
    assert mean["UPOS"] == mean["XPOS"] == mean["CoNLL"] == mean["tweets"] == "100.0"
    assert_filled(mean, "MB", "CPU s")
    assert mean["STS-B"] == ""
    # What is kept is read again.
    (kept,) = tmp_path.glob("*CoNLL*.json")
    kept.write_text(kept.read_text().replace("100.0", "50.0"))
    assert run("frontier", *options)[0]["CoNLL"] == "50.0"
