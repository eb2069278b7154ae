"""spacy elmo quantize: make the weights of a pipeline smaller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Optional, cast

import typer
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Model
from wasabi import msg

from ..component import Elmo
from ..layers.encoder import NAME as ENCODER
from ..layers.encoder import get_shim
from ..tools.quantize import MAX_TOKENS, Cost, Stored, example_docs, quantize
from ..tools.texts import find_files, read_docs
from ..weights import find_source, is_pipeline, load_pipeline
from .convert import lock_pipeline, write_pipeline
from .util import exit_on_error, get_component

_MAX_CHARACTERS = 10_000  # Of a doc.
_PRECISIONS = ("float16", "int8")


def quantize_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    out: Path = typer.Argument(..., help="Folder of the new pipeline"),
    precision: str = typer.Option(
        "int8", "--precision", "-p", help="int8 (a quarter of the size) or float16 (half of it)"
    ),
    text: Optional[list[str]] = typer.Option(
        None,
        "--text",
        "-t",
        help="Files to measure the cost with: .txt, .jsonl (also compressed), .spacy; can be given "
        f"several times. The first {MAX_TOKENS:,} tokens are used. Default: a few sentences",
    ),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name of the elmo component"),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Round weights to int8 or float16, and say what it costs.

    All other components stay as they are. Those that were trained on the vectors get slightly
    different ones: evaluate them.
    """
    with exit_on_error():
        if precision not in _PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: choose one of int8, float16")
        source = find_source(pipeline)
        _check_apart(source, out)
        files = sorted(source.rglob("*")) if is_pipeline(source) else []
        names = (file.relative_to(source).as_posix() for file in files)
        with lock_pipeline(out, force, names):
            nlp = load_pipeline(pipeline)
            elmo = get_component(nlp, name)
            before = _size(source, elmo)
            others = [x for x, pipe in nlp.components if pipe is not elmo and _has_bilm(pipe)]
            docs = _read(nlp, text) if text else example_docs(nlp)
            cost = quantize(nlp, elmo, cast(Stored, precision), docs)
            _describe(nlp, elmo, precision, cost)
            notices = [x for x in files if x.parent == source and x.is_file()]  # A licence.
            write_pipeline(nlp, source, out, notices)
        _print(cost, before, _size(out, elmo))
    if others:
        msg.info(f"Not changed: the biLMs of {', '.join(others)}")
    setting = nlp.get_pipe_config(elmo.name)["model"]["precision"]
    msg.good(f"Wrote the pipeline {out}", f"Its weights are {precision}, it runs in {setting}")


def _read(nlp: Language, text: list[str]) -> Iterator[Doc]:
    return read_docs(nlp, find_files(text), max_characters=_MAX_CHARACTERS)


def _check_apart(source: Path, out: Path) -> None:
    source, target = source.resolve(), out.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise ValueError(
            f"{out} and {source} must not be the same folder, or one inside the other: choose "
            "another path for the new pipeline"
        )


def _size(source: Path, elmo: Elmo) -> int:
    """RETURNS (int): Bytes of a component's weights in a pipeline; of other files of weights, what
    a pipeline of them takes."""
    path = source / elmo.name / "model"
    return path.stat().st_size if path.is_file() else len(get_shim(elmo.model).to_bytes())


def _has_bilm(component: object) -> bool:
    model = getattr(component, "model", None)
    return isinstance(model, Model) and any(node.name == ENCODER for node in model.walk())


def _describe(nlp: Language, elmo: Elmo, precision: str, cost: Cost) -> None:
    """Write what was done into the notes of the pipeline's meta.json, which `spacy package` puts
    into the README of a package."""
    smallest = min(smallest for smallest, _ in cost.cosines)
    note = (
        f"The weights of the component {elmo.name!r} were rounded to {precision} (spacy elmo "
        f"quantize). Smallest cosine with the vectors before, of {cost.n_tokens} tokens and "
        f"{len(cost.cosines)} layers: {smallest:.4f}. The scores of other components are from "
        "before."
    )
    nlp.meta["notes"] = "\n\n".join(filter(None, (nlp.meta.get("notes"), note)))


def _print(cost: Cost, before: int, after: int) -> None:
    print(f"\nCompared with the vectors of float32, {cost.n_tokens:,} tokens:")
    layers = [(str(i), f"{low:.5f}", f"{mean:.5f}") for i, (low, mean) in enumerate(cost.cosines)]
    header: tuple[str, ...] = ("layer", "smallest cosine", "mean cosine")
    msg.table(layers, header=header, divider=True, aligns=("r", "r", "r"))
    sizes = [f"{n / 1e6:,.1f}" for n in (before, after)]
    rates = [f"{rate:,.0f}" for rate in (cost.before, cost.after)]
    rows = [
        ("weights on disk, MB", *sizes, f"{after / before:.2f}"),
        ("tokens per second", *rates, f"{cost.after / cost.before:.2f}"),
    ]
    header = ("", "before", "after", "ratio")
    msg.table(rows, header=header, divider=True, aligns=("l", "r", "r", "r"))
