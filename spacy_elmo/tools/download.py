"""Download files. The only network code of the package.

A file is written to `.NAME.part`, and gets its name when its size and its checksums are right.
`.NAME.part.json` says of which address the part is, and of which version of the file there (ETag
or Last-Modified): an interrupted download continues only with the same version.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, TypeVar
from urllib.parse import urlsplit

import requests
from requests import Response
from tqdm import tqdm
from urllib3.exceptions import HTTPError, NewConnectionError

from ..files import atomic_file, sync
from ..models import RemoteFile, read_json

Result = TypeVar("Result")

_TIMEOUT = (7, 60)  # Seconds to connect, and without data.
_MAX_PAUSE = 60.0
_BLOCK = 1 << 14  # Bytes. So many are lost when a connection breaks.
_MAX_JSON = 1 << 24  # Bytes.
_BUSY = (408, 425, 429)  # The answers below 500 after which to try again.
# The file itself is wanted, not a compressed form of it.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "spacy-elmo"}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_WEB_PAGE = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)


class _TryAgainError(Exception):
    """A request that may succeed when it is repeated.

    pause (float): Seconds to wait before that, if the server gives them.
    """

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class UnreachableError(ValueError):
    """No connection to a server.

    host (str): Its name.
    """

    def __init__(self, host: str) -> None:
        super().__init__(f"no connection to {host}: is this machine online?")
        self.host = host


@dataclass(frozen=True)
class Downloader:
    """Downloads files.

    attempts (int): How often a request may fail in a row. One that brings data did not fail.
    pause (float): Seconds before the second attempt. Each further pause is twice as long.
    quiet (bool): Neither a progress bar nor news of what is tried again.
    """

    attempts: int = 6
    pause: float = 1.0
    quiet: bool = False

    def file(self, url: str, path: Path, expected: RemoteFile) -> dict[str, Any]:
        """Download a file, or what is missing of it. No other process may be writing it.

        path (Path): Its new place. A file that is there is replaced.
        expected (RemoteFile): The size and the checksums that it must have.
        RETURNS (dict): Its "size" and "sha256".
        RAISES (ValueError): If it cannot be downloaded, or is not as it should be.
        """
        part = _part(path)
        with tqdm(
            desc=path.name,
            unit="B",
            unit_scale=True,
            disable=self.quiet,
            file=sys.stderr,
            delay=0.5,
        ) as bar:
            self._repeat(
                lambda: _transfer(url, path, expected.size, bar),
                lambda: part.stat().st_size if part.exists() else 0,
            )
        try:
            facts = verify(part, expected)
        except ValueError:
            discard_part(path)
            raise
        sync(part)
        os.replace(part, path)
        discard_part(path)
        return facts

    def json(self, url: str) -> Any:
        """RETURNS (Any): The contents of a JSON file.
        RAISES (ValueError): If it cannot be downloaded, or is not JSON."""

        def read() -> bytes:
            with _open(url, {}) as response:
                return response.raw.read(_MAX_JSON, decode_content=True)

        try:
            return json.loads(self._repeat(read, lambda: 0))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{url}: {error}") from error

    def _repeat(self, request: Callable[[], Result], progress: Callable[[], int]) -> Result:
        """Repeat a request until it succeeds.

        progress (Callable): The number of bytes that are there.
        RAISES (ValueError): If it cannot succeed, or has failed too often in a row; an
            `UnreachableError` if there was no connection at all.
        """
        start = most = progress()
        failures = 0
        while True:
            try:
                return request()
            except requests.exceptions.SSLError as error:  # It is a ConnectionError.
                raise ValueError(str(error)) from error
            except (
                _TryAgainError,
                HTTPError,
                requests.ConnectionError,
                requests.Timeout,
            ) as error:
                # Only bytes beyond the most so far are progress. Else a download that begins anew
                # each time would never give up.
                failures = 1 if progress() > most else failures + 1
                most = max(most, progress())
                # Where nothing has come from, there is no use in waiting for it.
                if most == start and (host := _unreachable(error)):
                    raise UnreachableError(host) from error
                if failures >= self.attempts:
                    raise ValueError(
                        f"{error} (after {failures} attempts; the same command continues)"
                    ) from error
                pause = max(self.pause * 2 ** (failures - 1), getattr(error, "pause", 0.0))
                pause = min(pause, _MAX_PAUSE)
                if not self.quiet:
                    tqdm.write(f"{error}: trying again in {pause:.0f} s", file=sys.stderr)
                time.sleep(pause)
            except requests.RequestException as error:  # Such as an impossible URL.
                raise ValueError(str(error)) from error


def _unreachable(error: Any) -> str:
    """RETURNS (str): The server to which there is no connection; empty if the error is another."""
    kinds = (requests.exceptions.ProxyError, requests.ConnectTimeout)
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    if not (isinstance(error, kinds) or isinstance(reason, NewConnectionError)):
        return ""
    return urlsplit(str(error.request.url)).netloc.rpartition("@")[2]


def _transfer(url: str, path: Path, size: Optional[int], bar: tqdm) -> None:
    """Download a file, or what is missing of it, to its part.

    RAISES (_TryAgainError): If not all of it came.
    RAISES (ValueError): If the server has something else.
    """
    part, state = _part(path), read_json(_state(path))
    version = state.get("version") if state.get("url") == url and part.exists() else None
    start = part.stat().st_size if version else 0
    headers = {"Range": f"bytes={start}-", "If-Range": str(version)} if start else {}
    with _open(url, headers) as response:
        if response.status_code != 200 and not _continues(response, start, version):
            discard_part(path)
            raise _TryAgainError(f"HTTP {response.status_code}: the file has changed on the server")
        start = start if response.status_code == 206 else 0
        total = _total(response, path, size)
        blocks = response.raw.stream(_BLOCK, decode_content=False)
        block = next(blocks, b"")
        if not start and _WEB_PAGE.match(block):
            raise ValueError("the server sends a web page instead of the file")
        with part.open("r+b" if start else "wb") as out:
            if not start:
                # The part is empty by now, so that an old one never counts as the new version.
                _write_state(path, url, response)
            bar.total, bar.n, bar.initial = total, start, start
            out.seek(start)
            while block and (total is None or out.tell() <= total):
                out.write(block)
                bar.update(len(block))
                block = next(blocks, b"")
            n_bytes = out.tell()
    if total is not None and n_bytes > total:
        discard_part(path)
        raise ValueError(f"the server sends more than {total:,} bytes")
    if total is not None and n_bytes < total:
        raise _TryAgainError(f"the connection broke after {n_bytes:,} of {total:,} bytes")


@contextlib.contextmanager
def _open(url: str, headers: Mapping[str, str]) -> Iterator[Response]:
    """Send a request. YIELDS (Response): An answer that has what was asked for, or 416.

    RAISES (_TryAgainError): If the server is busy or broken.
    RAISES (ValueError): If the address is not right.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("only addresses with http or https are downloaded")
    headers = {**_HEADERS, **headers}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        addresses = [answer.url for answer in (*response.history, response)]
        if url.startswith("https:") and not all(x.startswith("https:") for x in addresses):
            raise ValueError(f"it leads to an address without encryption: {addresses[-1]}")
        status = response.status_code
        message = f"the server answers with HTTP {status} ({response.reason})"
        if status in _BUSY or status >= 500:
            pause = response.headers.get("Retry-After", "")
            raise _TryAgainError(message, float(pause) if pause.isdecimal() else 0.0)
        if status not in (200, 206, 416):
            raise ValueError(message)
        yield response


def _continues(response: Response, start: int, version: Any) -> bool:
    """RETURNS (bool): Whether an answer is the rest of the same version of a file."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != 206 or match is None or int(match[1]) != start:
        return False
    # An answer to If-Range may leave out what the client knows.
    versions = [response.headers.get(name) for name in ("ETag", "Last-Modified")]
    return version in versions or not any(versions)


def _total(response: Response, path: Path, size: Optional[int]) -> Optional[int]:
    """RETURNS (Optional[int]): The size of the whole file; None if it comes in chunks, whose end
    is marked.
    RAISES (ValueError): If it is not as expected, too large for the disk, or not known."""
    length, start = response.headers.get("Content-Length", ""), 0
    total = int(length) if length.isdecimal() else None
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code == 206 and match is not None:
        start = int(match[1])
        total = int(match[2]) if match[2] != "*" else total and start + total
    if None not in (total, size) and total != size:
        raise ValueError(f"the server has {total:,} bytes, expected {size:,}")
    total = size if total is None else total
    if total is None and not response.raw.chunked:
        raise ValueError("the server does not say how long the file is")
    if total is not None and total - start > shutil.disk_usage(path.parent).free:
        raise ValueError(f"there is no space for its {total:,} bytes in {path.parent}")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity" and path.suffix not in (".gz", ".tgz"):
        raise ValueError(f"the server sends it compressed ({encoding}), although asked not to")
    return total


def verify(path: Path, expected: RemoteFile) -> dict[str, Any]:
    """RETURNS (dict): The "size" and the "sha256" of a file.
    RAISES (ValueError): If it has not the size or a checksum that it must have."""
    size = path.stat().st_size
    if expected.size not in (None, size):
        raise ValueError(f"the file has {size:,} bytes, expected {expected.size:,}")
    digests = {
        # The id of a git blob is a SHA-1 of a header and the contents.
        name: hashlib.new("sha1" if name == "git" else name, usedforsecurity=False)
        for name in {"sha256", *expected.digests}
    }
    if "git" in digests:
        digests["git"].update(b"blob %d\0" % size)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            for digest in digests.values():
                digest.update(block)
    for name, value in expected.digests.items():
        if (actual := digests[name].hexdigest()) != value.lower():
            raise ValueError(
                f"the {name} checksum of the file is {actual}, expected {value}: it is not kept"
            )
    return {"size": size, "sha256": digests["sha256"].hexdigest()}


def _part(path: Path) -> Path:
    """RETURNS (Path): The file that holds what has come so far."""
    return path.with_name(f".{path.name}.part")


def _state(path: Path) -> Path:
    """RETURNS (Path): The file that says what the part is."""
    return path.with_name(f".{path.name}.part.json")


def discard_part(path: Path) -> None:
    """Remove what an interrupted download of a file has left."""
    _part(path).unlink(missing_ok=True)
    _state(path).unlink(missing_ok=True)


def _write_state(path: Path, url: str, response: Response) -> None:
    # A weak ETag does not say that the bytes are the same.
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    with atomic_file(_state(path)) as temporary:
        temporary.write_text(json.dumps({"url": url, "version": version}), encoding="utf8")
