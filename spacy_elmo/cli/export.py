"""spacy elmo export: a pipeline's weights for other ELMo software."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..bilm.formats import OPTIONS, VOCABULARY, allennlp, native, round_to_half
from ..weights import load_bilm
from ._util import clear_errors, writing


def export_cli(
    pipeline: str = typer.Argument(..., help="A pipeline, or weights in any format we read"),
    out: Path = typer.Argument(..., help="Folder for options.json and the weights"),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    safetensors: bool = typer.Option(
        False, "--safetensors", help="Write our own format instead of HDF5"
    ),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Write the weights for AllenNLP and bilm-tf.

    They are options.json and weights.hdf5.
    """
    files = (OPTIONS, VOCABULARY, allennlp.WEIGHTS, native.WEIGHTS)
    with clear_errors(), writing(out, force, files):
        bilm = load_bilm(pipeline, name)
        if half:
            round_to_half(bilm)
        if safetensors:
            native.write(bilm, out)
        else:
            allennlp.write(bilm, out, half=half)
    msg.good(f"Wrote {', '.join(sorted(path.name for path in out.iterdir()))} to {out}")
