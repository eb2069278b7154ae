"""What does Ray add to `spacy elmo embed`, and how does it scale?

Prints one Markdown table: a row per engine and number of single-threaded workers, which embed the
same lines to Parquet. Without Ray, the workers are processes of a shard each, as of a batch queue.
The bundled weights are used. At the end it says whether all rows of all runs are the same, bit for
bit. benchmarks/RESULTS.md explains the columns.

    python benchmarks/bulk.py                          # needs pip install "spacy-elmo[ray]"
    python benchmarks/bulk.py --runs local:1 local:2 --precision float32 --sentences 20000

The machine must be idle otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

import numpy
import psutil
import spacy
import texts
from common import BUNDLED, describe, print_header, print_row

from spacy_elmo.bulk.job import default_rows
from spacy_elmo.inference.settings import CPU_PRECISIONS

ENGINES = ("local", "ray")
# Of the lines, those of a short run. Workers need not be ready at the same time: rates are those of
# the lines that a long run has more.
SHORT = 0.25
# As docs/bulk.md advises: several times as many as workers, who read only their own ones.
N_FILES = 64
# Of the lines that are tokenised, to know how many tokens all have.
N_TOKENISED = 5000
SECONDS_BETWEEN_LOOKS = 2

COLUMNS = {
    "engine": "{}",
    "workers": "{}",
    "seconds": "{:,.1f}",
    "start": "{:,.1f}",
    "sentences/s": "{:,.0f}",
    "tokens/s": "{:,.0f}",
    "to 1 worker": "{:.2f}",
    "to local": "{:.2f}",
    "RSS MB": "{:,.0f}",
    "PSS MB": "{:,.0f}",
    "other PSS MB": "{:,.0f}",
}


def commands(
    precision: str, rows: int, engine: str, n_workers: int, folder: Path, out: Path
) -> list[list[str]]:
    """RETURNS (list): The commands that are to run side by side."""
    command = [sys.executable, "-m", "spacy", "elmo", "embed", str(folder), str(out), "--quiet"]
    command += ["--model", BUNDLED, "--precision", precision, "--threads", "1"]
    command += ["--rows", str(rows)]
    if engine == "ray":
        return [[*command, "--engine", "ray", "--workers", str(n_workers)]]
    return [[*command, "--shard", f"{n}/{n_workers}"] for n in range(1, n_workers + 1)]


def run(lines: list[list[str]], memory: Optional[dict[str, float]] = None) -> float:
    """Run commands side by side.

    memory (dict): Gets the peaks in MB, see `look`.
    RETURNS (float): Seconds.
    RAISES (SystemExit): If one fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in lines]
        processes = [
            subprocess.Popen(line, env=environment, stdout=error, stderr=error)
            for line, error in zip(lines, errors)
        ]
        for process, error in zip(processes, errors):
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_BETWEEN_LOOKS)
                if memory is not None:
                    look([process.pid for process in processes], memory)
            if process.returncode:
                error.seek(0)
                raise SystemExit(error.read())
    return time.perf_counter() - start


def look(pids: list[int], memory: dict[str, float]) -> None:
    """Update the peaks: "RSS MB" and "PSS MB" of the largest worker, resident and proportional (in
    which memory that processes share counts once), "other PSS MB" of all processes besides."""
    other = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            children = parent.children(recursive=True)
            workers = [x for x in children if "MapWorker" in " ".join(x.cmdline())]
            is_ray = "ray" in parent.cmdline()
            for process in [parent, *children]:
                with contextlib.suppress(psutil.Error):
                    used = process.memory_full_info()
                    if is_ray and process not in workers:
                        other += used.pss / 1e6
                    else:
                        memory["RSS MB"] = max(memory.get("RSS MB", 0), used.rss / 1e6)
                        memory["PSS MB"] = max(memory.get("PSS MB", 0), used.pss / 1e6)
    if other:
        memory["other PSS MB"] = max(memory.get("other PSS MB", 0), other)


def rows_of(out: Path, n_rows: int) -> dict[str, bytes]:
    """RETURNS (dict): The vector of each ID, as bytes.
    RAISES (SystemExit): If a row is missing or doubled."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out).combine_chunks()
    vectors = table.column("vector").chunk(0).flatten().to_numpy().reshape(len(table), -1)
    rows = dict(zip(table.column("id").to_pylist(), map(numpy.ndarray.tobytes, vectors)))
    if not len(table) == len(rows) == n_rows:
        raise SystemExit(f"{out}: {len(table)} rows with {len(rows)} IDs instead of {n_rows}")
    return rows


def write(folder: Path, lines: list[str]) -> Path:
    """RETURNS (Path): The folder, with lines in N_FILES files."""
    folder.mkdir()
    size = -(-len(lines) // N_FILES)
    for number in range(N_FILES):
        # The last line may be empty.
        text = "".join(f"{line}\n" for line in lines[number * size : (number + 1) * size])
        (folder / f"{number:02}.txt").write_text(text, encoding="utf8")
    return folder


def measure(args: argparse.Namespace, folder: Path, lines: list[str]) -> list[str]:
    """Print the table. RETURNS (list): The IDs of rows that are not the same in all runs."""
    nlp = spacy.blank("en")
    few = lines[:: max(1, len(lines) // N_TOKENISED)]
    tokens_per_line = sum(map(len, map(nlp.tokenizer, few))) / len(few)
    n_short = int(len(lines) * SHORT)
    long_texts = write(folder / "long", lines)
    short_texts = write(folder / "short", lines[:n_short])
    print_header(COLUMNS)
    rates: dict[tuple[str, int], float] = {}
    first: dict[str, bytes] = {}
    differing: set[str] = set()
    for engine, n_workers in args.runs:
        out = folder / f"{engine}{n_workers}.parquet"
        settings = args.precision, args.rows, engine, n_workers
        row: dict[str, Any] = {"engine": engine, "workers": n_workers}
        short = run(commands(*settings, short_texts, out))
        shutil.rmtree(out)
        seconds = run(commands(*settings, long_texts, out), row)
        rate = rates[engine, n_workers] = (len(lines) - n_short) / (seconds - short)
        row |= {"seconds": seconds, "start": short - n_short / rate}
        row |= {"sentences/s": rate, "tokens/s": rate * tokens_per_line}
        for column, other in (("to 1 worker", (engine, 1)), ("to local", ("local", n_workers))):
            if other in rates and other != (engine, n_workers):
                row[column] = rate / rates[other]
        print_row(COLUMNS, row)
        rows = rows_of(out, len(lines))
        first = first or rows
        differing.update(key for key, vector in rows.items() if first.get(key) != vector)
    return sorted(differing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs",
        nargs="+",
        type=engine_and_workers,
        default=[(engine, n) for engine in ENGINES for n in (1, 2)],
        metavar="ENGINE:WORKERS",
        help="default: local:1 local:2 ray:1 ray:2",
    )
    parser.add_argument("--precision", default="int8", choices=CPU_PRECISIONS, help="int8")
    parser.add_argument("--sentences", type=int, default=200_000, help="lines (200,000)")
    parser.add_argument("--rows", type=int, default=default_rows("mean"), help="of a part")
    args = parser.parse_args()
    if find_spec("ray") is None and any(engine == "ray" for engine, _ in args.runs):
        parser.error('no Ray: pip install "spacy-elmo[ray]", or choose --runs')
    lines = texts.lines(args.sentences)
    what = f"{len(lines):,} sentences of film reviews, {BUNDLED}, {args.precision}"
    print(f"{what}. {describe('cpu')}\n")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as folder:  # Ray needs a short path.
        differing = measure(args, Path(folder), lines)
    print(f"\n{len(differing)} of {len(lines):,} rows are not the same in all runs", differing[:10])
    return int(bool(differing))


def engine_and_workers(text: str) -> tuple[str, int]:
    engine, _, n_workers = text.partition(":")
    if engine not in ENGINES or not n_workers.isdecimal() or not int(n_workers):
        raise argparse.ArgumentTypeError(f"must be like local:1 or ray:2, found {text!r}")
    return engine, int(n_workers)


if __name__ == "__main__":
    sys.exit(main())
