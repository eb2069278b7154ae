"""spacy elmo embed: write the vectors of texts to a file."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Optional, cast

import typer
from tqdm import tqdm
from wasabi import msg

from ..inference.settings import Precision
from ..layers.encoder import set_precision
from ..tools.texts import find_files, read_docs, total_size
from ..tools.vector_writer import LAYERS, VectorWriter, locked_vectors
from ..weights import load_pipeline
from .util import check_overwrite, exit_on_error, get_component, require_gpu

# What typer takes as choices.
Layers = Enum("Layers", {name: name for name in LAYERS})  # type: ignore[misc]


def embed_cli(
    source: Path = typer.Argument(
        ...,
        help="A file (.jsonl, .spacy, or else lines of text), a folder or a pattern (.txt, .jsonl, "
        ".spacy); lines may be compressed (.gz, .zst, ...); - for stdin",
    ),
    out: Path = typer.Argument(
        ..., help="Vectors: .hdf5, .npz or .spacy (which is put together in memory)"
    ),
    model: str = typer.Option(..., "--model", "-m", help="A pipeline, or weights"),
    layers: Layers = typer.Option(
        Layers("all"), "--layers", "-L", help="All, the top, the component's mix, or the mean"
    ),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    whitespace: bool = typer.Option(
        False, "--whitespace", "-w", help="The tokens are separated by spaces already"
    ),
    precision: Optional[str] = typer.Option(
        None,
        "--precision",
        help="float32, float16, int8, bfloat16 (CPU); float32, tf32, bfloat16 (GPU); auto",
    ),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the file, start afresh"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
) -> None:
    """
    Write the vectors of texts to a file.

    If it is interrupted, the same command continues from there.

    HDF5 has one dataset per line number, of shape (layers, tokens, width), as bilm-tf's
    dump_bilm_embeddings writes them; .npz has arrays of the same names. JSON lines have "text" or
    "tokens". An empty line has an empty array. Several files count as one, in the order of their
    names.
    """
    with exit_on_error(), locked_vectors(out):
        check_overwrite(out, force)
        require_gpu(gpu_id)
        nlp = load_pipeline(model)
        elmo = get_component(nlp, name)
        if precision is not None:
            set_precision(elmo.model, cast(Precision, precision))
        paths = _find_texts(source, out)
        writer = VectorWriter(out, nlp, elmo, layers.value, force=force)
        if writer.n_discarded:
            msg.warn(
                f"{writer.n_discarded} part(s) of an earlier run are damaged, or follow one that "
                "is damaged or missing: computing them again"
            )
        if writer.n_records:
            msg.info(f"Continuing after the {_records(writer.n_records)} that an earlier run wrote")
        _write(writer, paths, whitespace, quiet)
    msg.good(f"Wrote {_records(writer.n_records)} to {out}")


def _find_texts(source: Path, out: Path) -> list[Path]:
    """An output of an earlier run may be below the folder of texts."""
    paths = find_files([source], any_suffix=True)
    paths = [path for path in paths if path.resolve() != out.resolve()]
    if not paths:
        raise ValueError(f"no text in {source} besides the output")
    return paths


def _write(writer: VectorWriter, paths: list[Path], whitespace: bool, quiet: bool) -> None:
    """Write the output with a progress bar."""
    total = total_size(paths)
    with tqdm(total=total, unit="B", unit_scale=True, disable=quiet, file=sys.stderr) as bar:
        docs = read_docs(writer.nlp, paths, whitespace=whitespace, progress=bar.update)
        n_tokens = 0
        for n_new_tokens in writer.write(docs):
            n_tokens += n_new_tokens
            if seconds := bar.format_dict["elapsed"]:
                bar.set_postfix_str(f"{n_tokens / seconds:,.0f} tokens/s")
    writer.finish()


def _records(n: int) -> str:
    return f"{n} record{'' if n == 1 else 's'}"
