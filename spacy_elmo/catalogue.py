"""The table of published models, and the folder on this machine that holds downloaded ones.

Nothing here uses the network; `download.py` does. The folder has

weights/NAME: The files as they were published, and `.source.json`, see `read_manifest`.
pipelines/NAME: The pipeline that they were converted to.

A model is a row of the table, a dict that lacks what is not known. Some of its keys:

shape (str): The number of LSTM layers, their cells, and the width of a direction.
files (dict): The addresses of each file by its name, the preferred one first.
hub, revision (str): A repository of Hugging Face that has the files instead.
id (int): The number in the NLPL repository.
readable, listed (bool): False if there is no reader, or if it is for tests only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Optional
from urllib.parse import unquote, urlsplit

TABLE = Path(__file__).with_name("models.json")
# No file of a model begins with a dot.
MANIFEST = ".source.json"
Model = dict[str, Any]
_HUB = re.compile(r"hf:(?P<hub>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
# What is both a name of a model and the name of its folder.
_NAME = re.compile(r"[^\W_][\w.@-]*")


def home() -> Path:
    """RETURNS (Path): The folder of downloaded models: SPACY_ELMO_HOME, or `spacy-elmo` in
    XDG_CACHE_HOME or ~/.cache."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "spacy-elmo")
    # Not Path.expanduser: it raises an error for a user without a home.
    return Path(os.path.expanduser(os.environ.get("SPACY_ELMO_HOME") or default)).absolute()


def read_table(table_path: Path = TABLE) -> dict[str, Model]:
    """RETURNS (dict): The models of a table by name.
    RAISES (ValueError): If the file is not a table of models."""
    try:
        table = json.loads(table_path.read_text(encoding="utf8"))
        models = {}
        for row in table["models"]:
            model = {**table["collections"].get(row.get("collection"), {}), **row}
            base, files = model.pop("base", [""]), model.get("files", {})
            model["files"] = {check_name(x): [y + path for y in base] for x, path in files.items()}
            models[check_name(row["name"])] = model
        return models
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{table_path} is not a table of models: {error!r}") from error


def find_model(source: str, table: Mapping[str, Model]) -> Model:
    """Find out what the user wants to download.

    source (str): A name of the table or its number in the NLPL repository, the URL of an archive or
        of weights (with the options beside them), or "hf:owner/name[@revision]".
    RAISES (ValueError): If it is none of them.
    """
    for model in table.values():
        if source in (model["name"], str(model.get("id"))):
            return model
    if match := _HUB.fullmatch(source):
        return {"name": _folder_name(source), "files": {}, **match.groupdict()}
    address = urlsplit(source)
    if address.scheme not in ("http", "https") or address.username is not None:
        raise ValueError(
            f"{source!r} is not a model: give a name that `python -m spacy elmo models` lists, a "
            "URL (http or https, without a password: ~/.netrc may have it), or hf:owner/name"
        )
    file = PurePosixPath(unquote(address.path))
    if file.suffix not in (".hdf5", ".h5"):  # An archive, which has all.
        name = file.name if _NAME.fullmatch(file.name) else "weights"
        return {"name": name.split(".")[0], "files": {name: [source]}}
    start, _, last = address.path.rpartition("/")
    published = PurePosixPath(last.replace("_weights", "_options")).with_suffix(".json").name
    urls = [address._replace(path=f"{start}/{x}").geturl() for x in (published, "options.json")]
    return {"name": file.stem, "files": {"options.json": urls, "weights.hdf5": [source]}}


def hub_repository(target: str) -> str:
    """RETURNS (str): The "owner/name" of "hf:owner/name". RAISES (ValueError): If it is another."""
    if (match := _HUB.fullmatch(target)) and not match["revision"]:
        return match["hub"]
    raise ValueError(f"{target!r} is not a repository of Hugging Face: give hf:owner/name")


def model_source(model: Model) -> str:
    """RETURNS (str): The addresses of the files of a model, as one text that tells models apart."""
    if model.get("hub"):
        return f"hf:{model['hub']}@{model.get('revision') or 'main'}"
    return " ".join(urls[0] for urls in model["files"].values())


def check_name(name: str) -> str:
    """RETURNS (str): The name. RAISES (ValueError): If no folder may have it."""
    if _NAME.fullmatch(name):
        return name
    raise ValueError(f"{name!r} cannot be the name of a model: use letters, digits and . - _ @")


def model_folder(kind: Literal["weights", "pipelines"], name: str) -> Path:
    """RETURNS (Path): Where the published files of a model, or its pipeline, go."""
    return home() / kind / check_name(name)


def read_manifest(folder: Path) -> dict[str, Any]:
    """RETURNS (dict): What a folder of published files says about them: "source", "lang", and
    "files", with "url" and "sha256" by name. Empty if it says nothing."""
    return read_facts(folder / MANIFEST)


def read_facts(path: Path) -> dict[str, Any]:
    """RETURNS (dict): What a JSON file says of a model; empty if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, TypeError):
        return {}


def find_download(source: str, *, published: bool = False) -> Optional[Path]:
    """RETURNS (Optional[Path]): The pipeline of a downloaded model (a name, or
    "hf:owner/name[@revision]"). Without one, or with `published`, its published files: their
    folder, or the only file. None if it was not downloaded."""
    name = _folder_name(source)
    if not _NAME.fullmatch(name):
        return None
    pipeline, folder = model_folder("pipelines", name), model_folder("weights", name)
    if not published and os.path.isfile(pipeline / "config.cfg"):
        return pipeline
    names = list(read_manifest(folder).get("files", ()))
    return folder / names[0] if len(names) == 1 else folder if names else None


def _folder_name(source: str) -> str:
    """RETURNS (str): The name of a model's folders: owner--name for one of Hugging Face."""
    is_hub = _HUB.fullmatch(source)
    return re.sub(r"[^\w.@-]", "--", source.removeprefix("hf:")) if is_hub else source
