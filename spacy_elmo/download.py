"""Download the files of published models: the only code of the package that uses the network."""

from __future__ import annotations

import json
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from .catalogue import MANIFEST, PublishedModel, RemoteFile, hide_passwords, read_manifest
from .files import checksum, remove_folder, sha256

_TIMEOUT = (5, 60)  # Seconds to connect, and without data.
# The file itself is wanted, not a compressed form of it.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "spacy-elmo"}
# What readers need of a repository of Hugging Face.
_HUB_FILES = "*.json *.hdf5 weights.safetensors *.pkl *.dic *.th *.index *.data-* checkpoint "
_HUB_FILES += "vocab*.txt vocab*.txt.gz *.tar.gz *.zip"


def download_model(model: PublishedModel, folder: Path, *, quiet: bool = False) -> None:
    """Download the files of a model to a folder, with a manifest (see `read_manifest`). When all
    have come, it takes the place of what is there. Until then it is `.NAME.part`, with which the
    next call continues. No other process may be writing there.

    RAISES (ValueError): If a file cannot be downloaded, or has not its published checksum.
    """
    part = folder.with_name(f".{folder.name}.part")
    manifest: dict[str, Any] = {"source": model.source, "lang": model.lang}
    if read_manifest(part).get("source") != model.source:
        remove_folder(part)
        part.mkdir(parents=True)
        (part / MANIFEST).write_text(json.dumps(manifest), encoding="utf8")
    try:
        if model.hub is None:
            files = model.files.items()
            urls = {name: _download_file(file, part / name, quiet) for name, file in files}
        else:
            urls = dict.fromkeys(_download_repository(model, part, quiet), model.source)
    except ValueError as error:
        raise ValueError(f"cannot download {model.name}: {hide_passwords(str(error))}") from error
    manifest["files"] = {
        name: {"url": hide_passwords(url), "sha256": sha256(part / name)}
        for name, url in urls.items()
    }
    (part / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf8")
    remove_folder(folder)
    os.replace(part, folder)


def _download_file(file: RemoteFile, path: Path, quiet: bool) -> str:
    """Download a file, if it is not there, from the first of its addresses that has it.

    RETURNS (str): The address.
    RAISES (ValueError): If no address has it.
    """
    errors = []
    for url in file.urls:
        try:
            if not path.exists():
                _transfer(url, path, quiet)
            for algorithm, expected in file.digests.items():
                if (actual := checksum(path, algorithm)) != expected:
                    path.unlink()
                    raise ValueError(f"the {algorithm} checksum is {actual}, expected {expected}")
            return url
        except requests.ConnectionError as error:
            reason = getattr(error.args[0], "reason", error)
            errors.append(f"{url}: no connection, is this machine online? {reason}")
        except HTTPError as error:
            errors.append(f"{url}: {error}: the same command continues")
        except (requests.RequestException, ValueError) as error:
            errors.append(f"{url}: {error}")
    raise ValueError("\n".join(errors))


def _transfer(url: str, path: Path, quiet: bool) -> None:
    """Download a file, or what is missing of the same version of it (ETag or Last-Modified)."""
    part, version = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.version")
    known = version.read_text(encoding="utf8") if version.exists() else ""
    # The last byte comes again, so that there is always something to ask for.
    start = max(part.stat().st_size - 1, 0) if known else 0
    headers = {**_HEADERS, **({"Range": f"bytes={start}-", "If-Range": known} if start else {})}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise ValueError("the server sends a web page instead of the file")
        start = start if response.status_code == requests.codes.partial else 0
        with part.open("r+b" if start else "wb") as out:
            known = response.headers.get("ETag") or response.headers.get("Last-Modified", "")
            version.write_text(known, encoding="utf8")
            out.seek(start)
            total = int(response.headers.get("Content-Length", 0)) or None
            settings: dict[str, Any] = {"total": total, "desc": path.name, "disable": quiet}
            with tqdm.wrapattr(response.raw, "read", **settings) as source:
                shutil.copyfileobj(source, out)
    version.unlink()
    os.replace(part, path)


def _download_repository(model: PublishedModel, folder: Path, quiet: bool) -> list[str]:
    """Download the files of a model from Hugging Face, whose library resumes and checks.

    RETURNS (list): Their names.
    RAISES (ValueError): If they cannot be downloaded, or the library is missing.
    """
    try:
        from huggingface_hub import HfApi, utils
    except ImportError as error:
        raise ValueError('for hf:, run `pip install "spacy-elmo[hub]"`') from error
    if quiet:
        utils.disable_progress_bars()
    api, names = HfApi(endpoint=os.environ.get("HF_ENDPOINT")), []
    try:
        info = api.model_info(str(model.hub), revision=model.revision or "main")
        for name in (file.rfilename for file in info.siblings or ()):
            if "/" not in name and any(fnmatch(name, x) for x in _HUB_FILES.split()):
                api.hf_hub_download(info.id, name, revision=info.sha, local_dir=folder)
                names.append(name)
    except Exception as error:  # Its errors have no class in common.
        raise ValueError(f"{model.source}: {error}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    if not names:
        raise ValueError("there are no files of a biLM in the repository")
    return sorted(names)
