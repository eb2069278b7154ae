"""spacy elmo embed: write the vectors of texts to a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Optional, cast

import typer
from tqdm import tqdm
from wasabi import msg

from ..bulk.columns import DTYPES, NULLS, POOLS, Embed
from ..bulk.parquet_writer import DEFAULT_ROWS, ParquetJob
from ..bulk.ray_engine import run_on_ray
from ..bulk.rows import find_sources
from ..bulk.vector_writer import LAYERS, VectorWriter, locked_vectors
from ..inference.settings import Precision
from ..layers.encoder import set_precision
from ..tools.records import Reader
from ..tools.texts import find_files, read_docs, total_size
from ..weights import load_pipeline
from .util import (
    ENCODING,
    ERRORS,
    INPUT_HELP,
    TEXT,
    check_overwrite,
    exit_on_error,
    get_component,
    require_gpu,
    warn_of_errors,
)

# What typer takes as choices.
Layers = Enum("Layers", {name: name for name in LAYERS})  # type: ignore[misc]
Pool = Enum("Pool", {name: name for name in POOLS})  # type: ignore[misc]
Dtype = Enum("Dtype", {name: name for name in DTYPES})  # type: ignore[misc]
Nulls = Enum("Nulls", {name: name for name in NULLS})  # type: ignore[misc]
Engine = Enum("Engine", {name: name for name in ("local", "ray")})  # type: ignore[misc]


# For what an option is, if not for every output and engine.
_FILES, _PARQUET, _LOCAL, _RAY = ".hdf5, .npz, .spacy", ".parquet", ".parquet (local)", "Ray"


def _option_for(kind: str, *arguments: Any, help: str, **settings: Any) -> Any:
    """RETURNS (Any): An option that `_check_options` allows with this kind alone."""
    return typer.Option(*arguments, help=f"{kind}: {help}", rich_help_panel=kind, **settings)


_for_files, _for_parquet = partial(_option_for, _FILES), partial(_option_for, _PARQUET)
_INPUTS = typer.Argument(
    ...,
    metavar="IN... OUT",
    help=f"{INPUT_HELP}. To .parquet, also .parquet and URLs. OUT: .hdf5, .npz, .spacy (which is "
    "put together in memory) or .parquet",
)
_PRECISION = typer.Option(
    None, help="float32, float16, int8, bfloat16 (CPU); float32, tf32, bfloat16 (GPU); auto"
)


def embed_cli(
    ctx: typer.Context,
    inputs: list[str] = _INPUTS,
    model: str = typer.Option(..., "--model", "-m", help="A pipeline, or weights"),
    layers: Layers = _for_files("all", "--layers", "-L", help="mixed: the component's mix"),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    whitespace: bool = _for_files(False, "--whitespace", "-w", help="spaces separate the tokens"),
    text: Optional[str] = TEXT,
    encoding: str = ENCODING,
    errors: str = ERRORS,
    nulls: Nulls = typer.Option("error", help="Null texts; empty: a null vector, or no tokens"),
    precision: Optional[str] = _PRECISION,
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUT, start afresh"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
    ids: list[str] = _for_parquet([], "--id", help="a column to carry through; any number"),
    pool: Pool = _for_parquet("mean", help="the mean of a row, its tokens, or all their layers"),
    layer: Optional[int] = _for_parquet(None, help="a layer instead of the mix; -1: top"),
    dtype: Dtype = _for_parquet("float16", help="how vectors are stored"),
    rows: Optional[int] = _for_parquet(None, min=1, help="rows of a part"),
    shard: str = _option_for(_LOCAL, "1/1", help="write only the I-th of N shards, as I/N"),
    threads: Optional[int] = _for_parquet(None, min=1, help="threads of a process"),
    engine: Engine = _for_parquet("local", help="this process, or all shards on Ray (RAY_ADDRESS)"),
    workers: Optional[int] = _option_for(_RAY, None, min=1, help="how many (one per CPU or GPU)"),
) -> None:
    """
    Write the vectors of texts to a file.

    If it is interrupted, the same command continues from there.

    HDF5 has one dataset per line number, of shape (layers, tokens, width), as bilm-tf's
    dump_bilm_embeddings writes them; .npz has arrays of the same names. An empty line has an empty
    array. Several files count as one, in the order of their names.

    Parquet is a folder of parts, with one row of IDs and vectors for each row of the input. Shards
    may run at the same time, on several machines.
    """
    with exit_on_error():
        if len(inputs) < 2:
            raise ValueError("give inputs and an output: spacy elmo embed IN... OUT")
        if "://" in inputs[-1]:
            raise ValueError(f"{inputs[-1]} is a URL: write to this machine, and copy that")
        sources, out = inputs[:-1], Path(inputs[-1])
        reader = Reader(text, encoding, errors, nulls.value)
        require_gpu(gpu_id)
        if out.suffix != ".parquet":
            _check_options(ctx, _FILES)
            kind = layers.value
            _embed_docs(
                sources, out, reader, model, kind, name, whitespace, precision, force, quiet
            )
            return
        is_ray = engine.value == "ray"
        _check_options(ctx, _PARQUET, _RAY if is_ray else _LOCAL)
        others: dict[str, Any] = {"precision": precision, "name": name, "gpu_id": gpu_id}
        others |= {"nulls": nulls.value}
        embed = Embed(
            model, text or "text", "vector", pool.value, layer, dtype.value, threads, **others
        )
        n_rows = rows or DEFAULT_ROWS[pool.value]
        # Lines can be carried through as "text".
        has_columns = text is not None or any(name != "text" for name in ids)
        paths = find_sources(sources, out, columns=has_columns)
        job = ParquetJob(out, paths, embed, ids, n_rows, reader)
        shards = run_on_ray(job, workers, gpu=gpu_id >= 0) if is_ray else None
        _embed_rows(job, shard, force, quiet, shards)


def _check_options(ctx: typer.Context, *kinds: str) -> None:
    """RAISES (ValueError): If an option is given that is for other kinds, and has no effect."""
    for option in ctx.command.params:
        kind = getattr(option, "rich_help_panel", None)
        source = ctx.get_parameter_source(option.name or "")
        # By name: typer may have a copy of click.
        if kind not in (None, *kinds) and source is not None and source.name != "DEFAULT":
            raise ValueError(
                f"{option.opts[0]} is for {kind} only: leave it out, or choose another output or "
                "--engine"
            )


def _embed_docs(
    sources: list[str],
    out: Path,
    reader: Reader,
    model: str,
    layers: str,
    name: Optional[str],
    whitespace: bool,
    precision: Optional[str],
    force: bool,
    quiet: bool,
) -> None:
    """Write one file."""
    with locked_vectors(out):
        check_overwrite(out, force)
        paths = _find_texts(sources, out, columns=reader.text is not None)
        nlp = load_pipeline(model)
        elmo = get_component(nlp, name)
        if precision is not None:
            set_precision(elmo.model, cast(Precision, precision))
        writer = VectorWriter(out, nlp, elmo, layers, force=force)
        if writer.n_discarded:
            msg.warn(
                f"{writer.n_discarded} part(s) of an earlier run are damaged, or follow one that "
                "is damaged or missing: computing them again"
            )
        if writer.n_records:
            msg.info(f"Continuing after the {_records(writer.n_records)} that an earlier run wrote")
        _write(writer, paths, reader, whitespace, quiet)
    warn_of_errors(reader)
    msg.good(f"Wrote {_records(writer.n_records)} to {out}")
    _report_nulls(reader.n_nulls, "no tokens")


def _embed_rows(
    job: ParquetJob,
    shard: str,
    force: bool,
    quiet: bool,
    shards: Optional[Iterator[tuple[int, int, int]]] = None,
) -> None:
    """Write one shard of a folder of Parquet files, or what an engine gives."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    number, n_shards = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= n_shards:
        raise ValueError(f"--shard must be I/N, with I from 1 to N, found {shard!r}")
    if force and n_shards > 1:
        raise ValueError(f"--force would remove what other shards have written: remove {job.out}")
    job.prepare(force=force)
    if shards is None:
        parts = job.run(number - 1, n_shards)
        shards = ((n, n_nulls, n * is_new) for n, n_nulls, is_new in parts)
    n_rows = n_nulls = n_new = 0
    with tqdm(unit=" rows", disable=quiet, file=sys.stderr) as bar:
        for n, nulls, n_computed in shards:
            n_rows, n_nulls, n_new = n_rows + n, n_nulls + nulls, n_new + n_computed
            bar.update(n)
    warn_of_errors(job.reader)
    of_shard = f" of shard {shard}" if n_shards > 1 else ""
    earlier = f", {n_rows - n_new:,} of them by an earlier run" if n_new < n_rows else ""
    msg.good(f"{job.out}: {n_rows:,} rows{of_shard}{earlier}")
    _report_nulls(n_nulls, "null vectors")


def _find_texts(sources: list[str], out: Path, *, columns: bool) -> list[Path]:
    """An output of an earlier run may be below the folder of texts."""
    paths = find_files(sources, columns=columns)
    paths = [path for path in paths if path.resolve() != out.resolve()]
    if not paths:
        raise ValueError(f"no text in {', '.join(sources)} besides the output")
    return paths


def _write(
    writer: VectorWriter, paths: list[Path], reader: Reader, whitespace: bool, quiet: bool
) -> None:
    """Write the output with a progress bar."""
    total = total_size(paths)
    with tqdm(total=total, unit="B", unit_scale=True, disable=quiet, file=sys.stderr) as bar:
        docs = read_docs(writer.nlp, paths, reader, whitespace=whitespace, progress=bar.update)
        n_tokens = 0
        for n_new_tokens in writer.write(docs):
            n_tokens += n_new_tokens
            if seconds := bar.format_dict["elapsed"]:
                bar.set_postfix_str(f"{n_tokens / seconds:,.0f} tokens/s")
    writer.finish()


def _report_nulls(n: int, result: str) -> None:
    if n:
        msg.warn(f"{n:,} of the texts {'is' if n == 1 else 'are'} null, with {result}")


def _records(n: int) -> str:
    return f"{n} record{'' if n == 1 else 's'}"
