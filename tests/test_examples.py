"""The examples run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import spacy
import srsly

from spacy_elmo import EmbedColumns
from spacy_elmo.weights import DEFAULT

from .conftest import elmo_pipeline, run_script, run_spacy

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def search(*arguments: object, fails: bool = False) -> str:
    return run_script(EXAMPLES / "semantic_search.py", *arguments, fails=fails)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = ["The bank of the river. Money flows!", "", "A play  about rain. Zoë likes 銀行."]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n".join(lines), encoding="utf8")
    return tmp_path / "texts"


@pytest.fixture
def pipeline(tmp_path: Path, weights_folder: Path) -> Path:
    elmo_pipeline(weights_folder).to_disk(tmp_path / "pipeline")
    return tmp_path / "pipeline"


def test_semantic_search(texts: Path, pipeline: Path, tmp_path: Path):
    index = tmp_path / "index"
    assert "4 sentences" in search("index", texts, index, "--pipeline", pipeline)
    assert srsly.read_json(index / "manifest.json")["pipeline"] == str(pipeline)
    stored = numpy.load(index / "vectors.npy")
    assert stored.dtype == numpy.float16

    nlp = spacy.load(pipeline)
    sentences = (index / "sentences.txt").read_text(encoding="utf8").splitlines()
    assert sentences[2] == "A play about rain."
    *vectors, query = (nlp(text)._.elmo for text in (*sentences, "Money flows."))
    norms = numpy.linalg.norm(vectors, axis=1) * numpy.linalg.norm(query)
    expected = numpy.stack(vectors) @ query / norms

    output = search("search", index, "Money flows.", "-n", 3)
    results = [line.split(maxsplit=1) for line in output.splitlines()]
    best = numpy.argsort(-expected)[:3]
    assert [text for _, text in results] == [sentences[i] for i in best]
    assert [float(value) for value, _ in results] == pytest.approx(expected[best], abs=0.005)


def test_semantic_search_keeps_to_its_pipeline(texts: Path, tmp_path: Path, monkeypatch):
    """The weights of the package when the index was made, although there is a folder of the same
    name where the search starts."""
    index = tmp_path / "index"
    search("index", texts, index)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    spacy.blank("en").to_disk(elsewhere / "en_elmo_sm")
    monkeypatch.chdir(elsewhere)
    assert search("search", index, "Money flows!", "-n", 1).endswith("Money flows!\n")


def test_semantic_search_says_what_is_wrong(texts: Path, pipeline: Path, tmp_path: Path):
    index = tmp_path / "index"
    spacy.blank("en").to_disk(tmp_path / "blank")
    problems = {
        ("index", texts / "nowhere", index, "--pipeline", pipeline): "nowhere",
        ("index", texts, index, "--pipeline", tmp_path / "blank"): "no component 'elmo'",
        ("index", texts, texts, "--pipeline", pipeline): "is not an index",
        ("search", index, "query"): "manifest.json",
    }
    for arguments, problem in problems.items():
        assert problem in search(*arguments, fails=True)
        assert not index.exists() and (texts / "a.txt").is_file()


# Bulk jobs

PAGE = (ROOT / "docs" / "bulk.md").read_text(encoding="utf8")
LINES = [f"The bank number {i} flows. Money flows to the river." for i in range(60)]


def block(mark: str) -> str:
    return re.findall(f"<!-- {mark} -->\n```bash\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def many_texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n".join(LINES))
    return tmp_path / "texts"


def run_example(name: str, *arguments: object, home: Path) -> str:
    """In a process of its own, whose children import the script again."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_datasets(pipeline: Path, tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    rows = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
    (tmp_path / "in.jsonl").write_text(rows)
    options = ("--pipeline", pipeline, "--processes", 2)
    run_example(
        "bulk_datasets.py", tmp_path / "in.jsonl", tmp_path / "out", *options, home=tmp_path
    )
    embedded = datasets.load_from_disk(tmp_path / "out").with_format("numpy")
    expected = EmbedColumns(pipeline).embed(LINES)
    assert list(embedded["text"]) == LINES
    assert numpy.array_equal(numpy.stack(list(embedded["vector"])), expected)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark(pipeline: Path, tmp_path: Path, monkeypatch):
    pytest.importorskip("pyspark", reason="needs Spark")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra arrow")
    rows = "".join(json.dumps({"text": line, "n": n}) + "\n" for n, line in enumerate(LINES))
    (tmp_path / "in.jsonl").write_text(rows)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    options = ("--pipeline", pipeline)
    run_example("bulk_spark.py", tmp_path / "in.jsonl", tmp_path / "out", *options, home=tmp_path)
    table = parquet.read_table(tmp_path / "out").sort_by("n")
    assert table.column("text").to_pylist() == LINES
    expected = EmbedColumns(pipeline, dtype="float32").embed(LINES)
    assert numpy.array_equal(numpy.array(table.column("vector").to_pylist(), "float32"), expected)


@pytest.mark.slow
def test_dask(pipeline: Path, many_texts: Path, tmp_path: Path):
    pytest.importorskip("dask", reason="needs Dask")
    options = ("--pipeline", pipeline, "--block", "1KB")
    output = run_example(
        "bulk_dask.py", many_texts / "*.txt", tmp_path / "out", *options, home=tmp_path
    )
    assert "60 rows" in output
    parts = sorted((tmp_path / "out").iterdir())
    assert len(parts) > 2
    vectors = numpy.concatenate([numpy.load(part) for part in parts])
    assert numpy.array_equal(vectors, EmbedColumns(pipeline).embed(LINES))


def test_the_command_of_the_page(many_texts: Path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra arrow")
    monkeypatch.chdir(many_texts.parent)
    result = run_spacy(*block("bulk").split()[3:])
    assert result.exit_code == 0, result.output
    assert len(parquet.read_table("vectors.parquet")) == 60


def test_the_command_with_ray_is_the_same_command():
    assert block("ray").strip() == f"{block('bulk').strip()} --engine ray --workers 2"


@pytest.mark.slow
def test_an_array_of_jobs(pipeline: Path, many_texts: Path, tmp_path: Path):
    """The script of the page, as a batch queue runs it, with two jobs of two processes."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra arrow")
    script = block("array").replace("64 * 16", "2 * 2").replace("seq 1 16", "seq 1 2")
    script = script.replace("- 1) * 16", "- 1) * 2").replace("--quiet", "--quiet --rows 7")
    script = script.replace("/data/", f"{tmp_path}/")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for number in (1, 2):
        env = {**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(number)}
        subprocess.run(["bash", "-eu", "-c", script], env=env, check=True, capture_output=True)
    out = tmp_path / "vectors.parquet"
    assert json.loads((out / "_manifest.json").read_text())["n_rows"] == 60
    ids = parquet.read_table(out).column("id").to_pylist()
    assert sorted(ids) == sorted(f"{many_texts}/a.txt:{row}" for row in range(1, 61))


def test_parquet_search(many_texts: Path, tmp_path: Path, monkeypatch):
    """The vectors are pooled, as those of the query are."""
    pytest.importorskip("usearch.index", reason="needs the extra search")
    pytest.importorskip("pyarrow", reason="needs the extra arrow")
    monkeypatch.chdir(tmp_path)
    for out, options in (("doc", ("--id", "text")), ("none", ("--pool", "none"))):
        file = f"{out}.parquet"
        result = run_spacy("elmo", "embed", many_texts, file, "-m", DEFAULT, *options, "--rows", 9)
        assert result.exit_code == 0, result.output

    def run(*arguments: object, fails: bool = False) -> str:
        return run_script(EXAMPLES / "parquet_search.py", *arguments, fails=fails)

    options = ("--pipeline", DEFAULT)
    assert "60 rows, recall at 10: 1.000" in run("index", "doc.parquet", "index", *options)
    for number in (0, 31, 59):
        first, second = run("search", "index", LINES[number], "-n", 2).splitlines()
        similarity, text = first.split(maxsplit=1)
        assert text == LINES[number] and float(similarity) == pytest.approx(1, abs=2e-3)
        assert float(second.split()[0]) < float(similarity)
    shutil.copytree("doc.parquet", "part.parquet", ignore=lambda *_: ["_manifest.json"])
    problems = {
        "none": "is not of one vector per row: embed",
        "part": "part.parquet is not complete",
    }
    for name, problem in problems.items():
        assert problem in run("index", f"{name}.parquet", "other", *options, fails=True)
        assert not Path("other").exists()
