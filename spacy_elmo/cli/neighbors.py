"""spacy elmo neighbors: the nearest tokens in context."""

from __future__ import annotations

import sys
from typing import Optional

import srsly
import typer
from tqdm import tqdm
from wasabi import color, msg
from wasabi.util import supports_ansi

from ..tools.neighbors import Neighbor, find_neighbors, read_corpus
from ..tools.texts import find_files
from ..weights import load_pipeline
from ._util import clear_errors, find_elmo, require_gpu


def neighbors_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    corpus: list[str] = typer.Argument(
        ..., help="Files, folders or patterns: .txt, .jsonl (both also .gz, .zst), .spacy"
    ),
    queries: list[str] = typer.Option(
        ..., "--query", "-q", help="A text with one part in [brackets]; can be given several times"
    ),
    n: int = typer.Option(10, "--n-neighbors", "-n", help="Neighbours per query"),
    layer: Optional[int] = typer.Option(
        None, "--layer", "-L", help="A layer, -1 for the top; by default the component's mix"
    ),
    same_word: bool = typer.Option(False, "--same-word", help="Find only the word of the query"),
    punctuation: bool = typer.Option(False, "--punctuation", help="Find punctuation, too"),
    max_tokens: Optional[int] = typer.Option(
        None, "--max-tokens", help="Stop after the text in which this number is reached"
    ),
    window: int = typer.Option(12, "--window", "-w", help="Tokens to show on each side, at most"),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object per neighbour"),
    name: Optional[str] = typer.Option(None, "--name", help="Name of the elmo component"),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for the CPU"),
) -> None:
    r"""
    Find the tokens nearest to a token in its sentence.

    --query "The [play] was sold out"

    Several tokens in the brackets count as their mean; \[ and \] are literal brackets. Similarity
    is the cosine. To tell the senses of a word apart, try the upper layers.
    """
    with clear_errors():
        require_gpu(gpu_id)
        files = find_files(corpus)
        nlp = load_pipeline(pipeline)
        docs = read_corpus(nlp, files, max_tokens=max_tokens)
        found = find_neighbors(
            nlp,
            find_elmo(nlp, name),
            queries,
            tqdm(docs, desc="Searching", unit=" texts", disable=None),
            n=n,
            layer=layer,
            same_word=same_word,
            punctuation=punctuation,
            window=window,
        )
    for query, neighbors in zip(queries, found):
        if as_json:
            for neighbor in neighbors:
                print(srsly.json_dumps({"query": query, **neighbor._asdict()}))
            continue
        msg.divider(query)
        if not neighbors:
            msg.info("Nothing found")
        width = max((len(neighbor.source) for neighbor in neighbors), default=0)
        for neighbor in neighbors:
            sentence = f"{neighbor.before}{_marked(neighbor)}{neighbor.after}".strip()
            print(f"{neighbor.similarity:6.3f}  {neighbor.source:{width}}  {sentence}")


def _marked(neighbor: Neighbor) -> str:
    marked = f"[{neighbor.token}]"
    is_coloured = sys.stdout.isatty() and supports_ansi()
    return color(marked, fg="green", bold=True) if is_coloured else marked
