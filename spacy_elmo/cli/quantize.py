"""spacy elmo quantize: make the weights of a pipeline smaller."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from wasabi import msg

from ..component import get_component
from ..layers.encoder import get_shim
from ..tools.quantize import MAX_TOKENS, quantize
from ..tools.texts import find_files, read_docs
from ..weights import find_source, is_pipeline, load_pipeline
from .convert import lock_pipeline, write_pipeline
from .util import NAME_N, exit_on_error, progress_bar


@exit_on_error()
def quantize_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    out: Path = typer.Argument(..., help="Folder of the new pipeline"),
    precision: str = typer.Option(
        "int8", "--precision", "-p", help="int8 (a quarter of the size) or float16 (half of it)"
    ),
    texts: Optional[list[str]] = typer.Option(
        None,
        "--texts",
        "-t",
        help="Files of texts to measure the cost with; can be given several times. The first "
        f"{MAX_TOKENS:,} tokens are used. Default: a few sentences",
    ),
    name: Optional[str] = NAME_N,
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Round weights to int8 or float16, and say what it costs.

    All other components stay as they are. Those that were trained on the vectors get slightly
    different ones: evaluate them.
    """
    if precision not in ("float16", "int8"):
        raise ValueError(f"unknown precision {precision!r}: choose one of int8, float16")
    with rewritten(pipeline, out, force) as nlp:
        elmo = get_component(nlp, name)
        sizes = [len(get_shim(elmo.model).to_bytes())]
        docs: Iterable[Doc] = map(nlp.make_doc, _examples(nlp.lang))
        if texts:
            docs = (doc for doc, _ in read_docs(nlp, find_files(texts)))
        with progress_bar("Comparing", " tokens") as progress:
            cosines = quantize(nlp, elmo, precision, docs, progress)
        sizes.append(len(get_shim(elmo.model).to_bytes()))
    print(f"\nCosines with the vectors of float32, {cosines.shape[1]:,} tokens:")
    rows = [(str(i), f"{x.min():.5f}", f"{x.mean():.5f}") for i, x in enumerate(cosines)]
    msg.table(rows, header=("layer", "smallest", "mean"), divider=True, aligns=("r", "r", "r"))
    setting = nlp.get_pipe_config(elmo.name)["model"]["precision"]
    size = f"{sizes[1] / 1e6:,.1f} MB instead of {sizes[0] / 1e6:,.1f}"
    msg.good(f"Wrote the pipeline {out}", f"Weights in {precision}: {size}. It runs in {setting}")


@contextlib.contextmanager
def rewritten(pipeline: str, out: Path, force: bool) -> Iterator[Language]:
    """Load a pipeline, or one of weights, and write what the caller makes of it to a folder."""
    source = find_source(pipeline)
    apart = source.resolve(), out.resolve()
    if apart[0] in (apart[1], *apart[1].parents) or apart[1] in apart[0].parents:
        why = "must not be the same folder, or one inside the other"
        raise ValueError(f"{out} and {source} {why}: choose another path for the new pipeline")
    files = sorted(source.rglob("*")) if is_pipeline(source) else []
    with lock_pipeline(out, force, (x.relative_to(source).as_posix() for x in files)):
        nlp = load_pipeline(pipeline)
        yield nlp
        notices = [x for x in files if x.parent == source and x.is_file()]  # A licence.
        write_pipeline(nlp, source, out, notices)


def _examples(lang: Optional[str]) -> list[str]:
    """RETURNS (list): spaCy's example sentences of a language; English ones, if it has none."""
    try:
        return importlib.import_module(f"spacy.lang.{lang}.examples").sentences
    except ImportError:
        return importlib.import_module("spacy.lang.en.examples").sentences
