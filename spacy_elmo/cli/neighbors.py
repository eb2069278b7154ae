"""spacy elmo neighbors: find the nearest tokens in context."""

from __future__ import annotations

import io
import sys
from typing import Any, Optional

import srsly
import typer
from wasabi import msg

from ..component import get_component
from ..tools.neighbors import find_neighbors
from ..tools.records import Reader
from ..tools.texts import find_files
from ..weights import load_pipeline
from . import util

_QUERY = typer.Option(..., "--query", "-q", help="A text with one span in [brackets]; any number")


def neighbors_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    corpus: list[str] = typer.Argument(..., help=util.INPUT_HELP),
    queries: list[str] = _QUERY,
    n: int = typer.Option(10, "--n-neighbors", "-n", min=1, help="Neighbours per query"),
    layer: Optional[int] = util.LAYER,
    same_word: bool = typer.Option(False, "--same-word", help="Only the word of the query"),
    window: int = typer.Option(12, "--window", "-w", min=0, help="Most tokens on each side"),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object per neighbour"),
    text: Optional[str] = util.TEXT,
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    name: Optional[str] = util.NAME,
    gpu_id: int = util.GPU_ID,
) -> None:
    r"""
    Find the tokens nearest to a token in its sentence.

    The similarity is the cosine, of several tokens that of their mean; \[ and \] are literal.
    """
    with util.exit_on_error():
        util.require_gpu(gpu_id)
        reader = Reader(text, encoding, errors)
        files = find_files(corpus, columns=text is not None)
        nlp = load_pipeline(pipeline)
        settings: dict[str, Any] = {"layer": layer, "same_word": same_word, "window": window}
        docs = util.read_docs_with_bar(nlp, files, reader)
        results = find_neighbors(nlp, get_component(nlp, name), queries, docs, n=n, **settings)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file or a pipe may have an encoding without some of the characters, as on Windows.
        sys.stdout.reconfigure(errors="backslashreplace")
    for query, neighbors in zip(queries, results):
        if not as_json:
            msg.divider(query)
        for x in neighbors:
            line = f"{x.similarity:6.3f}  {x.source}  " + f"{x.before}[{x.token}]{x.after}".strip()
            print(srsly.json_dumps({"query": query, **x._asdict()}) if as_json else line)
    util.warn_of_errors(reader)
