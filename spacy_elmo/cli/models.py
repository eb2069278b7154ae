"""spacy elmo models: list the published models."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import srsly
import typer
from wasabi import msg

from ..catalogue import TABLE, Model, find_download, find_model, read_table
from ..weights import bundled_names
from .util import exit_on_error

_COLUMNS = ("name", "lang", "family", "shape", "size", "state")


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
    known is left out. Licences, places on this machine and notes are shown for a single one.
    """
    with exit_on_error():
        models = read_table(table)
        found = [x for x in models.values() if lang in (None, x.get("lang"))]
        if not show_all:
            found = [x for x in found if x.get("readable", True) and x.get("listed", True)]
        found = [find_model(name, models)] if name is not None else found
        chosen = [{**x, "state": _state(x)} for x in found]
    if as_json:
        print(srsly.json_dumps(chosen, indent=2))
    elif name is not None:
        facts = {**chosen[0], **{x: " ".join(urls) for x, urls in chosen[0]["files"].items()}}
        msg.table([(key, x) for key, x in facts.items() if x and key != "files"], aligns=("r", "l"))
    else:
        msg.table([*map(_row, chosen)], header=_COLUMNS, divider=True, spacing=2)


def _row(model: Model) -> list[str]:
    """RETURNS (list): A row of the table, which is not wider than 80 columns."""
    name, lang, family, shape, size, state = (str(model.get(x) or "") for x in _COLUMNS)
    family, size = family.split(" ")[0], size.replace("up to ", "<=")
    return [name, lang, family, shape, size, "here" if Path(state).is_absolute() else state]


def _state(model: Model) -> str:
    """RETURNS (str): Where a model is on this machine, or whether it can be downloaded."""
    if model["name"] in bundled_names():
        return "bundled"
    if (path := find_download(model["name"])) is not None:
        return str(path)
    if not model.get("readable", True):
        return "unreadable"
    return "" if model["files"] or model.get("hub") else "no address"
