"""spacy elmo visualize: write a page to look at vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from wasabi import msg

from ..component import get_component, pipe_settings
from ..files import atomic_file
from ..tools.records import STDIN, Reader, suffix_of
from ..tools.texts import find_files, make_doc
from ..visualize import render
from ..weights import load_pipeline
from . import util

_TEXTS = typer.Argument(
    None, metavar="TEXT_OR_FILE...", help=f"Texts, or: {util.INPUT_HELP}", show_default=False
)
_STYLE = typer.Option(
    "similarity", "--style", "-s", help="similarity, layers, senses, mix or surprisal"
)
_WORDS = typer.Option([], "--word", "-w", help="For senses: a word to show; any number")
_LABEL = typer.Option(None, "--label", help="For senses: the column that colours the words")


def visualize_cli(
    pipeline: str = typer.Argument(..., help="A pipeline with an elmo component, or weights"),
    texts: Optional[list[str]] = _TEXTS,
    out: Path = typer.Option(..., "--output", "-o", help="The page to write: .html"),
    style: str = _STYLE,
    words: list[str] = _WORDS,
    label: Optional[str] = _LABEL,
    layer: Optional[int] = util.LAYER,
    text: Optional[str] = util.TEXT,
    encoding: str = util.ENCODING,
    errors: str = util.ERRORS,
    name: Optional[str] = util.NAME,
    gpu_id: int = util.GPU_ID,
) -> None:
    """
    Write a page to look at vectors.

    They are shown as the similarity of words in context, layers, senses of words, the mixes of a
    trained pipeline, or surprisal.
    """
    with util.exit_on_error():
        if out.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"--output {out}: the page must end in .html")
        if bool(texts) == (style == "mix"):
            advice = "takes no text or file" if texts else "give it a text or file"
            raise ValueError(f"--style {style}: {advice}")
        util.require_gpu(gpu_id)
        reader = Reader(text, encoding, errors)
        nlp = load_pipeline(pipeline)
        chosen: dict[str, Any] = {"words": words, "label": label, "layer": layer}
        if style == "mix":
            page = render(nlp, style, page=True, jupyter=False, **chosen)
        else:
            elmo = get_component(nlp, name)
            settings = pipe_settings(nlp, elmo)
            if style == "surprisal":  # Which needs no vectors.
                settings["disable"].append(elmo.name)
            docs = nlp.pipe(_read(nlp, texts or (), reader, label), **settings)
            if label is not None:
                chosen["label"] = lambda token: token.doc.user_data["label"]
            page = render(docs, style, page=True, jupyter=False, model=pipeline, **chosen)
        with atomic_file(out) as temporary:
            temporary.write_text(page or "", encoding="utf8")
        util.warn_of_errors(reader)
        msg.good(f"Page: {out} ({out.stat().st_size:,} bytes)")


def _read(
    nlp: Language, texts: Sequence[str], reader: Reader, label: Optional[str]
) -> Iterator[Doc]:
    """YIELDS (Doc): Docs of texts and of files, tokenised, with their labels in their user data."""
    columns = [] if label is None else [label]
    for one in texts:
        # What looks like the name of a file is no text, so that a missing file is an error.
        is_name = suffix_of(one) or ("/" in one and " " not in one)
        if is_name or os.path.exists(one) or glob(one) or one == str(STDIN):
            files = find_files([one], columns=bool(columns or reader.text))
            records: Iterable[Sequence[Any]] = (
                (x[1], *x[2]) for file in files for x in reader.read(file, columns)
            )
        else:
            records = [(one,)]
        for text, *labels in records:
            doc = make_doc(nlp, text)
            doc.user_data["label"] = labels[0] if labels else None
            yield doc
