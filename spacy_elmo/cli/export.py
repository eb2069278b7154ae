"""spacy elmo export: write the weights of a pipeline for other ELMo software."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..formats import FORMATS, OPTIONS, VOCABULARY, round_to_half
from ..pooling import FILE as POOLING
from ..weights import load_bilm
from .util import NAME_N, exit_on_error, lock_folder

_WRITERS = {format.NAME: format for format in FORMATS if hasattr(format, "write")}
_HELP = "; ".join(f"{format.NAME}: {format.DESCRIPTION}" for format in _WRITERS.values())
_WEIGHTS = [f"weights{suffix}" for format in _WRITERS.values() for suffix in format.SUFFIXES]


def export_cli(
    pipeline: str = typer.Argument(..., help="A pipeline, or weights in any format"),
    out: Path = typer.Argument(..., help="Folder for options.json and the weights"),
    name: Optional[str] = NAME_N,
    format: str = typer.Option("hdf5", "--format", help=_HELP),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Write weights to a folder.

    The default, options.json and weights.hdf5, is for AllenNLP and bilm-tf.
    """
    with exit_on_error(), lock_folder(out, force, (OPTIONS, VOCABULARY, POOLING, *_WEIGHTS)):
        writer = _WRITERS.get(format)
        if writer is None:
            raise ValueError(f"unknown format {format!r}: choose one of {', '.join(_WRITERS)}")
        bilm = load_bilm(pipeline, name)
        if half:
            round_to_half(bilm)
        writer.write(bilm, out, half=half)
    if format != "safetensors" and (bilm.pooling is not None or bilm.trained_mix is not None):
        what = "how docs and spans are pooled" if bilm.pooling is not None else "a trained mix"
        msg.warn(f"{format} has no place for {what}: --format safetensors keeps it")
    msg.good(f"Wrote {', '.join(sorted(path.name for path in out.iterdir()))} to {out}")
