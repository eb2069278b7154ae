"""Columns in, columns out."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from packaging.version import Version

from spacy_elmo import EmbedColumns

from ..conftest import assert_close, elmo_pipeline, max_difference

CHOICES = [("mix", "mean"), ("all", "mean"), ("mix", "none"), ("all", "none")]
TEXTS = ["The bank flows. Money flows!", "", " \n", "é 銀行", "the bank of the river"]


@pytest.fixture
def pipeline(tmp_path: Path, weights_folder: Path) -> Path:
    nlp = elmo_pipeline(weights_folder)
    nlp.add_pipe("sentencizer", first=True)
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.elmo_tokens": None}})  # It does not run.
    nlp.to_disk(tmp_path / "pipeline")
    return tmp_path / "pipeline"


@pytest.fixture
def docs(pipeline: Path) -> list:
    return list(spacy.load(pipeline, exclude=["doc_cleaner"]).pipe(TEXTS))


def test_mean(pipeline: Path, docs: list):
    columns = {"id": numpy.arange(5), "text": TEXTS}
    embedded = EmbedColumns(pipeline)(columns)
    assert list(embedded) == ["id", "text", "vector"] and embedded["id"] is columns["id"]
    assert list(columns) == ["id", "text"]
    assert embedded["vector"].dtype == numpy.float16 and embedded["vector"].shape == (5, 12)
    exact = EmbedColumns(pipeline, dtype="float32").embed(TEXTS)
    assert max_difference(exact, numpy.stack([doc._.elmo for doc in docs])) <= 1e-6
    assert not exact[1].any() and not exact[2].any()
    assert numpy.array_equal(exact.astype("float16"), embedded["vector"])


def test_tokens_and_layers(pipeline: Path, docs: list):
    chosen = {
        "mix": lambda doc: doc._.elmo_tokens,
        "all": lambda doc: doc._.elmo_layers,
        "top": lambda doc: doc._.elmo_layers[-1],
        0: lambda doc: doc._.elmo_layers[0],
        -2: lambda doc: doc._.elmo_layers[-2],
    }
    for layers, choose in chosen.items():
        settings = {"layers": layers, "pool": "none", "dtype": "float32"}
        rows = EmbedColumns(pipeline, **settings).embed(TEXTS)
        assert_close(rows, map(choose, docs), 1e-6)


def test_halves_of_surrogate_pairs_are_question_marks(pipeline: Path):
    vectors = EmbedColumns(pipeline).embed(["a \ud800", ["a", "\ud800"], "a ?", []])
    assert not vectors[3].any()
    assert numpy.array_equal(vectors[0], vectors[2]) and numpy.array_equal(vectors[1], vectors[2])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_rows_of_a_batch_change_nothing(precision: str, pipeline: Path):
    texts = [" ".join(f"w{i * k % 7}" for i in range(k % 23)) for k in range(60)]
    try:
        embed = EmbedColumns(pipeline, dtype="float32", precision=precision)
        together = embed.embed(texts)
    except ValueError as error:
        pytest.skip(str(error))
    tolerance = 1e-2 if precision == "bfloat16" else 1e-6
    assert numpy.array_equal(embed.embed(texts), together)
    assert max_difference(embed.embed(texts[::-1])[::-1], together) <= tolerance
    assert max_difference(numpy.concatenate([embed.embed([x]) for x in texts]), together) <= (
        tolerance
    )


def test_the_vocabulary_does_not_grow_without_end(pipeline: Path, monkeypatch):
    embed = EmbedColumns(pipeline, layers="all", pool="none")
    before = embed.embed(TEXTS)
    nlp, _ = embed.load()
    monkeypatch.setattr("spacy_elmo.strings.MAX_STRINGS", len(nlp.vocab.strings))
    n_strings = len(nlp.vocab.strings)
    embed.embed([f"word{i} of many" for i in range(100)])
    assert len(nlp.vocab.strings) == n_strings
    assert all(map(numpy.array_equal, embed.embed(TEXTS), before))


# Threads.


def rows_of_new_words(number: int) -> list[str]:
    return [f"a{number} b{i} c{number * i}" for i in range(40)]


@pytest.mark.parametrize("zone", ["own", "caller's"])
def test_threads_share_a_full_vocabulary(zone: str, pipeline: Path, monkeypatch):
    embed = EmbedColumns(pipeline, pool="none")
    monkeypatch.setattr("spacy_elmo.strings.MAX_STRINGS", 0)
    expected = [embed.embed(rows_of_new_words(i)) for i in range(8)]
    nlp, _ = embed.load()
    # Another pipeline may have the same vocab, and engines unpickle the object for each task.
    nlp.to_disk(pipeline.parent / "other")
    monkeypatch.setattr(
        "spacy_elmo.bulk.columns.load_pipeline", lambda path: spacy.load(path, vocab=nlp.vocab)
    )
    same = pickle.dumps(EmbedColumns(pipeline.parent / "other", pool="none"))

    def is_right(call: int) -> bool:
        number = call % 8
        one = embed if call % 3 else pickle.loads(same)
        return all(map(numpy.array_equal, one.embed(rows_of_new_words(number)), expected[number]))

    around = nlp.memory_zone() if zone == "caller's" else contextlib.nullcontext()
    with around, ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(100)))


def test_a_zone_of_the_caller_ends_when_it_says(pipeline: Path, monkeypatch):
    embed = EmbedColumns(pipeline)
    expected = embed.embed(TEXTS)
    nlp, _ = embed.load()
    monkeypatch.setattr("spacy_elmo.strings.MAX_STRINGS", 0)
    n_strings = len(nlp.vocab.strings)
    with nlp.memory_zone():
        doc = nlp("zzyzx qwerty")
        embed.embed(["hello zzyzx"])
        assert [token.text for token in doc] == ["zzyzx", "qwerty"]
        assert numpy.array_equal(embed.embed(TEXTS), expected)
    assert len(nlp.vocab.strings) == n_strings


def test_threads_load_one_pipeline(pipeline: Path, monkeypatch):
    loaded = []

    def load(path: Path):
        loaded.append(path)
        return spacy.load(path)

    monkeypatch.setattr("spacy_elmo.bulk.columns.load_pipeline", load)
    pickled = pickle.dumps(EmbedColumns(pipeline, layers=0))
    with ThreadPoolExecutor(4) as threads:
        copies = set(threads.map(lambda _: id(pickle.loads(pickled).load()[0]), range(8)))
    assert len(copies) == len(loaded) == 1


def test_it_pickles_as_its_settings(pipeline: Path, monkeypatch):
    monkeypatch.chdir(pipeline.parent)
    embed = EmbedColumns(pipeline.name, layers=1)
    before = pickle.dumps(embed)
    vectors = embed.embed(TEXTS)
    assert pickle.dumps(embed) == before and len(before) < 1000
    monkeypatch.chdir("/")
    assert pickle.loads(before) == embed
    copy = pickle.loads(before)
    assert numpy.array_equal(copy.embed(TEXTS), vectors)
    assert pickle.loads(before) is copy is not embed
    assert pickle.loads(pickle.dumps(EmbedColumns(copy.pipeline, layers=2))) is not copy


def test_impossible_settings(pipeline: Path):
    with pytest.raises(ValueError, match="layers must be one of all, top, mix, mean, the n"):
        EmbedColumns(pipeline, layers="last")
    with pytest.raises(ValueError, match="nulls must be one of error, empty, found 'zeros'"):
        EmbedColumns(pipeline, nulls="zeros")


def test_another_precision_than_that_of_the_pipeline(tmp_path: Path, weights_folder: Path):
    elmo_pipeline(weights_folder, model={"precision": "int8"}).to_disk(tmp_path / "int8")
    texts = TEXTS[1:]  # Of one sentence each.
    found = EmbedColumns(tmp_path / "int8").embed(texts)
    same = EmbedColumns(tmp_path / "int8", precision="int8").embed(texts[::-1])[::-1]
    assert max_difference(found, same) <= 1e-5
    exact = EmbedColumns(weights_folder).embed(texts)
    assert (
        max_difference(EmbedColumns(tmp_path / "int8", precision="float32").embed(texts), exact)
        < 1e-3
    )


def test_stateful(tmp_path: Path, weights_folder: Path):
    elmo_pipeline(weights_folder, model={"stateful": True}).to_disk(tmp_path / "stateful")
    with pytest.raises(ValueError, match="is stateful"):
        EmbedColumns(tmp_path / "stateful").embed(TEXTS)


@pytest.mark.parametrize("text", [3, ["a", 1], ["a", ""]])
def test_not_a_text(text, pipeline: Path):
    with pytest.raises(ValueError, match="row 2 of the column 'text' is neither a string nor"):
        EmbedColumns(pipeline)({"text": ["fine", text]})


@pytest.mark.parametrize("null", [None, float("nan"), numpy.float64("nan")])
def test_nulls_are_errors(null, pipeline: Path):
    message = "row 2 of the column 'text' is null: remove it, or choose nulls 'empty'"
    with pytest.raises(ValueError, match=message):
        EmbedColumns(pipeline).embed(["a", null])


@pytest.mark.parametrize("texts", [["The bank", None, "", "Money."], [None, None]])
@pytest.mark.parametrize("layers, pool", CHOICES[::3])
def test_nulls_may_be_empty(layers: str, pool: str, texts: list, pipeline: Path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    pandas = pytest.importorskip("pandas")
    embed = EmbedColumns(pipeline, layers=layers, pool=pool, nulls="empty")
    expected = EmbedColumns(pipeline, layers=layers, pool=pool).embed(
        [x for x in texts if x is not None]
    )
    is_null = [x is None for x in texts]

    def check(column: list) -> None:
        assert [row is None for row in column] == is_null
        rows = [numpy.array(row, "float16") for row in column if row is not None]
        for row, vectors in zip(rows, expected, strict=True):
            assert numpy.array_equal(row.reshape(vectors.shape), vectors)

    array = embed.embed(texts)
    if pool == "mean":
        assert numpy.isnan(array[is_null]).all()
        assert numpy.array_equal(array[numpy.logical_not(is_null)], expected)
    else:
        check(array)
    column = embed(arrow.table({"text": arrow.array(texts, arrow.string())})).column("vector")
    assert column.type == embed(arrow.table({"text": [""]})).column("vector").type
    check(column.to_pylist())
    kinds = ["object", "string", "category"]
    if Version(pandas.__version__) >= Version("3"):  # Before, "str" makes text of nulls.
        kinds.append("str")
    for kind in kinds:
        check(list(embed(pandas.DataFrame({"text": pandas.array(texts, kind)}))["vector"]))
    texts = [float("nan") if x is None else x for x in texts]
    assert len(embed.embed(texts)) == len(texts)


@pytest.mark.parametrize("layers, pool", CHOICES[::3])
def test_a_data_frame(layers: str, pool: str, pipeline: Path):
    """Two rows have as many tokens, which pandas must not make a matrix of."""
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    embed = EmbedColumns(pipeline, layers=layers, pool=pool)
    for texts in ([], ["a b", "c d"], TEXTS):
        frame = pandas.DataFrame({"text": pandas.array(texts, "str"), "n": range(len(texts))})
        frame.index = [7] * len(texts)
        embedded = embed(frame)
        assert list(embedded) == ["text", "n", "vector"] and list(frame) == ["text", "n"]
        assert embedded.index.equals(frame.index)
        for row, vectors in zip(embedded["vector"], embed.embed(texts), strict=True):
            assert numpy.array_equal(numpy.array(row).reshape(vectors.shape), vectors)
        assert len(arrow.Table.from_pandas(embedded)) == len(texts)
    replaced = EmbedColumns(pipeline, output="text", layers=layers, pool=pool)(frame)
    assert list(replaced) == ["text", "n"]
    with pytest.raises(
        ValueError, match=r"no single column 'text' of texts .*found \['text', 'text'\]"
    ):
        embed(frame[["text", "text"]])
    with pytest.raises(ValueError, match=r"'text': .* is a DataFrame, not a batch"):
        embed.embed(frame[["text"]][:0])


BATCHED = "give a list with an item for each row; Dataset.map does so with batched=True"


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({"text": "The bank"}, "'text': 'The bank' is a str, not a batch"),
        ({"text": {"de": "Bank"}}, "'text': .* is a dict"),
        # A list of tokens. Other columns show that it is one row.
        ({"text": ["The", "bank"], "id": 3}, "'id': 3 is a int"),
        ({"text": ["The", "bank"], "id": torch.tensor(3)}, "'id' has -1 rows, not 2"),
        ({"text": ["The", "bank"], "tags": [1]}, "'tags' has 1 rows, not 2"),
    ],
)
def test_one_row_is_no_batch(columns: dict, problem: str, pipeline: Path):
    with pytest.raises(ValueError, match=f"{problem}.*: {BATCHED}"):
        EmbedColumns(pipeline)(columns)


@pytest.mark.parametrize("format", [None, "numpy", "arrow", "pandas"])
def test_hugging_face_datasets(format: str | None, pipeline: Path):
    """Without `batched=True`, there are tables of one row, or errors."""
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    embed = EmbedColumns(pipeline)
    texts = ["The bank of the river.", "Money."]
    dataset = datasets.Dataset.from_dict({"text": texts, "words": [["a", "b"], ["c", "d"]]})
    dataset = dataset.with_format(format)
    embedded = dataset.map(embed, batched=True).with_format("numpy")
    assert numpy.array_equal(numpy.stack(list(embedded["vector"])), embed.embed(texts))
    for column, of_words in (("text", embed), ("words", EmbedColumns(pipeline, text="words"))):
        few = dataset.select_columns([column])
        if format in ("arrow", "pandas"):
            assert len(few.map(of_words)) == 2
        elif column == "text" or format is None:
            with pytest.raises(ValueError, match="batched=True"):
                few.map(of_words)


def test_no_such_column(pipeline: Path):
    for columns in ({"body": []}, ["text"]):
        with pytest.raises(ValueError, match="no single column 'text' of texts in a dict"):
            EmbedColumns(pipeline)(columns)


def test_too_large_for_float16(pipeline: Path):
    embed = EmbedColumns(pipeline)
    _, elmo = embed.load()
    with torch.no_grad():
        for parameter in elmo.bilm.parameters():
            parameter *= 1e4
    with pytest.raises(ValueError, match="a vector of 'huge' needs dtype 'float32'"):
        embed.embed(["huge"])


@pytest.mark.parametrize("layers, pool", CHOICES)
def test_arrow(layers: str, pool: str, pipeline: Path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    table = arrow.table({"id": range(5), "text": arrow.array(TEXTS, arrow.string())})
    embed = EmbedColumns(pipeline, layers=layers, pool=pool)
    for columns in (table, table[:0], *table.to_batches()):
        embedded, expected = embed(columns), embed.embed(TEXTS[: len(columns)])
        assert type(embedded) is type(columns)
        assert embedded.schema.names == ["id", "text", "vector"]
        for actual, row in zip(embedded.column("vector").to_pylist(), expected, strict=True):
            actual = numpy.array(actual, dtype="float16")
            assert numpy.array_equal(actual.reshape(row.shape), row)
    replaced = EmbedColumns(pipeline, output="text", layers=layers, pool=pool)(table)
    assert replaced.column("text").equals(embed(table).column("vector"))


def test_no_engine_is_imported(pipeline: Path):
    program = (
        "import sys, spacy_elmo; "
        f"spacy_elmo.EmbedColumns({str(pipeline)!r})({{'text': ['The bank']}}); "
        "print({'ray', 'datasets', 'dask', 'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "set()"


def test_its_repr_says_what_it_is(pipeline: Path):
    embed = EmbedColumns(pipeline, layers="top")
    shown = f"EmbedColumns(pipeline={embed.pipeline!r}, layers='top': "
    assert repr(embed) == shown + "not loaded yet)"
    embed.embed(["the bank"])
    assert repr(embed).startswith(shown)
    assert repr(embed).endswith(" parameters, 3 layers of width 12, cpu, float32)")
