"""spacy elmo download: get a published model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Optional

import spacy
import typer
from wasabi import msg

from .. import catalogue
from ..catalogue import MANIFEST, TABLE, Model, model_folder, model_source, read_manifest
from ..download import download_model
from ..files import atomic_folder
from ..weights import bundled_names, is_pipeline
from .convert import convert, lock_pipeline
from .util import exit_on_error, lock_folder

_SOURCE = (
    "A name or number of `spacy elmo models`, the URL of an archive or of weights, or "
    "hf:owner/name[@revision]"
)
_NO_CONVERT = "Only download the published files, to --output if given"


def download_cli(
    source: str = typer.Argument(..., help=_SOURCE),
    output: Optional[Path] = typer.Option(
        None, "--output", "-o", help="Folder of the pipeline, if not in the cache"
    ),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name to use it by"),
    lang: Optional[str] = typer.Option(None, "--lang", "-l", help="Language of the pipeline"),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    sentencizer: bool = typer.Option(True, help="Add a sentencizer, which splits at punctuation"),
    no_convert: bool = typer.Option(False, "--no-convert", help=_NO_CONVERT),
    force: bool = typer.Option(False, "--force", "-F", help="Download again, and overwrite"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar"),
    table: Path = typer.Option(
        TABLE, "--table", help="Another table of models", show_default=False
    ),
) -> None:
    """
    Download published weights, and make a pipeline of them.

    Afterwards its name can be used wherever weights or a pipeline are named. Files and pipelines
    are in the folder SPACY_ELMO_HOME, by default in the user's cache. If it is interrupted, the
    same command continues.
    """
    with exit_on_error():
        model = _choose(source, table, name, lang)
        name = model["name"]
        out = output or model_folder("pipelines", name)
        folder = output if output and no_convert else model_folder("weights", name)
        is_here = read_manifest(folder).get("source") in (None, model_source(model))
        if name in bundled_names():
            msg.good(f"{name} is part of the package: use it by its name")
        elif no_convert:
            _get(model, folder, force, quiet)
            msg.good(f"Wrote the files of {name} to {folder}")
        elif output is None and not force and is_pipeline(out) and is_here:
            msg.good(f"{name} is there already: {out}", "Download it again with --force")
        else:
            _make_pipeline(model, out, half, sentencizer, force, quiet)
            config = "" if output else f', or its name in a config: weights = "{name}"'
            msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}"){config}')


def _choose(source: str, table: Path, name: Optional[str], lang: Optional[str]) -> Model:
    """RETURNS (dict): What the user names, under the user's name.
    RAISES (ValueError): If there is no such model, or if the name is another model's."""
    models = catalogue.read_table(table)
    model = catalogue.find_model(source, models)
    chosen = {**model, "name": name or model["name"], "lang": lang or model.get("lang")}
    taken = {x: models.get(x) for x in (*models, *bundled_names())}
    if taken.get(chosen["name"], model) is not model:
        raise ValueError(f"{chosen['name']!r} is another model: choose another name with --name")
    return chosen


def _get(model: Model, folder: Path, force: bool, quiet: bool) -> None:
    """Download a model to a folder, unless it is there.
    RAISES (ValueError): If another one is there, or it cannot be downloaded."""
    manifest = read_manifest(folder)
    if manifest.get("source") == model_source(model) and not force:
        return
    if not model_source(model):
        raise ValueError(f"the address of {model['name']} is not known. {model.get('notes', '')}")
    with lock_folder(folder, force, (MANIFEST, *manifest.get("files", ()))):
        download_model(model, folder, quiet=quiet)


def _make_pipeline(
    model: Model, out: Path, half: bool, sentencizer: bool, force: bool, quiet: bool
) -> None:
    """RAISES (ValueError): If the model cannot be downloaded or converted."""
    name, lang, notes = model["name"], model["lang"] or "xx", model.get("notes", "")
    if not model.get("readable", True):
        raise ValueError(f"{name} cannot be converted, only downloaded: --no-convert. {notes}")
    spacy.blank(lang)  # Before the download, so that errors appear here.
    folder = model_folder("weights", name)
    with lock_pipeline(out, force, read_manifest(folder).get("files", ())):
        _get(model, folder, force, quiet)
        path = catalogue.find_download(name, published=True) or folder
        if is_pipeline(path):
            if half or model["lang"]:
                raise ValueError(f"{name} is a pipeline already: leave out --half and --lang")
            with atomic_folder(out) as new:
                shutil.copytree(
                    path, new, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST)
                )
            return
        meta = {"name": name.replace("-", "_"), "license": model.get("licence", "")}
        convert(path, out, None, lang, half, sentencizer, **meta)
