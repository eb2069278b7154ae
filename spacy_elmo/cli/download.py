"""spacy elmo download: get a published model."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import typer
from wasabi import msg

from ..formats import unpacked
from ..models import (
    TABLE,
    PublishedModel,
    find_model,
    home,
    pipeline_folder,
    read_table,
    weights_folder,
    weights_path,
)
from ..tools.download import Downloader
from ..tools.get_model import check_folder, get_model
from ..weights import bundled_names, is_pipeline, source_language
from .convert import blank_pipeline, lock_pipeline, make_pipeline, write_pipeline
from .util import exit_on_error


def download_cli(
    source: str = typer.Argument(
        ...,
        help="A name that `spacy elmo models` lists, a number of the NLPL repository, the URL of "
        "an archive or of weights, or hf:owner/name[@revision]",
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
        _check_home()
        folder = output if no_convert and output else weights_folder(model.name)
        out = output or pipeline_folder(model.name)
        downloader = Downloader(quiet=quiet)
        check_folder(folder, model, force)
        if no_convert:
            get_model(model, folder, downloader, force=force)
            msg.good(f"Wrote the files of {model.name} to {folder}")
            return
        if output is None and not force and is_pipeline(out):
            msg.good(f"{model.name} is there already: {out}", "Download it again with --force")
            return
        with lock_pipeline(out, force):
            _write(model, folder, out, downloader, half, sentencizer, force)
    or_name = "" if output else f', or its name in a config: weights = "{model.name}"'
    msg.good(f"Wrote the pipeline {out}", f'Use it with spacy.load("{out}"){or_name}')


def _check_home() -> None:
    """RAISES (ValueError): If the folder of downloaded models cannot be made or written."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home()):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write the folder of downloads, {home()} ({error.strerror}): name another one "
            "in the environment variable SPACY_ELMO_HOME"
        ) from error


def _choose(source: str, table: Path, name: Optional[str], lang: Optional[str]) -> PublishedModel:
    """RETURNS (PublishedModel): What the user names, under the user's name.
    RAISES (ValueError): If there is no such model, if its address is not known, or if the name is
        that of another."""
    models = read_table(table)
    model = find_model(source, models)
    chosen = replace(model, name=name or model.name, lang=lang or model.lang)
    taken = {*models, *bundled_names()} - {model.name if models.get(model.name) is model else ""}
    if chosen.name in taken:
        raise ValueError(
            f"{chosen.name!r} is the name of another model: choose another with --name"
        )
    if not (model.files or model.hub or model.name in bundled_names()):
        raise ValueError(f"the address of {model.name} is not known. {model.notes or ''}")
    return chosen


def _write(
    model: PublishedModel,
    folder: Path,
    out: Path,
    downloader: Downloader,
    half: bool,
    sentencizer: bool,
    force: bool,
) -> None:
    """Download a model to a folder, and write its pipeline.

    RAISES (ValueError): If it cannot be downloaded or converted.
    """
    if not model.readable:
        raise ValueError(
            f"{model.name} cannot be converted. {model.notes or ''} Its files can be downloaded "
            "with --no-convert"
        )
    blank_pipeline(model.lang or "xx")  # Before the download, so that errors appear here.
    manifest = get_model(model, folder, downloader, force=force)
    path = weights_path(folder)
    lang = model.lang or source_language(path) or "xx"
    with unpacked(path) as unpacked_path:
        nlp = make_pipeline(unpacked_path, None, lang=lang, half=half, sentencizer=sentencizer)
        nlp.meta.update(_origin(model, manifest))
        write_pipeline(nlp, unpacked_path, out, source=path)


def _origin(model: PublishedModel, manifest: dict[str, Any]) -> dict[str, Any]:
    """RETURNS (dict): What the pipeline's meta.json says about it."""
    files = manifest["files"].items()
    sources = [{"name": name, "url": x["url"], "sha256": x["sha256"]} for name, x in files]
    origin = {"name": model.name.replace("-", "_"), "sources": sources}
    return {**origin, "license": model.licence} if model.licence else origin
