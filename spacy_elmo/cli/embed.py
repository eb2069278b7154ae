"""spacy elmo embed: write the vectors of texts to a file."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any, Optional

import typer
from wasabi import msg

from ..bulk.columns import EmbedColumns
from ..bulk.job import Job, default_rows, find_sources
from ..bulk.outputs import OUTPUTS
from ..tools.records import Reader
from ..tools.texts import total_size
from . import util

Engine = Enum("Engine", {name: name for name in ("local", "ray")})  # type: ignore[misc]

# Options that an engine cannot honour. Those of outputs are in their modules.
_REFUSED = {"local": ("workers",), "ray": ("shard",)}
_INPUTS = typer.Argument(
    ...,
    metavar="IN... OUT",
    help=f"{util.INPUT_HELP}; also URLs. OUT: a path that ends in {', '.join(OUTPUTS)}",
)
_LAYERS = typer.Option(None, "--layers", "-L", help="all, top, mix, mean, or the number of one")
_PRECISION = typer.Option(None, help="float32, float16, int8, bfloat16; tf32 on a GPU; auto")
_WORKERS = typer.Option(None, min=1, help="Of Ray: how many (one per CPU or GPU)")


def embed_cli(
    inputs: list[str] = _INPUTS,
    model: str = typer.Option(..., "--model", "-m", help="A pipeline, or weights"),
    layers: Optional[str] = _LAYERS,
    pool: Optional[str] = typer.Option(None, help="none: a vector per token; doc, mean: per row"),
    dtype: Optional[str] = typer.Option(None, help="float32 or float16"),
    name: Optional[str] = util.NAME_N,
    whitespace: bool = typer.Option(False, "--whitespace", "-w", help="Spaces separate the tokens"),
    text: Optional[str] = util.TEXT,
    ids: list[str] = typer.Option([], "--id", help="A column to carry through; any number"),
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    nulls: str = typer.Option("error", help="Null texts: error, or empty (null vectors)"),
    precision: Optional[str] = _PRECISION,
    gpu_id: int = util.GPU_ID,
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUT, start afresh"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
    rows: Optional[int] = typer.Option(None, min=1, help="Rows of a part"),
    threads: Optional[int] = typer.Option(None, min=1, help="Threads of a process"),
    shard: str = typer.Option("1/1", help="Write only the I-th of N shards, as I/N"),
    engine: Engine = typer.Option("local", help="This process, or Ray (RAY_ADDRESS)"),
    workers: Optional[int] = _WORKERS,
) -> None:
    """
    Write the vectors of texts to a file.

    If it is interrupted, the same command continues. HDF5 and .npz have an array per line, of shape
    (layers, tokens, width), named by its number. Parquet is a folder of parts, with a row per line,
    by default what doc._.elmo is. Several files count as one. Shards may run at the same time.
    """
    settings = {"layers": layers, "pool": pool, "dtype": dtype, "precision": precision}
    settings = {x: y for x, y in settings.items() if y is not None}
    with util.exit_on_error():
        given = {**settings, "id": ids, "shard": shard != "1/1", "workers": workers}
        out = _check_output(inputs, engine.value, [x for x, y in given.items() if y])
        util.require_gpu(gpu_id)
        defaults = OUTPUTS[out.suffix].DEFAULTS | ({"layers": "mix"} if pool == "doc" else {})
        chosen: dict[str, Any] = {**defaults, **settings, "nulls": nulls, "threads": threads}
        embed = EmbedColumns(model, **chosen, gpu_id=gpu_id, name=name)
        # Lines can be carried through as "text".
        sources = find_sources(inputs[:-1], out, columns=bool(text or {*ids} - {"text"}))
        n_rows = rows or default_rows(embed.pool, embed.layers)
        reader = Reader(text, encoding, errors, nulls)
        job = Job(out, sources, embed, n_rows, ids, reader, whitespace)
        _run(job, shard, engine.value, workers, force, quiet)


def _check_output(inputs: list[str], engine: str, given: list[str]) -> Path:
    """RETURNS (Path): The output, which can honour the options that are given."""
    out = Path(inputs[-1])
    if len(inputs) < 2 or out.suffix not in OUTPUTS or "://" in inputs[-1]:
        suffixes = ", ".join(OUTPUTS)
        raise ValueError(f"give inputs and an output: {out} must be a path that ends in {suffixes}")
    refused = {out.suffix: OUTPUTS[out.suffix].REFUSED, f"--engine {engine}": _REFUSED[engine]}
    for where, names in refused.items():
        if wrong := [name for name in names if name in given]:
            raise ValueError(f"--{wrong[0]} has no meaning with {where}: leave it out")
    return out


def _run(
    job: Job, shard: str, engine: str, workers: Optional[int], force: bool, quiet: bool
) -> None:
    """Write the output, or a shard of it, and say what was written."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    number, n_shards = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= n_shards or (force and n_shards > 1):
        raise ValueError(f"--shard must be I/N, with I from 1 to N, no --force, found {shard!r}")
    job.prepare(force=force)
    total, counts = None, [0, 0, 0]
    if not quiet and sys.stderr.isatty():
        with util.progress_bar("Counting", "B", total_size(map(Path, job.sources))) as progress:
            total = job.count_rows(number - 1, n_shards, progress)
    try:
        with util.progress_bar("Embedding", " rows", total, quiet=quiet) as progress:
            parts = job.run(number - 1, n_shards, progress)
            if engine == "ray":
                from ..bulk.ray_engine import run_on_ray

                gpu = job.embed.gpu_id >= 0
                parts = run_on_ray(job, workers, gpu=gpu, progress=progress)
            for part in parts:
                counts = list(map(sum, zip(counts, part)))
        if engine == "local":
            with util.progress_bar("Writing", " rows", quiet=quiet) as progress:
                job.finish(n_shards, progress)
    except (OSError, ValueError):
        if any(job.folder.glob("part-*")):
            msg.info(f"{job.folder} has what is finished: the same command continues from there")
        raise
    n_rows, n_nulls, n_new = counts
    util.warn_of_errors(job.reader)
    of_shard = f" of shard {shard}" if n_shards > 1 else ""
    earlier = f", {n_rows - n_new:,} of them by an earlier run" if n_new < n_rows else ""
    msg.good(f"{job.out}: {n_rows:,} rows{of_shard}{earlier}")
    if n_nulls:
        what = "null vectors" if job.folder == job.out.resolve() else "no tokens"
        msg.warn(f"{n_nulls:,} of the texts {'is' if n_nulls == 1 else 'are'} null, with {what}")
