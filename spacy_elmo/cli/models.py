"""spacy elmo models: list the published models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import srsly
import typer
from wasabi import msg

from ..catalogue import TABLE, PublishedModel, find_download, find_model, read_table
from ..weights import bundled_names
from .util import exit_on_error

_COLUMNS = ("name", "lang", "family", "shape", "size", "licence", "state")
_HIDDEN = ("collection", "readable", "listed")


def models_cli(
    name: Optional[str] = typer.Argument(None, help="Show all that is known about this one"),
    lang: Optional[str] = typer.Option(None, "--lang", "-l", help="Only those of a language"),
    show_all: bool = typer.Option(
        False, "--all", "-a", help="Also those that are not read, or for tests only"
    ),
    table: Path = typer.Option(
        TABLE, "--table", help="Another table of models", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
) -> None:
    """
    List the published models, and which are on this machine.

    `shape` is the number of LSTM layers, their cells, and the width of a direction. What is not
    known is left out.
    """
    with exit_on_error():
        models = read_table(table)
        if name is not None:
            found = [find_model(name, models)]
        else:
            found = [x for x in models.values() if show_all or (x.readable and x.listed)]
        chosen = [_describe(x) for x in found if lang in (None, x.lang)]
        if not chosen:
            raise ValueError(f"no model of {lang!r}: `python -m spacy elmo models` lists all")
    if as_json:
        print(srsly.json_dumps(chosen, indent=2))
    elif name is not None:
        files = chosen[0].pop("files")
        msg.table([(key, value) for key, value in chosen[0].items() if value], aligns=("r", "l"))
        for file, addresses in files.items():
            msg.text(file, addresses)
    else:
        rows = [[x.get(key, "") for key in _COLUMNS] for x in chosen]
        msg.table(rows, header=_COLUMNS, divider=True)


def _describe(model: PublishedModel) -> dict[str, Any]:
    """RETURNS (dict): What is known about a model, and whether it is on this machine."""
    known = {key: x for key, x in vars(model).items() if x is not None and key not in _HIDDEN}
    files = {}
    for name, file in model.files.items():
        digests = [f"{key} {value}" for key, value in file.digests.items()]
        files[name] = " ".join([*file.urls, *digests])
    return {**known, "files": files, "state": _state(model)}


def _state(model: PublishedModel) -> str:
    if model.name in bundled_names():
        return "in the package"
    if (path := find_download(model.name)) is not None:
        return str(path)
    if not model.readable:
        return "not readable"
    return "" if model.files or model.hub else "no address"
