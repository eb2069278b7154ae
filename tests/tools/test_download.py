"""Downloads from a server on this machine."""

from __future__ import annotations

import ast
import hashlib
import random
from pathlib import Path

import pytest
import requests

from spacy_elmo.models import RemoteFile
from spacy_elmo.tools import download
from spacy_elmo.tools.download import Downloader

from ..site import Site, site

DATA = random.Random(0).randbytes(3_000_000)
PACKAGE = Path(download.__file__).parents[1]
ANY = RemoteFile(())
# Modules that talk to other machines.
NETWORK = {"requests", "urllib3", "urllib", "http", "socket", "ftplib", "httpx", "aiohttp"}


@pytest.fixture
def web():
    with site() as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.hdf5"


def quick(attempts: int = 4) -> Downloader:
    return Downloader(attempts=attempts, pause=0.001, quiet=True)


def sha256(data: bytes) -> RemoteFile:
    return RemoteFile((), {"sha256": hashlib.sha256(data).hexdigest()})


def fails(url: str, path: Path, expected: RemoteFile = ANY, attempts: int = 3) -> str:
    """The message of a download that must fail without a file."""
    with pytest.raises(ValueError) as error:
        quick(attempts).file(url, path, expected)
    assert not path.exists()
    return str(error.value)


def leaves_nothing(path: Path) -> bool:
    return not list(path.parent.iterdir())


# What works


def test_a_file(web: Site, path: Path):
    facts = quick().file(web.add("/a", DATA), path, ANY)
    assert path.read_bytes() == DATA
    assert facts == {"size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file(web: Site, path: Path):
    quick().file(web.add("/a"), path, ANY)
    assert path.read_bytes() == b""


def test_an_interrupted_download_of_50_mb_continues(web: Site, path: Path):
    """The connection breaks three times; the process stops after that, and comes back."""
    data = random.Random(1).randbytes(50_000_000)
    breaks = [20 << 20, 1 << 20, 0, 0, 0]
    url = web.add("/a", data, breaks=breaks)
    assert "the same command continues" in fails(url, path)
    part = path.with_name(f".{path.name}.part")
    assert part.read_bytes() == data[: 21 << 20]
    quick().file(url, path, sha256(data))
    assert path.read_bytes() == data
    assert web.ranges() == ["", f"bytes={20 << 20}-", *[f"bytes={21 << 20}-"] * 4]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(8))
def test_a_connection_that_breaks_again_and_again(seed: int, web: Site, path: Path):
    """A download that makes progress is not given up. Versions are ETags or dates, or there are
    none; then it starts afresh."""
    choose = random.Random(seed)
    breaks = [choose.randint(1 << 14, len(DATA) // 8) for _ in range(7)]
    versions = choose.choice([{}, {"etag": "", "modified": "Sun, 22 Nov 2026 18:00:00 GMT"}])
    length = choose.choice(["right", "chunked"])
    url = web.add("/a", DATA, breaks=breaks, length=length, **versions)
    quick(2).file(url, path, ANY)
    assert path.read_bytes() == DATA and len(web.requests) == 8


@pytest.mark.parametrize(
    "settings",
    [{"ranges": False}, {"etag": ""}, {"etag": 'W/"1"'}],
    ids=["no ranges", "no version", "weak version"],
)
def test_a_server_without_ranges_or_versions(settings: dict, web: Site, path: Path):
    quick().file(web.add("/a", DATA, breaks=[1 << 20, 1 << 19], **settings), path, ANY)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("ignores_version", [False, True])
@pytest.mark.parametrize("size", [len(DATA), 2_000_000, 1 << 19])
def test_a_file_that_changes_is_not_mixed(ignores_version: bool, size: int, web: Site, path: Path):
    url = web.add("/a", DATA, breaks=[1 << 20, 0, 0])
    fails(url, path)
    new = random.Random(2).randbytes(size)
    web.add("/a", new, etag='"2"', ignores_version=ignores_version)
    quick().file(url, path, ANY)
    assert path.read_bytes() == new


def test_another_address_starts_afresh(web: Site, path: Path):
    fails(web.add("/a", DATA, breaks=[1 << 20, 0, 0]), path)
    quick().file(web.add("/b", DATA[::-1]), path, ANY)
    assert path.read_bytes() == DATA[::-1]


def test_a_damaged_note_about_the_part(web: Site, path: Path):
    url = web.add("/a", DATA, breaks=[1 << 20, 0, 0])
    fails(url, path)
    for text in ("", "[]", "{", '{"url": 1, "version": {}}'):
        path.with_name(f".{path.name}.part.json").write_text(text)
        web.pages["/a"].breaks[:] = [1000, 0, 0]
        fails(url, path)
    quick().file(url, path, ANY)
    assert path.read_bytes() == DATA


def test_what_is_complete_but_not_named_yet(web: Site, path: Path):
    """Killed before the last step."""
    url = web.add("/a", DATA, breaks=[len(DATA) - 1, 0, 0])
    fails(url, path)
    path.with_name(f".{path.name}.part").write_bytes(DATA)
    quick().file(url, path, ANY)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_busy_server(status: int, web: Site, path: Path):
    url = web.add("/a", DATA, statuses=[status] * 3)
    quick(4).file(url, path, ANY)
    assert path.read_bytes() == DATA
    web.pages["/a"].statuses[:] = [status] * 9
    path.unlink()
    assert f"HTTP {status}" in fails(url, path)
    assert len(web.requests) == 7


def test_redirects(web: Site, path: Path):
    web.add("/c", DATA, breaks=[1 << 20])
    web.add("/b", redirect=f"{web.url}/c")
    quick().file(web.add("/a", redirect="/b"), path, ANY)
    assert path.read_bytes() == DATA
    assert web.ranges()[-1] == "bytes=1048576-"


def test_checksums(web: Site, path: Path):
    url = web.add("/a", DATA)
    digests = {name: hashlib.new(name, DATA).hexdigest() for name in ("md5", "sha1", "sha256")}
    digests["git"] = hashlib.sha1(b"blob 3000000\0" + DATA).hexdigest()
    quick().file(url, path, RemoteFile((), digests, len(DATA)))
    path.unlink()
    for name in digests:
        wrong = {**digests, name: digests[name][::-1]}
        assert f"the {name} checksum" in fails(url, path, RemoteFile((), wrong))
        assert leaves_nothing(path)


# What does not


def test_a_wrong_checksum_leaves_nothing(web: Site, path: Path):
    """Nothing that a next run could continue, either, however the file came."""
    url = web.add("/a", DATA, breaks=[1 << 20])
    message = fails(url, path, sha256(b"other"))
    assert hashlib.sha256(DATA).hexdigest() in message
    assert hashlib.sha256(b"other").hexdigest() in message
    assert leaves_nothing(path)
    web.requests.clear()
    fails(url, path, sha256(b"other"))
    assert web.ranges() == [""]


def test_a_wrong_checksum_keeps_the_old_file(web: Site, path: Path):
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="sha256 checksum"):
        quick().file(web.add("/a", DATA), path, sha256(b"other"))
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
@pytest.mark.parametrize("length", ["right", "chunked", "none"])
def test_a_wrong_size(size: int, length: str, web: Site, path: Path):
    url = web.add("/a", DATA, length=length)
    message = fails(url, path, RemoteFile((), {}, size))
    assert f"{size:,}" in message
    if length == "right":
        assert leaves_nothing(path)


def test_a_length_that_is_not_true(web: Site, path: Path):
    url = web.add("/a", DATA, length=str(len(DATA) + 10), breaks=[len(DATA)] * 9)
    assert "after 3 attempts" in fails(url, path)


def test_a_length_that_nobody_knows(web: Site, path: Path):
    assert "how long" in fails(web.add("/a", DATA, length="none"), path)
    assert leaves_nothing(path)
    quick().file(web.add("/a", DATA, length="chunked"), path, ANY)
    assert path.read_bytes() == DATA


def test_a_file_that_is_larger_than_the_disk(web: Site, path: Path):
    assert "no space" in fails(web.add("/a", DATA, length=str(10**15)), path)
    assert leaves_nothing(path)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 204, 304])
def test_an_address_that_is_wrong(status: int, web: Site, path: Path):
    assert f"HTTP {status}" in fails(web.add("/a", DATA, statuses=[status]), path)
    assert len(web.requests) == 1 and leaves_nothing(path)


def test_an_endless_redirect(web: Site, path: Path):
    assert "redirects" in fails(web.add("/a", redirect="/a"), path)


@pytest.mark.parametrize("start", [b"<!DOCTYPE html><html>", b"\n <html lang='en'>"])
def test_a_web_page_instead_of_the_file(start: bytes, web: Site, path: Path):
    """What came before is kept: it is the network of the hotel that answers."""
    url = web.add("/a", DATA, breaks=[1 << 20, 0, 0])
    fails(url, path)
    web.pages["/a"] = type(web.pages["/a"])(start + b"please log in", ranges=False)
    assert "web page" in fails(url, path)
    web.add("/a", DATA)
    quick().file(url, path, ANY)
    assert web.ranges()[-1] == "bytes=1048576-" and path.read_bytes() == DATA


def test_a_file_that_is_sent_compressed(web: Site, path: Path):
    url = web.add("/a", DATA, headers={"Content-Encoding": "gzip"})
    assert "compressed" in fails(url, path)
    archive = path.with_name("model.tar.gz")  # Servers call these encoded.
    quick().file(url, archive, ANY)
    assert archive.read_bytes() == DATA


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": "bytes 5-9/10"},
        {"Content-Range": "bytes */10"},
        {"Content-Range": "items 1-2/3"},
        {"Content-Range": "bytes 1048576-1048577/99999999999999999999"},
    ],
    ids=str,
)
def test_a_strange_range(headers: dict, web: Site, path: Path):
    """It is not believed: the file comes from its start, or not at all."""
    url = web.add("/a", DATA, breaks=[1 << 20, 0, 0])
    fails(url, path)
    web.add("/a", DATA, headers=headers)
    try:
        quick().file(url, path, ANY)
    except ValueError as error:
        assert "no space" in str(error)
    else:
        assert path.read_bytes() == DATA


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/a", "data:,a", "//host/a", "/etc/passwd", "", "x"]
)
def test_other_kinds_of_addresses(url: str, web: Site, path: Path):
    assert "only addresses with http or https" in fails(url, path)
    if url:
        fails(web.add("/a", redirect=url), path)
    assert leaves_nothing(path)


@pytest.mark.parametrize("url", ["http://", "http://[", "https:///a", "http://127.0.0.1:99999/"])
def test_impossible_addresses(url: str, path: Path):
    assert fails(url, path)


def test_a_server_that_is_not_there(path: Path):
    with site() as running:
        url = running.url
    host = url.removeprefix("http://")
    assert fails(f"{url}/a", path) == f"no connection to {host}: is this machine online?"


def test_a_server_that_goes_away(web: Site, path: Path):
    """Where data has come from, it is worth waiting for more."""
    url = web.add("/a", DATA, breaks=[len(DATA) // 2])

    def leave(*arguments, **settings):
        response = get(url, **settings)
        monkey.setattr(requests, "get", lambda *a, **b: get("http://127.0.0.1:1/a", **b))
        return response

    get = requests.get
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(requests, "get", leave)
        assert "after 3 attempts" in fails(url, path)


def test_json(web: Site):
    assert quick().json(web.add("/a", b'{"a": 1}', statuses=[500], breaks=[3])) == {"a": 1}
    for data in (b"", b"{", b"\xff\xfe\x00"):
        with pytest.raises(ValueError, match=f"{web.url}/b"):
            quick().json(web.add("/b", data))


# Only here


def test_nothing_else_uses_the_network():
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf8"))
        modules = {
            x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and not x.level
        }
        modules |= {a.name for x in ast.walk(tree) if isinstance(x, ast.Import) for a in x.names}
        modules -= {None, "urllib.parse"}
        if file != Path(download.__file__):
            assert not {name.split(".")[0] for name in modules} & NETWORK, file
