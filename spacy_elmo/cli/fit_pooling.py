"""spacy elmo fit-pooling: better vectors of docs and spans."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..tools.fit_pooling import fit_pooling
from ..tools.texts import find_files
from .quantize import rewritten
from .util import INPUT_HELP, exit_on_error, get_component, progress_bar, read_docs_with_bar


def fit_pooling_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    texts: list[str] = typer.Argument(..., metavar="TEXTS... OUT", help=INPUT_HELP),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Fit to texts how the vectors of docs and spans are made.

    Frequent words count less, and what all sentences share is left out: the vectors tell more about
    meaning. A few thousand sentences are enough. Vectors of tokens stay as they are.
    """
    with exit_on_error():
        *inputs, out = texts
        if not inputs:
            raise ValueError("give PIPELINE TEXTS... OUT: texts to fit to, and the folder to write")
        with rewritten(pipeline, Path(out), force) as nlp:
            elmo = get_component(nlp, name)
            docs = (doc for doc, _ in read_docs_with_bar(nlp, find_files(inputs)))
            with progress_bar("Embedding", " docs") as progress:
                fitted = fit_pooling(nlp, elmo, docs, progress)
    size = f"{len(fitted.words):,} words, width {fitted.width}"
    msg.good(f"Wrote the pipeline {out}", f"Its docs and spans are pooled by {size}")
