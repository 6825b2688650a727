"""Helpers for the server's tests: the real command in a process of its own, and a client that needs no library."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import sightline

PATIENCE = 120  # seconds: machines that run tests may have other work
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
BOUNDARY = "----sightline"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
MAX_BYTES = 4_000_000
LIMITS = ("--max-bytes", MAX_BYTES, "--max-pixels", 2_000_000, "--max-photos", 4, "--timeout", PATIENCE)

# The real command, but nothing is encoded while the file "gate" is missing, and request headers get half a second.
GATED = """
import sys, time
from pathlib import Path
from sightline.serve import batching, server
gate, encode = Path(sys.argv.pop(1)), batching.CaptionWork.encode

def when_open(self, photos):
    while not gate.exists():
        time.sleep(0.01)
    return encode(self, photos)

batching.CaptionWork.encode = when_open
server.HEADER_SECONDS = 0.5
from sightline.__main__ import main
main()
"""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"error"}
        assert "\n" not in self.json["error"]
        return self.json["error"]


@dataclass
class RunningServer:
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    port: int = 0
    gate: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Each on a connection of its own; underscores in header names stand for hyphens."""
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, self.headers | named)
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(
        self, path: str, photos: list[bytes] | bytes, fields: dict[str, Any] | None = None, **headers: str
    ) -> Reply:
        several = photos if isinstance(photos, list) else [photos]
        return self.ask("POST", path, form(several, fields or {}), **({"Content_Type": MULTIPART} | headers))

    def post_json(self, path: str, content: Any) -> Reply:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, body, Content_Type="application/json")

    def metric(self, name: str) -> float:
        text = self.get("/metrics").body.decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (.+)$", text, re.MULTILINE))

    def wait_for(self, name: str, value: float) -> None:
        wait_until(lambda: self.metric(name) == value, f"{name} to be {value}, it is {self.metric(name)}")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that ``make`` fills once for all of pytest's workers: for what takes long and is only read."""
    root = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = root / name
    with FileLock(root / f"{name}.lock", timeout=10 * PATIENCE):
        if not folder.exists():
            make(root / f"{name}.unfinished")
            (root / f"{name}.unfinished").rename(folder)
    return folder


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def form(photos: list[bytes], fields: dict[str, Any], name: str = "photos") -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    for number, photo in enumerate(photos):
        head = f'Content-Disposition: form-data; name="{name}"; filename="{number}.jpg"\r\nContent-Type: image/jpeg'
        parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + photo + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def raw(server: RunningServer, data: bytes, wait: bool = True) -> bytes:
    """Send bytes as they are; returns what comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(data)
        received = b""
        while wait and (piece := connection.recv(65536)):
            received += piece
        return received


@contextmanager
def serving(*arguments: object, gate: Path | None = None, **environment: str) -> Iterator[RunningServer]:
    """``sightline serve`` on a free port, until the block ends; with ``gate``, a server whose encoder waits for it."""
    start = ["-m", "sightline"] if gate is None else ["-c", GATED, str(gate)]
    page = [] if "--page-model" in arguments else ["--server-page"]  # nothing is exported into the user's cache
    command = [sys.executable, *start, "serve", "--port", "0", *page, *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | environment)
    server = RunningServer(process, gate=gate)
    reader = threading.Thread(target=lambda: server.lines.extend(process.stderr), daemon=True)
    try:
        for line in process.stderr:
            server.lines.append(line)
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                server.port = int(found[1])
                break
        assert server.port, f"the server did not start: {server.lines}"
        reader.start()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: a browser test may have left its event loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def encoded(photo: bytes) -> str:
    return base64.b64encode(photo).decode()
