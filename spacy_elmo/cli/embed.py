"""spacy elmo embed: vectors for a file of texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional, cast

import typer
from tqdm import tqdm
from wasabi import msg

from ..dump import Dump, Layers, locked_dump
from ..inference.settings import Precision
from ..layers.encoder import set_precision
from ..resolve import load_pipeline
from ._util import check_free, clear_errors, find_elmo, require_gpu


def embed_cli(
    source: Path = typer.Argument(
        ...,
        help="A file (.jsonl, .spacy, or else lines of text), a folder or a pattern (.txt, .jsonl, "
        ".spacy); lines also .gz, .zst; - for stdin",
    ),
    out: Path = typer.Argument(
        ..., help="Vectors: .hdf5, .npz or .spacy (which is put together in memory)"
    ),
    model: str = typer.Option(..., "--model", "-m", help="A pipeline, or weights"),
    layers: Layers = typer.Option(
        Layers.all, "--layers", "-L", help="All layers, the top, the component's mix, or the mean"
    ),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    whitespace: bool = typer.Option(
        False, "--whitespace", "-w", help="The tokens are separated by spaces already"
    ),
    precision: Optional[str] = typer.Option(
        None, "--precision", help="float32, float16 or int8 (CPU); float32, tf32, bfloat16 (GPU)"
    ),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the file, start afresh"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
) -> None:
    """
    Write the vectors of the lines of a file.

    After a kill, the same command goes on where it stopped.

    HDF5 has one dataset per line number, of shape (layers, tokens, width), as bilm-tf's
    dump_bilm_embeddings writes them; .npz has arrays of the same names. JSON lines hold "text" or
    "tokens". Several files count as one, in the order of their names.
    """
    with clear_errors(), locked_dump(out):
        check_free(out, force)
        require_gpu(gpu_id)
        nlp = load_pipeline(model)
        elmo = find_elmo(nlp, name)
        if precision is not None:
            set_precision(elmo.model, cast(Precision, precision))
        file = None if str(source) == "-" else source
        dump = Dump(out, file, nlp, elmo, layers, whitespace=whitespace)
        done = dump.start(force=force)
        if done:
            msg.info(f"Going on after the {_records(done)} that an earlier run wrote")
        n_tokens = 0
        with tqdm(
            total=None if quiet else dump.count_records(),
            initial=done,
            unit=" records",
            disable=quiet,
            file=sys.stderr,
        ) as bar:
            for n_new, n_new_tokens in dump.write():
                n_tokens += n_new_tokens
                if seconds := bar.format_dict["elapsed"]:
                    bar.set_postfix_str(f"{n_tokens / seconds:,.0f} tokens/s", refresh=False)
                bar.update(n_new)
        total = dump.finish()
    msg.good(f"Wrote {_records(total)} to {out}")


def _records(n: int) -> str:
    return f"{n} record{'' if n == 1 else 's'}"
