"""As much of the Hugging Face hub's file API as fetching and pushing a model needs, on 127.0.0.1, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_made-up-for-a-test"


@dataclass
class FakeHub:
    """``repos[name][file]`` is a file's content. ``asked`` are the requests, ``lies`` wrong sizes it reports."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lies: dict[str, int] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    stored: dict[str, bytes] = field(default_factory=dict)  # large files, by their hash, before they are committed
    address: str = ""

    def sha(self, name: str) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for file, content in sorted(self.repos[name].items()):
            digest.update(file.encode() + content)
        return digest.hexdigest()

    def size(self, file: str, content: bytes) -> int:
        return self.lies.get(file, len(content))

    def fetched(self) -> list[str]:
        """Names of the files somebody downloaded."""
        return sorted(
            {line.rpartition("/")[2] for line in self.asked if line.startswith("GET") and "/resolve/" in line}
        )


class _Answers(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Requests are not printed among the tests' output."""

    def do_GET(self) -> None:
        self._note()
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self._if_there(found[1], found[2], self._info)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._if_there(found[1], found[2], self._tree)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[3])
        else:
            self._json(404, {"error": "not here"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._note()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            self.hub.cards.append(json.loads(body)["content"])
            self._json(200, {"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(401, {"error": "Invalid credentials"})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if asked["organization"] == "somebody-else":
                self._json(403, {"error": "You don't have the rights"})
                return
            if asked.get("private") or asked.get("visibility") == "private":
                self.hub.private.add(name)
            status = 409 if name in self.hub.repos else 200
            self.hub.repos.setdefault(name, {})
            self._json(status, {"url": f"{self.hub.address}/{name}", "error": "You already created this model repo"})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular" for file in files}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            self._json(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.hub.address}/large/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            self._json(200, {"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._json(404, {"error": "not here"})

    def do_PUT(self) -> None:
        self._note()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.hub.stored[self.path.rpartition("/")[2]] = content
        self._send(200, b"", {"ETag": '"1"'})

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.hub.repos[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.repos[name][value["path"]] = self.hub.stored[value["oid"]]
        sha = self.hub.sha(name)
        self._json(200, {"commitUrl": f"{self.hub.address}/{name}/commit/{sha}", "commitOid": sha})

    def _if_there(self, name: str, revision: str | None, answer: Any) -> None:
        if name in self.hub.gated:
            self._json(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif name not in self.hub.repos:
            self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main", self.hub.sha(name)):
            self._json(404, {"error": "Invalid rev"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            answer(name)

    def _info(self, name: str) -> None:
        files = self.hub.repos[name]
        siblings = [{"rfilename": file, "size": self.hub.size(file, content)} for file, content in files.items()]
        about = {"id": name, "modelId": name, "sha": self.hub.sha(name), "private": False, "tags": [], "downloads": 0}
        self._json(200, {**about, "siblings": siblings})

    def _tree(self, name: str) -> None:
        files = self.hub.repos[name].items()
        self._json(
            200,
            [
                {"type": "file", "path": file, "size": self.hub.size(file, content), "oid": _oid(content)}
                for file, content in files
            ],
        )

    def _file(self, name: str, file: str) -> None:
        content = self.hub.repos.get(name, {}).get(file)
        if content is None:
            self._json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        self._send(200, content, {"X-Repo-Commit": self.hub.sha(name), "ETag": f'"{_oid(content)}"'})

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _note(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def serve() -> Iterator[FakeHub]:
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
