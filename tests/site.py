"""A web site on this machine."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site:
    """What the site has by path, what it was asked for, and how it misbehaves.

    breaks (list[int]): After so many bytes the connection breaks, for the next requests.
    headers (dict): Headers of each answer by path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.breaks: list[int] = []

    def add(self, path: str, data: bytes = b"", **headers: str) -> str:
        """RETURNS (str): The URL of a new page."""
        self.pages[path] = data
        self.headers[path] = {name.replace("_", "-"): value for name, value in headers.items()}
        return f"{self.url}{path}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.site.requests.append((path, dict(self.headers)))
        body, headers = self.site.pages.get(path), self.site.headers.get(path, {})
        status, n_bytes = (404, 0) if body is None else (200, len(body))
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if body and asked and self.headers.get("If-Range", headers.get("ETag")) == headers["ETag"]:
            status, body = 206, body[int(asked[1]) :]
            headers = {**headers, "Content-Range": f"bytes {asked[1]}-{n_bytes - 1}/{n_bytes}"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body or b""))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET" and body:
            self.close_connection = bool(self.site.breaks)
            self.wfile.write(body[: self.site.breaks.pop(0)] if self.site.breaks else body)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        """Clients go away."""


@contextlib.contextmanager
def site(base: type[Handler] = Handler) -> Iterator[Site]:
    """Run a site."""
    handler = type("Running", (base,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        handler.site = Site(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield handler.site  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()
