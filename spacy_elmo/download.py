"""Download the files of published models. Only this and `upload.py` use the network."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from .catalogue import MANIFEST, Model, model_source, read_manifest
from .files import remove_folder, sha256

_TIMEOUT = (5, 60)  # Seconds to connect, and without data.
_HUB = "https://huggingface.co"
_ADVICE = "Check the address and the network: the same command continues"
# The file itself is wanted, not a compressed form of it.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "spacy-elmo"}
# What readers of weights need of a repository of Hugging Face.
_HUB_FILES = "*.json *.hdf5 weights.safetensors *.pkl *.dic *.th *.index *.data-* checkpoint "
_HUB_FILES += "vocab*.txt vocab*.txt.gz *.tar.gz *.zip"


def download_model(model: Model, folder: Path, *, quiet: bool = False) -> None:
    """Download the files of a model to a folder, with a manifest (see `read_manifest`). When all
    have come, it takes the place of what is there. Until then it is `.NAME.part`, with which the
    next call continues. No other process may be writing there.
    RAISES (ValueError): If a file cannot be downloaded."""
    part = folder.with_name(f".{folder.name}.part")
    source = model_source(model)
    manifest: dict[str, Any] = {"source": source, "lang": model.get("lang")}
    if read_manifest(part).get("source") != source:
        remove_folder(part)
        part.mkdir(parents=True)
        (part / MANIFEST).write_text(json.dumps(manifest), encoding="utf8")
    try:
        if model.get("hub"):
            places = dict.fromkeys(_download_repository(model, part, quiet), source)
        else:
            files = model["files"].items()
            places = {name: _download_file(urls, part / name, quiet) for name, urls in files}
    except Exception as error:  # Those of Hugging Face have no class in common.
        name = source if model.get("hub") else model["name"]
        raise ValueError(f"cannot download {name}: {error}") from error
    manifest["files"] = {x: {"url": url, "sha256": sha256(part / x)} for x, url in places.items()}
    (part / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf8")
    remove_folder(folder)
    os.replace(part, folder)


def _download_file(urls: list[str], path: Path, quiet: bool) -> str:
    """Download a file, if it is not there.
    RETURNS (str): The first of its addresses that has it."""
    errors: dict[str, None] = {}
    for url in urls:
        try:
            if not path.exists():
                _connect(url)
                _transfer(url, path, quiet)
            return url
        except ConnectionError as error:
            errors[str(error)] = None
        except (requests.RequestException, HTTPError) as error:
            response = getattr(error, "response", None)
            reason = error if response is None else f"{response.status_code} {response.reason}"
            errors[f"{url} ({reason})"] = None
    raise ValueError(f"no file from {', '.join(errors)}. {_ADVICE}")


def _connect(url: str) -> None:
    """Find out within seconds whether a server can be reached. `requests` waits as long as the
    system for the name server, and then for each address of the server in turn.
    RAISES (ConnectionError): If it cannot."""
    if requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url, None)):
        return  # Only the proxy may know the server.
    address, problems = urlsplit(url), ["no answer"]
    port = address.port or (443 if address.scheme == "https" else 80)

    def connect() -> None:
        try:
            socket.create_connection((address.hostname or "", port), _TIMEOUT[0] / 2).close()
            problems.clear()
        except OSError as error:
            problems[0] = error.strerror or str(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_TIMEOUT[0])
    if problems:
        raise ConnectionError(f"{address.netloc.rpartition('@')[2]} ({problems[0]})")


def _transfer(url: str, path: Path, quiet: bool) -> None:
    """Download a file, or what is missing of the same version of it (ETag or Last-Modified) at the
    same address: other servers may use the same names for other versions."""
    part, version = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.version")
    known = version.read_text(encoding="utf8") if version.exists() else ""
    address, _, known = known.partition("\n")
    known = known if address == url else ""
    # The last byte comes again, so that there is always something to ask for.
    start = max(part.stat().st_size - 1, 0) if known else 0
    headers = {**_HEADERS, **({"Range": f"bytes={start}-", "If-Range": known} if start else {})}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise requests.RequestException("the server sends a web page instead of the file")
        start = start if response.status_code == requests.codes.partial else 0
        with part.open("r+b" if start else "wb") as out:
            known = response.headers.get("ETag") or response.headers.get("Last-Modified", "")
            version.write_text(f"{url}\n{known}", encoding="utf8")
            out.seek(start)
            total = int(response.headers.get("Content-Length", 0)) or None
            # None: unless stderr is a terminal.
            settings: dict[str, Any] = {"total": total, "desc": path.name, "disable": quiet or None}
            with tqdm.wrapattr(response.raw, "read", **settings) as source:
                shutil.copyfileobj(source, out)
    version.unlink()
    os.replace(part, path)


def hub_library(quiet: bool) -> tuple[Any, Any]:
    """RETURNS (tuple): The library of Hugging Face, and its client.
    RAISES (ValueError): If it is not installed, or there is no network."""
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise ValueError('for hf:, run `pip install "spacy-elmo[hub]"`') from error
    if quiet:
        disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT") or _HUB
    try:
        _connect(endpoint)
    except ConnectionError as error:
        raise ValueError(f"cannot reach hf: {error}. {_ADVICE}") from error
    return huggingface_hub, huggingface_hub.HfApi(endpoint=endpoint)


def is_visible(name: str) -> bool:
    """RETURNS (bool): Whether a file of a repository is below its folder, and not hidden."""
    return not any(part.startswith(".") for part in name.split("/")) and not name.startswith("/")


def _is_needed(name: str, is_pipeline: bool) -> bool:
    """RETURNS (bool): Whether a file of a repository is one of its pipeline or of its weights."""
    if is_pipeline:
        return is_visible(name) and not name.endswith((".md", ".whl"))
    return "/" not in name and any(fnmatch(name, x) for x in _HUB_FILES.split())


def _download_repository(model: Model, folder: Path, quiet: bool) -> list[str]:
    """Download the files of a model from Hugging Face, whose library resumes and checks.
    RETURNS (list): Their names."""
    _, api = hub_library(quiet)
    info = api.model_info(model["hub"], revision=model.get("revision") or "main")
    found = [file.rfilename for file in info.siblings or ()]
    names = sorted(name for name in found if _is_needed(name, "config.cfg" in found))
    for name in names:
        api.hf_hub_download(info.id, name, revision=info.sha, local_dir=folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return names
