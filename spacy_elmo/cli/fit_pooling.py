"""spacy elmo fit-pooling: better vectors of docs and spans."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..component import get_component
from ..tools.fit_pooling import fit_pooling
from ..tools.records import Reader
from ..tools.texts import find_files
from . import util
from .quantize import rewritten


def fit_pooling_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    texts: list[str] = typer.Argument(..., metavar="TEXTS... OUT", help=util.INPUT_HELP),
    text: Optional[str] = util.TEXT,
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    name: Optional[str] = util.NAME_N,
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Fit to texts how the vectors of docs and spans are made.

    Frequent words count less, and what all sentences share is left out: the vectors tell more about
    meaning. A few thousand sentences are enough. Vectors of tokens stay as they are.
    """
    with util.exit_on_error():
        *inputs, out = texts
        if not inputs:
            raise ValueError("give PIPELINE TEXTS... OUT: texts to fit to, and the folder to write")
        reader = Reader(text, encoding, errors)
        with rewritten(pipeline, Path(out), force) as nlp:
            elmo = get_component(nlp, name)
            files = find_files(inputs, columns=text is not None)
            docs = (doc for doc, _ in util.read_docs_with_bar(nlp, files, reader))
            with util.progress_bar("Embedding", " docs") as progress:
                fitted = fit_pooling(nlp, elmo, docs, progress)
        util.warn_of_errors(reader)
    size = f"{len(fitted.words):,} words, width {fitted.width}"
    msg.good(f"Wrote the pipeline {out}", f"Its docs and spans are pooled by {size}")
