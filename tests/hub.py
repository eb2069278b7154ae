"""A site on this machine that speaks what `huggingface_hub` uses of Hugging Face's protocol:
https://huggingface.co/docs/hub/api, and https://github.com/git-lfs/git-lfs/blob/main/docs/api."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from .site import Handler, Site

TOKEN = "hf_secret"


def use_hub(web: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a site what the library talks to."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    # The library reads the environment once.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{web.url}/none")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def publish(
    web: Site, repository: str, files: Mapping[str, bytes], revisions: Iterable[str] = ("main",)
) -> str:
    """Make these files those of a repository.
    RETURNS (str): The commit."""
    contents = json.dumps({x: hashlib.sha1(files[x]).hexdigest() for x in sorted(files)})
    commit, tree = hashlib.sha1(contents.encode()).hexdigest(), []
    for name, data in files.items():
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        tree.append({"type": "file", "oid": oid, "size": len(data), "path": name})
        headers = {"ETag": f'"{oid}"', "X-Repo-Commit": commit}
        web.add(f"/{repository}/resolve/{commit}/{name}", data, **headers)
    info = {"id": repository, "sha": commit, "siblings": [{"rfilename": x} for x in files]}
    pages = {f"revision/{revision}": info for revision in revisions} | {f"tree/{commit}": tree}
    pages |= {f"tree/{revision}": tree for revision in revisions}
    for path, page in pages.items():
        data = json.dumps(page).encode()
        web.add(f"/api/models/{repository}/{path}", data, Content_Type="application/json")
    return commit


class HubHandler(Handler):
    """Takes commits from who has the token. Files of more than 10,000 bytes are stored as large."""

    repositories: dict[str, dict[str, bytes]]
    commits: list[dict[str, Any]]
    large: dict[str, bytes]

    def _answer(self, page: Any, status: int = 200) -> None:
        body = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(data).hexdigest() == self.path.rpartition("/")[2]
        self.large[self.path.rpartition("/")[2]] = data
        self._answer({})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid username or password."}, 401)
        if "/commit/" in self.path:
            lines = [json.loads(line) for line in data.splitlines()]
            return self._answer(self._commit(self.path.split("/commit/")[0][12:], lines))
        page = json.loads(data)
        if self.path == "/api/repos/create":
            return self._create(page)
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            modes = [(x["path"], "lfs" if x["size"] > 10_000 else "regular") for x in page["files"]]
            files = [{"path": x, "uploadMode": y, "shouldIgnore": False} for x, y in modes]
            return self._answer({"files": files})
        assert self.path.endswith("/info/lfs/objects/batch")
        site = f"http://{self.headers['Host']}/large"
        upload = [
            {**x, "actions": {"upload": {"href": f"{site}/{x['oid']}"}}} for x in page["objects"]
        ]
        return self._answer({"transfer": "basic", "objects": upload})

    def _create(self, page: dict[str, Any]) -> None:
        name = f"{page['organization']}/{page['name']}"
        if name in self.repositories:
            url = f"http://{self.headers['Host']}/{name}"
            return self._answer({"url": url, "error": "You already created this repo"}, 409)
        self.repositories[name] = {".gitattributes": b"*.bin filter=lfs"}
        self.commits.append({"create": name, **page})
        publish(self.site, name, self.repositories[name])
        return self._answer({"url": f"http://{self.headers['Host']}/{name}"})

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        files = self.repositories[repository]
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "header":
                self.commits.append(value)
            elif key == "deletedFile":
                del files[value["path"]]
            elif key == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            else:
                assert (key, value["encoding"]) == ("file", "base64")
                files[value["path"]] = base64.b64decode(value["content"])
        commit = publish(self.site, repository, files)
        return {"commitUrl": f"{self.site.url}/{repository}/commit/{commit}", "commitOid": commit}
