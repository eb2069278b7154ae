"""Search the vectors that `spacy elmo embed` wrote to Parquet, with an approximate index (usearch).

    python -m spacy elmo embed texts vectors.parquet --model en_elmo_sm --id text
    python examples/parquet_search.py index vectors.parquet books.index --pipeline en_elmo_sm
    python examples/parquet_search.py search books.index "The river flooded the town." -n 5

`index` reads the parts twice, one at a time, but the index itself is built in memory: for about 600
bytes more per row than the vectors have. It prints the recall: how many of the ten nearest rows of
a sample the index finds. The mean of all vectors is subtracted.

Needs `pip install "spacy-elmo[search]"`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import srsly
from usearch.index import Index

from spacy_elmo import EmbedColumns
from spacy_elmo.files import atomic_folder
from spacy_elmo.weights import absolute_source

N_NEIGHBORS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("index", help="make an index of vectors")
    command.add_argument("vectors", type=Path, help="what `spacy elmo embed` wrote")
    command.add_argument("index", type=Path, help="the folder to write")
    command.add_argument("--pipeline", required=True, help="the one that made the vectors")
    command.add_argument("--sample", type=int, default=100, help="queries of the recall (100)")
    command = commands.add_parser("search", help="print the rows most like a query")
    command.add_argument("index", type=Path, help="the folder that `index` wrote")
    command.add_argument("query", help="a text")
    command.add_argument("-n", type=int, default=10, help="how many (10)")
    args = parser.parse_args()
    try:
        if args.command == "index":
            n_rows, recall = build(args.vectors, args.index, args.pipeline, args.sample)
            print(f"{args.index}: {n_rows:,} rows, recall at {N_NEIGHBORS}: {recall:.3f}")
        else:
            for similarity, row in search(args.index, args.query, args.n):
                print(f"{similarity:6.3f}  {'  '.join(map(str, row.values()))}")
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def build(vectors: Path, index: Path, pipeline: str, n_sample: int) -> tuple[int, float]:
    """Write an index: the graph of usearch, the mean, the other columns, how it was made.

    RETURNS (tuple): The number of rows, and the recall of a sample.
    RAISES (OSError, ValueError): If there are no vectors, or something else than an index is at
        its path.
    """
    if index.exists() and not (index / "graph.usearch").is_file():
        raise ValueError(f"{index} exists, and is not an index: choose another path")
    if n_sample < 1:
        raise ValueError(f"--sample {n_sample}: give 1 at least")
    settings = srsly.read_json(vectors / "_settings.json")
    if settings["pool"] == "none" or settings["layers"] == "all":
        raise ValueError(f"{vectors} is not of one vector per row: embed with --pool doc")
    data = pyarrow.dataset.dataset(vectors, format="parquet")
    n_rows = data.count_rows()
    manifest = vectors / "_manifest.json"
    if not manifest.is_file() or srsly.read_json(manifest)["n_rows"] != n_rows:
        raise ValueError(f"{vectors} is not complete: run `spacy elmo embed` again (all shards)")
    # Rows whose text is null have no vectors.
    data = data.filter(pyarrow.dataset.field("vector").is_valid())
    n_rows = data.count_rows()
    if not n_rows:
        raise ValueError(f"there are no rows in {vectors}")
    mean = sum(block.sum(axis=0, dtype=numpy.float64) for block in _blocks(data)) / n_rows
    mean = mean.astype(numpy.float32)
    graph: Any = Index(ndim=len(mean), metric="ip", dtype="f16")
    n_added = 0
    for block in _blocks(data):
        graph.add(numpy.arange(n_added, n_added + len(block)), normalised(block - mean))
        n_added += len(block)
    numbers = numpy.linspace(0, n_rows - 1, min(n_sample, n_rows)).astype(int)
    recall = _recall(graph, data, mean, numbers)
    with atomic_folder(index) as new:
        graph.save(str(new / "graph.usearch"))
        numpy.save(new / "mean.npy", mean)
        names = [name for name in data.schema.names if name != "vector"]
        schema = pyarrow.schema([data.schema.field(name) for name in names])
        with pyarrow.parquet.ParquetWriter(new / "rows.parquet", schema) as writer:
            for batch in data.to_batches(columns=names):
                writer.write_batch(batch)
        made = {name: settings[name] for name in ("layers", "pool", "precision")}
        made["pipeline"] = str(absolute_source(pipeline))
        srsly.write_json(new / "manifest.json", made)
    return n_rows, recall


def _blocks(data: Any) -> Iterator[numpy.ndarray]:
    """YIELDS (ndarray): Vectors in the order of their rows, shape (rows, width), in float32."""
    for batch in data.to_batches(columns=["vector"]):
        column = batch.column("vector")
        if len(column):
            yield column.flatten().to_numpy().reshape(len(column), -1).astype(numpy.float32)


def _recall(graph: Any, data: Any, mean: numpy.ndarray, numbers: numpy.ndarray) -> float:
    """RETURNS (float): The fraction of the rows found that are as near as the nearest by brute
    force, but for the rounding of the index, which is in half precision."""
    table = data.take(numbers, columns=["vector"])
    queries = normalised(next(_blocks(pyarrow.dataset.dataset(table.combine_chunks()))) - mean)
    n = min(N_NEIGHBORS, len(graph))
    best = numpy.zeros((len(queries), 0))
    for block in _blocks(data):
        similarities = queries @ normalised(block - mean).T
        best = numpy.sort(numpy.hstack([best, similarities]), axis=1)[:, -n:]
    found = [1 - graph.search(query, n).distances for query in queries]
    return sum(int((x >= least - 1e-3).sum()) for x, least in zip(found, best[:, 0])) / best.size


def search(index: Path, query: str, n: int) -> list[tuple[float, dict]]:
    """RETURNS (list): The best rows, each with its cosine similarity.
    RAISES (OSError, ValueError): If there is no index, or its pipeline is gone."""
    if n < 1:
        raise ValueError(f"-n must be 1 or more, found {n}")
    made = srsly.read_json(index / "manifest.json")
    embed = EmbedColumns(**made, dtype="float32")
    graph: Any = Index.restore(str(index / "graph.usearch"), view=True)  # Mapped, not read.
    vector = normalised(embed.embed([query])[0] - numpy.load(index / "mean.npy"))
    matches = graph.search(vector, min(n, len(graph)))
    rows = pyarrow.dataset.dataset(index / "rows.parquet").take(matches.keys)
    # The inner product of usearch is a distance, 1 - the similarity.
    return [(1 - float(x), row) for x, row in zip(matches.distances, rows.to_pylist())]


def normalised(vectors: numpy.ndarray) -> numpy.ndarray:
    norms = numpy.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / numpy.where(norms > 0, norms, 1)


if __name__ == "__main__":
    main()
