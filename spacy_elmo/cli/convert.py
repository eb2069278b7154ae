"""spacy elmo convert: make a pipeline of published weights."""

from __future__ import annotations

from pathlib import Path

import spacy
import typer
from wasabi import msg

from ..bilm.formats import FORMATS, load, round_to_half
from ..component import Elmo
from ..files import atomic_folder, sha256
from ..layers.encoder import set_bilm
from .util import exit_on_error, lock_folder

_FORMATS = ", ".join(format.NAME for format in FORMATS)
# The files of a pipeline that this command writes.
FILES = (
    "meta.json",
    "config.cfg",
    "tokenizer",
    "tokenizer/*",
    *(f"vocab/{x}" for x in ("key2row", "lookups.bin", "strings.json", "vectors", "vectors.cfg")),
    "sentencizer.json",
    "elmo/cfg",
    "elmo/model",
)


def convert_cli(
    options: Path = typer.Argument(..., help="options.json of the biLM"),
    weights: Path = typer.Argument(..., help=f"Its weights: {_FORMATS}"),
    out: Path = typer.Argument(..., help="Folder of the new pipeline"),
    lang: str = typer.Option("en", "--lang", "-l", help="Language of the pipeline, or xx"),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    sentencizer: bool = typer.Option(
        False, "--sentencizer", help="Add a sentencizer, which splits at punctuation"
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the folder"),
) -> None:
    """
    Make a pipeline folder of ELMo weights.

    Use it with spacy.load and spacy package. For word input, vocab.txt must be in the folder of the
    weights.
    """
    with exit_on_error(), lock_folder(out, force, FILES):
        bilm = load(weights, options)
        if half:
            round_to_half(bilm)
        try:
            nlp = spacy.blank(lang)
        except ImportError as error:
            raise ValueError(f"no language {lang!r} in spaCy: {error}") from error
        if sentencizer:
            nlp.add_pipe("sentencizer")
        elmo = nlp.add_pipe("elmo", config={"model": {"weights": None}})
        assert isinstance(elmo, Elmo)
        set_bilm(elmo.model, bilm)
        nlp.meta["name"] = out.absolute().name.replace("-", "_")
        nlp.meta["description"] = "ELMo: contextual word vectors from a biLM"
        nlp.meta["sources"] = [{"name": weights.name, "sha256": sha256(weights)}]
        with atomic_folder(out) as new:
            nlp.to_disk(new)
    msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}")')
