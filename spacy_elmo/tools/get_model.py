"""Download the files of a published model to a folder.

A file without a published checksum must be what it was at its first download: `checksums`, in the
folder of downloaded models, has a JSON file for its address, with "url", "size", "sha256", "date".
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote, urlsplit

from ..files import atomic_file, clear_temporary, exclusive_lock, remove_folder
from ..models import (
    MANIFEST,
    PublishedModel,
    RemoteFile,
    check_name,
    home,
    read_json,
    read_manifest,
    write_manifest,
)
from .download import Downloader, UnreachableError, discard_part, verify

# The files of each kind of model in a repository of Hugging Face: those that must be there, and
# further ones. The first kind of which all are there is taken.
_KINDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("weights.safetensors",), ("options.json", "vocab.txt")),
    (("*options*.json", "*weights*.hdf5"), ("vocab.txt", "vocab.txt.gz")),
    (("*options*.json", "*.hdf5"), ("vocab.txt", "vocab.txt.gz")),
    (("encoder.pkl", "token_embedder.pkl", "config.json"), ("*.dic", "*.json")),
    (("*.index", "*.data-*-of-*", "options.json"), ("checkpoint", "vocab*.txt", "vocab*.txt.gz")),
    (("config.json", "weights.th"), ("options.json",)),
    (("config.json", "best.th"), ("options.json",)),
    (("*.tar.gz",), ()),
    (("*.zip",), ()),
)


def get_model(
    model: PublishedModel, folder: Path, downloader: Downloader, *, force: bool = False
) -> dict[str, Any]:
    """Download the files of a model that are not there yet.

    folder (Path): The folder to write.
    force (bool): Download all files again.
    RETURNS (dict): The manifest of the folder, see `models.write_manifest`.
    RAISES (ValueError): If a file cannot be downloaded or is not as it should be, if the folder
        has other files, or if another process is writing it.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    message = f"another process is downloading to {folder}: wait for it"
    with exclusive_lock(folder.with_name(f".{folder.name}.lock"), message):
        check_folder(folder, model, force)
        if model.hub is not None:
            model = replace(model, files=list_hub(model.hub, model.revision, downloader))
        if read_manifest(folder).get("source") != model.source:
            remove_folder(folder)
        folder.mkdir(exist_ok=True)
        clear_temporary(folder)
        facts = {"source": model.source, "lang": model.lang, "licence": model.licence}
        names = dict.fromkeys(model.files)
        write_manifest(folder, {**facts, "complete": False, "files": names})
        try:
            files = {
                name: _get_file(file, folder / name, downloader, force)
                for name, file in model.files.items()
            }
        except ValueError as error:
            if os.listdir(folder) == [MANIFEST]:
                remove_folder(folder)
            raise ValueError(f"cannot download {model.name}: {error}") from error
        write_manifest(folder, {**facts, "complete": True, "files": files})
        return read_manifest(folder)


def check_folder(folder: Path, model: PublishedModel, force: bool) -> None:
    """Check that a folder may be written.

    force (bool): Whether another model in it may be replaced.
    RAISES (ValueError): If it may not.
    """
    if not folder.exists():
        return
    manifest = read_manifest(folder)
    source = manifest.get("source")
    others = _other_names(folder, manifest) if folder.is_dir() else [folder.name]
    if source is None and others:
        raise ValueError(
            f"{folder} was not written by this command (it has {', '.join(others[:3])}): choose "
            "another path"
        )
    if source in (None, model.source):
        return
    if not force:
        raise ValueError(
            f"{folder} holds another model, of {source}: choose another name with --name, or "
            "overwrite it with --force"
        )
    if others:
        raise ValueError(
            f"{folder} holds another model and other files ({', '.join(others[:3])}), and so is "
            "not overwritten: choose another path, or move them away"
        )


def _other_names(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """RETURNS (list): What is in a folder and does not come from this command, whose files and
    their parts are in the manifest. The rest that a killed process leaves is named ..*.tmp."""
    ours = {MANIFEST}
    for name in manifest.get("files", ()):
        ours |= {name, f".{name}.part", f".{name}.part.json"}
    names = set(os.listdir(folder)) - ours
    return sorted(names - set(fnmatch.filter(names, "..*.tmp")))


def _get_file(file: RemoteFile, path: Path, downloader: Downloader, force: bool) -> dict[str, Any]:
    """Download a file, if it is not there yet, from the first of its addresses that has it.

    RETURNS (dict): "url", "size" and "sha256".
    RAISES (ValueError): If no address has it.
    """
    record = _record_path(file)
    recorded = {} if file.digests else read_json(record)
    expected = file
    if recorded:
        digests = {"sha256": str(recorded.get("sha256"))}
        expected = replace(file, digests=digests, size=recorded.get("size"))
    if force:
        discard_part(path)
    elif path.is_file() and expected.digests:
        with contextlib.suppress(ValueError):
            facts = {"url": _without_password(file.urls[0]), **verify(path, expected)}
            discard_part(path)
            return facts
    errors: list[ValueError] = []
    for url in file.urls:
        try:
            facts = {"url": _without_password(url), **downloader.file(url, path, expected)}
        except ValueError as error:
            errors.append(error)
            continue
        if not expected.digests:
            date = datetime.now(timezone.utc).isoformat(timespec="seconds")
            with atomic_file(record) as temporary:
                text = json.dumps({**facts, "date": date}, indent=2)
                temporary.write_text(text + "\n", encoding="utf8")
        return facts
    hosts = [error.host for error in errors if isinstance(error, UnreachableError)]
    if len(hosts) == len(errors):
        raise UnreachableError(" or ".join(dict.fromkeys(hosts)))
    lines = [f"{url}: {error}" for url, error in zip(file.urls, errors)]
    if recorded:
        lines.append(
            f"What is expected is what came from there on {recorded.get('date')}. If it has "
            f"changed, and you trust the change, remove {record}"
        )
    raise ValueError("\n".join(lines))


def _without_password(url: str) -> str:
    """RETURNS (str): A URL as it may be written to files that are passed on."""
    address = urlsplit(url)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def _record_path(file: RemoteFile) -> Path:
    """RETURNS (Path): Where the checksum of the first download is."""
    key = hashlib.sha256(file.urls[0].encode("utf8")).hexdigest()[:32]
    return home() / "checksums" / f"{key}.json"


def list_hub(repository: str, revision: str, downloader: Downloader) -> dict[str, RemoteFile]:
    """Find the files of a model in a repository of Hugging Face, with the hub's checksums. As in
    the hub's own software, HF_ENDPOINT is the address of another hub.

    repository, revision (str): "owner/name", and a branch, a tag or a commit.
    RETURNS (dict): The files that a reader needs, by name.
    RAISES (ValueError): If there is no such repository, or no model in it.
    """
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    commit = quote(revision, safe="")
    listing = downloader.json(f"{endpoint}/api/models/{repository}/tree/{commit}")
    base = f"{endpoint}/{repository}/resolve/{commit}"
    try:
        files = {x["path"]: _hub_file(base, x) for x in listing if x["type"] == "file"}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the list of files of {repository} is damaged: {error!r}") from error
    return {check_name(name): files[name] for name in _choose_files(list(files))}


def _choose_files(names: list[str]) -> list[str]:
    """RETURNS (list): The files that are needed, of all of a repository.
    RAISES (ValueError): If there is no model."""
    for needed, further in _KINDS:
        if all(fnmatch.filter(names, pattern) for pattern in needed):
            patterns = "|".join(map(fnmatch.translate, (*needed, *further)))
            return [name for name in names if re.match(patterns, name)]
    raise ValueError(f"there are no files of a biLM in the repository, only {', '.join(names)}")


def _hub_file(base: str, entry: Mapping[str, Any]) -> RemoteFile:
    """Large files have a SHA-256, the others the id of a git blob."""
    lfs: Optional[Mapping[str, Any]] = entry.get("lfs")
    digests = {"sha256": str(lfs["oid"])} if lfs else {"git": str(entry["oid"])}
    return RemoteFile((f"{base}/{quote(entry['path'])}",), digests, int(entry["size"]))
