"""The table of published models, and the folder on this machine that holds downloaded ones.

Nothing here uses the network; `download.py` does. The folder has

weights/NAME: The files as they were published, and `.source.json`, see `read_manifest`.
pipelines/NAME: The pipeline that they were converted to.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Optional
from urllib.parse import unquote, urlsplit

# The published models. Facts that several have in common are in "collections".
TABLE = Path(__file__).with_name("models.json")
# No file of a model begins with a dot.
MANIFEST = ".source.json"
_HUB = re.compile(r"hf:(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
# What is both a name of a model and the name of its folder.
_NAME = re.compile(r"[^\W_][\w.@-]*")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model: its addresses, the preferred one first, and its published checksums by
    algorithm ("md5", "sha1", "sha256")."""

    urls: tuple[str, ...]
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedModel:
    """A row of the table, or what the user names instead. Unknown facts are None.

    shape (Optional[str]): The number of LSTM layers, their cells, and the width of a direction.
    tokens (Optional[str]): What it was trained on: "tokens" or "lemmas".
    files (Mapping[str, RemoteFile]): The files that are needed, by name.
    hub, revision (Optional[str]): A repository of Hugging Face that has the files instead.
    id (Optional[int]): The number in the NLPL repository.
    listed (bool): Whether it is of use, and not for tests only.
    """

    name: str
    family: Optional[str] = None
    lang: Optional[str] = None
    shape: Optional[str] = None
    parameters: Optional[int] = None
    size: Optional[str] = None
    licence: Optional[str] = None
    trained_on: Optional[str] = None
    cite: Optional[str] = None
    notes: Optional[str] = None
    tokens: Optional[str] = None
    files: Mapping[str, RemoteFile] = field(default_factory=dict)
    hub: Optional[str] = None
    revision: Optional[str] = None
    id: Optional[int] = None
    readable: bool = True
    listed: bool = True
    collection: Optional[str] = None

    @property
    def source(self) -> str:
        """The addresses of the files, as one text that tells models apart."""
        if self.hub is not None:
            return f"hf:{self.hub}@{self.revision or 'main'}"
        return hide_passwords(" ".join(file.urls[0] for file in self.files.values()))


def hide_passwords(text: str) -> str:
    """RETURNS (str): A text with URLs, as it may be written to files that are passed on."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def home() -> Path:
    """RETURNS (Path): The folder of downloaded models: SPACY_ELMO_HOME, or `spacy-elmo` in
    XDG_CACHE_HOME or ~/.cache."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "spacy-elmo")
    # Not Path.expanduser: it raises an error for a user without a home.
    return Path(os.path.expanduser(os.environ.get("SPACY_ELMO_HOME") or default)).absolute()


def read_table(table_path: Path = TABLE) -> dict[str, PublishedModel]:
    """RETURNS (dict): The models of a table by name.
    RAISES (ValueError): If the file is not a table of models."""
    try:
        table = json.loads(table_path.read_text(encoding="utf8"))
        models = {}
        for row in table["models"]:
            facts = {**table["collections"].get(row.get("collection"), {}), **row}
            base, files = facts.pop("base", [""]), {}
            for name, file in facts.get("files", {}).items():
                # A path below the base addresses, or a dict of it and its checksums.
                digests = {} if isinstance(file, str) else dict(file)
                path = digests.pop("path", file)
                files[check_name(name)] = RemoteFile(tuple(x + path for x in base), digests)
            facts["files"] = files
            models[check_name(row["name"])] = PublishedModel(**facts)
        return models
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{table_path} is not a table of models: {error!r}") from error


def find_model(source: str, table: Mapping[str, PublishedModel]) -> PublishedModel:
    """Find out what the user wants to download.

    source (str): A name of the table or its number in the NLPL repository, the URL of an archive or
        of weights (with the options beside them), or "hf:owner/name[@revision]".
    RAISES (ValueError): If it is none of them.
    """
    if source in table:
        return table[source]
    for model in table.values():
        if source == str(model.id):
            return model
    if match := _HUB.fullmatch(source):
        repository, revision = match["repository"], match["revision"]
        return PublishedModel(_folder_name(source), hub=repository, revision=revision)
    if urlsplit(source).scheme in ("http", "https"):
        return _model_of_url(source)
    raise ValueError(
        f"{source!r} is not a model: give a name that `python -m spacy elmo models` lists, a "
        "URL (http or https), or hf:owner/name"
    )


def _model_of_url(url: str) -> PublishedModel:
    """Weights have their options beside them; an archive has all."""
    address = urlsplit(url)
    file = PurePosixPath(unquote(address.path))
    if file.suffix not in (".hdf5", ".h5"):
        name = file.name if _NAME.fullmatch(file.name) else "weights"
        return PublishedModel(name.split(".")[0], files={name: RemoteFile((url,))})
    start, _, last = address.path.rpartition("/")
    published = PurePosixPath(last.replace("_weights", "_options")).with_suffix(".json").name
    urls = dict.fromkeys(
        address._replace(path=f"{start}/{name}").geturl() for name in (published, "options.json")
    )
    files = {"options.json": RemoteFile(tuple(urls)), "weights.hdf5": RemoteFile((url,))}
    return PublishedModel(file.stem, files=files)


def check_name(name: str) -> str:
    """RETURNS (str): The name. RAISES (ValueError): If no folder may have it."""
    if _NAME.fullmatch(name):
        return name
    raise ValueError(
        f"{name!r} cannot be the name of a model or of its file: use letters, digits, '.', '-', "
        "'_' and '@', and begin with a letter or a digit"
    )


def weights_folder(name: str) -> Path:
    """RETURNS (Path): Where the published files of a model go."""
    return home() / "weights" / check_name(name)


def pipeline_folder(name: str) -> Path:
    """RETURNS (Path): Where the pipeline of a model goes."""
    return home() / "pipelines" / check_name(name)


def read_manifest(folder: Path) -> dict[str, Any]:
    """RETURNS (dict): What a folder of published files says about them: "source" (see
    `PublishedModel`), "lang", and "files", with "url" and "sha256" by name. Empty if it says
    nothing."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError):
        return {}


def find_download(source: str) -> Optional[Path]:
    """RETURNS (Optional[Path]): The pipeline of a downloaded model (a name, or
    "hf:owner/name[@revision]"), or else its published files; None if it was not downloaded."""
    name = _folder_name(source)
    if _NAME.fullmatch(name) and os.path.isfile(pipeline_folder(name) / "config.cfg"):
        return pipeline_folder(name)
    return find_published(source)


def find_published(source: str) -> Optional[Path]:
    """RETURNS (Optional[Path]): The published files of a downloaded model: their folder, or the
    only file. None if it was not downloaded."""
    name = _folder_name(source)
    return published_path(weights_folder(name)) if _NAME.fullmatch(name) else None


def published_path(folder: Path) -> Optional[Path]:
    """RETURNS (Optional[Path]): What to give to a reader: a folder of published files, or its only
    file. None if there are none."""
    names = list(read_manifest(folder).get("files", ()))
    return folder / names[0] if len(names) == 1 else folder if names else None


def _folder_name(source: str) -> str:
    """RETURNS (str): The name of a model's folders: owner--name for one of Hugging Face."""
    is_hub = _HUB.fullmatch(source)
    return re.sub(r"[^\w.@-]", "--", source.removeprefix("hf:")) if is_hub else source


def download_command(source: str) -> Optional[str]:
    """RETURNS (Optional[str]): The command that downloads a model; None if it is not known, or if
    it would be of no use."""
    try:
        model = find_model(source, read_table())
    except ValueError:
        return None
    is_useful = model.readable and (model.files or model.hub)
    return f"python -m spacy elmo download {shlex.quote(source)}" if is_useful else None
