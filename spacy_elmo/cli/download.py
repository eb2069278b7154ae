"""spacy elmo download: get a published model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Optional

import typer
from wasabi import msg

from ..catalogue import (
    MANIFEST,
    TABLE,
    PublishedModel,
    find_model,
    pipeline_folder,
    published_path,
    read_manifest,
    read_table,
    weights_folder,
)
from ..download import download_model
from ..weights import bundled_names, is_pipeline, source_language
from .convert import convert, lock_pipeline
from .util import blank_pipeline, exit_on_error, lock_folder


def download_cli(
    source: str = typer.Argument(
        ...,
        help="A name or number of `spacy elmo models`, the URL of an archive or of weights, "
        "or hf:owner/name[@revision]",
    ),
    output: Optional[Path] = typer.Option(
        None, "--output", "-o", help="Folder of the pipeline, if not in the cache"
    ),
    name: Optional[str] = typer.Option(None, "--name", "-n", help="Name to use it by"),
    lang: Optional[str] = typer.Option(None, "--lang", "-l", help="Language of the pipeline"),
    half: bool = typer.Option(False, "--half", help="Round the weights to float16"),
    sentencizer: bool = typer.Option(
        True, help="Add a sentencizer, which splits at punctuation", show_default=True
    ),
    no_convert: bool = typer.Option(
        False, "--no-convert", help="Only download the published files, to --output if given"
    ),
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
        if model.name in bundled_names():
            msg.good(f"{model.name} is part of the package: use it by its name")
            return
        if no_convert:
            folder = output or weights_folder(model.name)
            _get(model, folder, force, quiet)
            msg.good(f"Wrote the files of {model.name} to {folder}")
            return
        if not model.readable:
            raise ValueError(
                f"{model.name} cannot be converted. {model.notes or ''} Its files can be "
                "downloaded with --no-convert"
            )
        out = output or pipeline_folder(model.name)
        folder = weights_folder(model.name)
        is_here = read_manifest(folder).get("source") in (None, model.source)
        if output is None and not force and is_pipeline(out) and is_here:
            msg.good(f"{model.name} is there already: {out}", "Download it again with --force")
            return
        blank_pipeline(model.lang or "xx")  # Before the download, so that errors appear here.
        with lock_pipeline(out, force):
            _get(model, folder, force, quiet)
            path = published_path(folder) or folder
            files = read_manifest(folder)["files"].items()
            convert(
                path,
                out,
                lang=model.lang or source_language(path) or "xx",
                half=half,
                sentencizer=sentencizer,
                name=model.name.replace("-", "_"),
                sources=[{"name": file, **facts} for file, facts in files],
                license=model.licence or "",
            )
    or_name = "" if output else f', or its name in a config: weights = "{model.name}"'
    msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}"){or_name}')


def _choose(source: str, table: Path, name: Optional[str], lang: Optional[str]) -> PublishedModel:
    """RETURNS (PublishedModel): What the user names, under the user's name.
    RAISES (ValueError): If there is no such model, if its address is not known, or if the name is
        another model's."""
    models = read_table(table)
    model = find_model(source, models)
    chosen = replace(model, name=name or model.name, lang=lang or model.lang)
    if chosen.name in {*models, *bundled_names()} and models.get(chosen.name) is not model:
        raise ValueError(f"{chosen.name!r} is another model: choose another name with --name")
    if not (model.files or model.hub or model.name in bundled_names()):
        raise ValueError(f"the address of {model.name} is not known. {model.notes or ''}")
    return chosen


def _get(model: PublishedModel, folder: Path, force: bool, quiet: bool) -> None:
    """Download a model to a folder, unless it is there.
    RAISES (ValueError): If another one is there, or it cannot be downloaded."""
    manifest = read_manifest(folder)
    if manifest.get("source") == model.source and not force:
        return
    with lock_folder(folder, force, (MANIFEST, *manifest.get("files", ()))):
        download_model(model, folder, quiet=quiet)
