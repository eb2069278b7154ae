"""spacy elmo embed: write the vectors of texts to a file."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any, Optional

import typer
from tqdm import tqdm
from wasabi import msg

from ..bulk.columns import DTYPES, NULLS, POOLS, EmbedColumns
from ..bulk.job import Job, default_rows
from ..bulk.outputs import OUTPUTS
from ..bulk.rows import find_sources
from ..tools.records import Reader
from .util import ENCODING, ERRORS, INPUT_HELP, TEXT, exit_on_error, require_gpu, warn_of_errors

# What typer takes as choices.
Pool = Enum("Pool", {name: name for name in POOLS})  # type: ignore[misc]
Dtype = Enum("Dtype", {name: name for name in DTYPES})  # type: ignore[misc]
Nulls = Enum("Nulls", {name: name for name in NULLS})  # type: ignore[misc]
Engine = Enum("Engine", {name: name for name in ("local", "ray")})  # type: ignore[misc]

# Options that an engine cannot honour. Those of outputs are in their modules.
_REFUSED = {"local": ("workers",), "ray": ("shard",)}
_INPUTS = typer.Argument(
    ...,
    metavar="IN... OUT",
    help=f"{INPUT_HELP}; also .parquet and URLs. OUT: .hdf5, .npz, .spacy (which is put together "
    "in memory) or .parquet",
)
_PRECISION = typer.Option(
    None, help="float32, float16, int8, bfloat16 (CPU); float32, tf32, bfloat16 (GPU); auto"
)
_LAYERS = typer.Option(
    None,
    "--layers",
    "-L",
    help="all, top, mix (the component's), mean (of the layers), or the number of one; by default "
    "all, to .parquet mix",
)
_POOL = typer.Option(
    None, help="One vector per row (mean) or per token (none); by default none, to .parquet mean"
)


def embed_cli(
    ctx: typer.Context,
    inputs: list[str] = _INPUTS,
    model: str = typer.Option(..., "--model", "-m", help="A pipeline, or weights"),
    layers: Optional[str] = _LAYERS,
    pool: Optional[Pool] = _POOL,
    dtype: Optional[Dtype] = typer.Option(None, help="By default float32, to .parquet float16"),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    whitespace: bool = typer.Option(False, "--whitespace", "-w", help="Spaces separate the tokens"),
    text: Optional[str] = TEXT,
    ids: list[str] = typer.Option([], "--id", help="A column to carry through; any number"),
    encoding: str = ENCODING,
    errors: str = ERRORS,
    nulls: Nulls = typer.Option("error", help="Null texts; empty: a null vector, or no tokens"),
    precision: Optional[str] = _PRECISION,
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUT, start afresh"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
    rows: Optional[int] = typer.Option(None, min=1, help="Rows of a part"),
    threads: Optional[int] = typer.Option(None, min=1, help="Threads of a process"),
    shard: str = typer.Option("1/1", help="Write only the I-th of N shards, as I/N"),
    engine: Engine = typer.Option("local", help="This process, or Ray (RAY_ADDRESS)"),
    workers: Optional[int] = typer.Option(
        None, min=1, help="Of Ray: how many (one per CPU or GPU)"
    ),
) -> None:
    """
    Write the vectors of texts to a file.

    If it is interrupted, the same command continues.

    HDF5 has a dataset per line number, of shape (layers, tokens, width), as bilm-tf's
    dump_bilm_embeddings writes them; .npz has arrays of the same names. An empty line has an empty
    array. Several files count as one, in the order of their names.

    Parquet is a folder of parts, with a row of IDs and vectors for each row of the input. Shards
    may run at the same time, on several machines.
    """
    with exit_on_error():
        if len(inputs) < 2:
            raise ValueError("give inputs and an output: spacy elmo embed IN... OUT")
        out = Path(inputs[-1])
        if out.suffix not in OUTPUTS or "://" in inputs[-1]:
            suffixes = ", ".join(OUTPUTS)
            raise ValueError(f"{inputs[-1]}: the output must be a path that ends in {suffixes}")
        output = OUTPUTS[out.suffix]
        refused = {out.suffix: output.REFUSED, f"--engine {engine.value}": _REFUSED[engine.value]}
        _check_options(ctx, refused)
        reader = Reader(text, encoding, errors, nulls.value)
        require_gpu(gpu_id)
        given = {"pool": pool and pool.value, "dtype": dtype and dtype.value}
        given["layers"] = int(layers) if layers and re.fullmatch(r"-?\d+", layers) else layers
        settings: dict[str, Any] = output.DEFAULTS | {
            x: y for x, y in given.items() if y is not None
        }
        settings |= {"threads": threads, "precision": precision, "name": name, "gpu_id": gpu_id}
        embed = EmbedColumns(model, text or "text", nulls=nulls.value, **settings)
        # Lines can be carried through as "text".
        has_columns = text is not None or any(name != "text" for name in ids)
        sources = find_sources(inputs[:-1], out, columns=has_columns)
        n_rows = rows or default_rows(embed.pool)
        job = Job(out, sources, embed, n_rows, ids, reader, whitespace)
        _run(job, shard, engine.value, workers, force, quiet)


def _check_options(ctx: typer.Context, refused: dict[str, tuple[str, ...]]) -> None:
    """RAISES (ValueError): If an option is given that the output or the engine cannot honour."""
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        for where, names in refused.items():
            # By name: typer may have a copy of click.
            if option.name in names and source is not None and source.name != "DEFAULT":
                raise ValueError(
                    f"{option.opts[0]} has no meaning with {where}: leave it out, or choose "
                    "another output or --engine"
                )


def _run(
    job: Job, shard: str, engine: str, workers: Optional[int], force: bool, quiet: bool
) -> None:
    """Write the output, or a shard of it, and say what was written."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    number, n_shards = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= n_shards:
        raise ValueError(f"--shard must be I/N, with I from 1 to N, found {shard!r}")
    if force and n_shards > 1:
        raise ValueError(f"--force would remove what other shards have written: remove {job.out}")
    job.prepare(force=force)
    n_rows = n_nulls = n_new = 0
    if engine == "ray":
        from ..bulk.ray_engine import run_on_ray

        parts = run_on_ray(job, workers, gpu=job.embed.gpu_id >= 0)
    else:
        parts = job.run(number - 1, n_shards)
    with tqdm(unit=" rows", disable=quiet, file=sys.stderr) as bar:
        for n, nulls, n_computed in parts:
            n_rows, n_nulls, n_new = n_rows + n, n_nulls + nulls, n_new + n_computed
            bar.update(n)
    if engine == "local":
        job.finish(n_shards)
    warn_of_errors(job.reader)
    of_shard = f" of shard {shard}" if n_shards > 1 else ""
    earlier = f", {n_rows - n_new:,} of them by an earlier run" if n_new < n_rows else ""
    msg.good(f"{job.out}: {n_rows:,} rows{of_shard}{earlier}")
    if n_nulls:
        what = "null vectors" if job.folder == job.out.resolve() else "no tokens"
        msg.warn(f"{n_nulls:,} of the texts {'is' if n_nulls == 1 else 'are'} null, with {what}")
