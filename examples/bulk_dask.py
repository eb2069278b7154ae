"""Embed lines of text with a Dask bag, a process per core or the workers of a cluster.

    python examples/bulk_dask.py texts/a.txt vectors --pipeline en_elmo_sm

Every partition becomes a file OUT/NUMBER.npy, a row of float16 for each line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask
import dask.bag
import numpy

from spacy_elmo import EmbedColumns
from spacy_elmo.files import atomic_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", help="a file or a pattern of lines of text")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--pipeline", default="en_elmo_sm", help="a name or a path (en_elmo_sm)")
    parser.add_argument("--block", default="16MB", help="text of a partition (16MB)")
    args = parser.parse_args()
    embed = EmbedColumns(args.pipeline, threads=1)
    lines = dask.bag.read_text(args.texts, blocksize=args.block).map(lambda line: line.rstrip("\n"))
    tasks = [
        dask.delayed(write)(embed, partition, args.out / f"{number:05}.npy")
        for number, partition in enumerate(lines.to_delayed())
    ]
    # Threads would take turns. A cluster's client takes its own workers.
    counts = dask.compute(*tasks, scheduler="processes")
    print(f"{args.out}: {sum(counts):,} rows")


def write(embed: EmbedColumns, texts: list[str], path: Path) -> int:
    """RETURNS (int): The number of rows."""
    vectors = embed({"text": list(texts)})["vector"]
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        numpy.save(file, vectors)
    return len(vectors)


if __name__ == "__main__":
    main()
