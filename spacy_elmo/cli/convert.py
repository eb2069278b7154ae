"""spacy elmo convert: make a pipeline of published weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

import spacy
import typer
from wasabi import msg

from ..bilm.formats import FORMATS, load, round_to_half
from ..component import Elmo
from ..files import atomic_folder, remove_folder, sha256
from ..layers.encoder import set_bilm
from ..pretraining.export import HEAD_FILES, Head, find_head, head_folder, write_head
from .util import exit_on_error, lock_folder

_FORMATS = ", ".join(format.NAME for format in FORMATS)
# The files of a pipeline that this command writes.
_FILES = (
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
    weights. The output layer of a TensorFlow checkpoint, whose words are in vocab.txt, becomes the
    folder OUT.head, for spacy elmo perplexity and pretrain.
    """
    head_out = head_folder(out)
    with (
        exit_on_error(),
        lock_folder(out, force, _FILES),
        lock_folder(head_out, force, HEAD_FILES),
    ):
        bilm, head = load(weights, options), _read_head(weights)
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
        files = [weights] if weights.is_file() else sorted(filter(Path.is_file, weights.iterdir()))
        nlp.meta["sources"] = [{"name": file.name, "sha256": sha256(file)} for file in files]
        with contextlib.ExitStack() as outputs:
            nlp.to_disk(outputs.enter_context(atomic_folder(out)))
            if head is None:
                remove_folder(head_out)  # Of the pipeline that is replaced.
            else:
                write_head(outputs.enter_context(atomic_folder(head_out)), head)
    msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}")')


def _read_head(weights: Path) -> Optional[Head]:
    """RETURNS (Optional[Head]): The output layer of weights, if there is one and it can be read."""
    try:
        return find_head(weights)
    except ValueError as error:
        msg.warn(f"The pipeline will be without its output layer: {error}")
        return None
