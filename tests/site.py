"""A web site on this machine, whose server can misbehave."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """What the site has at a path.

    data (bytes): The contents.
    etag, modified (str): The headers ETag and Last-Modified; empty for none.
    ranges (bool): Whether the server knows ranges.
    statuses (list[int]): Answers to the next requests, before it works.
    breaks (list[int]): After so many bytes the connection breaks, for the next requests.
    redirect (str): Where it leads instead.
    length (str): "right", "none" (the end of the connection is the end), "chunked", or a number.
    headers (dict): Further headers.
    ignores_version (bool): Send the rest whatever If-Range says.
    pause (float): Seconds after each 64 KiB.
    """

    data: bytes = b""
    etag: str = '"1"'
    modified: str = ""
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    redirect: str = ""
    length: str = "right"
    headers: dict[str, str] = field(default_factory=dict)
    ignores_version: bool = False
    pause: float = 0.0


class Site:
    """The pages by path, the requests so far, and the address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    def add(self, path: str, data: bytes = b"", **settings: Any) -> str:
        """RETURNS (str): The URL of a new page."""
        self.pages[path] = Page(data, **settings)
        return f"{self.url}{path}"

    def ranges(self) -> list[str]:
        """RETURNS (list): The ranges that the requests asked for."""
        return [headers.get("Range", "") for _, headers in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.site.requests.append((self.path, dict(self.headers)))
        page = self.site.pages.get(self.path)
        if page is None or page.statuses:
            status = 404 if page is None else page.statuses.pop(0)
            self._answer(
                status, b"<html>no</html>", {"Content-Type": "text/html", "Retry-After": "0"}
            )
            return
        if page.redirect:
            self._answer(302, b"", {"Location": page.redirect})
            return
        start, status, headers = 0, 200, dict(page.headers)
        headers.update(
            {k: v for k, v in (("ETag", page.etag), ("Last-Modified", page.modified)) if v}
        )
        asked = self.headers.get("Range", "")
        same = page.ignores_version or self.headers.get("If-Range") in (page.etag, page.modified)
        if page.ranges and asked and same:
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
            headers["Content-Range"] = f"bytes {start}-{len(page.data) - 1}/{len(page.data)}"
            if start >= len(page.data):
                self._answer(416, b"", {"Content-Range": f"bytes */{len(page.data)}"})
                return
        stop = page.breaks.pop(0) if page.breaks else None
        self._answer(
            status, page.data[start:], {**headers, **page.headers}, page.length, stop, page.pause
        )

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        length: str = "right",
        stop: int | None = None,
        pause: float = 0.0,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif length != "none":
            self.send_header("Content-Length", str(len(body)) if length == "right" else length)
        self.close_connection = self.close_connection or length == "none" or stop is not None
        self.end_headers()
        if length == "chunked":
            self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body[:stop]))
            self.wfile.write(b"0\r\n\r\n" if stop is None else b"")
        else:
            body = body[:stop]
            for start in range(0, len(body), 1 << 16):
                self.wfile.write(body[start : start + (1 << 16)])
                time.sleep(pause)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        """Clients go away."""


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """Run a site."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        handler.site = Site(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield handler.site  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()
