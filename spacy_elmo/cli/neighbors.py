"""spacy elmo neighbors: find the nearest tokens in context."""

from __future__ import annotations

import io
import sys
from typing import Optional

import srsly
import typer
from tqdm import tqdm
from wasabi import color, msg
from wasabi.util import supports_ansi

from ..tools.neighbors import Neighbor, find_neighbors, read_corpus
from ..tools.records import Reader
from ..tools.texts import find_files
from ..weights import load_pipeline
from .util import (
    ENCODING,
    ERRORS,
    INPUT_HELP,
    TEXT,
    exit_on_error,
    get_component,
    require_gpu,
    warn_of_errors,
)


def neighbors_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    corpus: list[str] = typer.Argument(..., help=INPUT_HELP),
    queries: list[str] = typer.Option(
        ..., "--query", "-q", help="A text with one span in [brackets]; can be given several times"
    ),
    n: int = typer.Option(10, "--n-neighbors", "-n", help="Neighbours per query"),
    layer: Optional[int] = typer.Option(
        None, "--layer", "-L", help="A layer, -1 for the top; by default the component's mix"
    ),
    same_word: bool = typer.Option(False, "--same-word", help="Only the word of the query"),
    punctuation: bool = typer.Option(False, "--punctuation", help="Include punctuation"),
    max_tokens: Optional[int] = typer.Option(
        None, "--max-tokens", help="Stop after about this many tokens (whole texts)"
    ),
    window: int = typer.Option(12, "--window", "-w", help="Most tokens to show on each side"),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object per neighbour"),
    text: Optional[str] = TEXT,
    encoding: str = ENCODING,
    errors: str = ERRORS,
    name: Optional[str] = typer.Option(None, "--name", help="Name of the elmo component"),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
) -> None:
    r"""
    Find the tokens nearest to a token in its sentence.

    --query "The [play] was sold out"

    The vector of several tokens in the brackets is their mean; \[ and \] are literal brackets. The
    similarity is the cosine. To distinguish the senses of a word, try the upper layers.
    """
    with exit_on_error():
        require_gpu(gpu_id)
        reader = Reader(text, encoding, errors)
        files = find_files(corpus, columns=text is not None)
        nlp = load_pipeline(pipeline)
        docs = read_corpus(nlp, files, reader, max_tokens=max_tokens)
        results = find_neighbors(
            nlp,
            get_component(nlp, name),
            queries,
            tqdm(docs, desc="Searching", unit=" texts", disable=None),
            n=n,
            layer=layer,
            same_word=same_word,
            punctuation=punctuation,
            window=window,
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file or a pipe may have an encoding without some of the characters, as on Windows.
        sys.stdout.reconfigure(errors="backslashreplace")
    print_neighbors = _print_json if as_json else _print_sentences
    for query, neighbors in zip(queries, results):
        print_neighbors(query, neighbors)
    warn_of_errors(reader)


def _print_json(query: str, neighbors: list[Neighbor]) -> None:
    for neighbor in neighbors:
        print(srsly.json_dumps({"query": query, **neighbor._asdict()}))


def _print_sentences(query: str, neighbors: list[Neighbor]) -> None:
    msg.divider(query)
    if not neighbors:
        msg.info("Nothing found")
    is_coloured = sys.stdout.isatty() and supports_ansi()
    width = max((len(neighbor.source) for neighbor in neighbors), default=0)
    for neighbor in neighbors:
        token = f"[{neighbor.token}]"
        token = color(token, fg="green", bold=True) if is_coloured else token
        sentence = f"{neighbor.before}{token}{neighbor.after}".strip()
        print(f"{neighbor.similarity:6.3f}  {neighbor.source:{width}}  {sentence}")
