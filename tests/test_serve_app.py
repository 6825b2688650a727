"""The app without a socket: requests as ASGI messages, answered by a stand-in for the model."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from serving import run_async

from sightline.decoding.options import DecodingOptions
from sightline.explain import Explanation
from sightline.serve.app import create_app
from sightline.serve.settings import Settings
from sightline.types import Caption, Neighbour, Word

PATIENCE = 60


@dataclass(frozen=True)
class Query:
    explain: bool
    options: DecodingOptions = field(default_factory=DecodingOptions)


class StandIn:
    """In place of a model: its caption is the number of bytes, once its gate is open."""

    threads, batch_size = 1, 4

    def __init__(self) -> None:
        self.gate = threading.Event()

    def query(self, given: dict[str, Any], explain: bool) -> Query:
        return Query(explain)

    def prepare(self, data: bytes, name: str = "") -> int:
        return len(data)

    def encode(self, photos: Sequence[int]) -> Sequence[int]:
        assert self.gate.wait(PATIENCE)
        return photos

    def decode(self, sizes: Sequence[int], query: Query) -> list[Explanation]:
        words, near = (Word("bytes", 1.0),), (Neighbour("private.jpg", 1.0, ("a private caption",)),)
        return [Explanation(Caption(f"{size} bytes", words, 0.0, neighbours=near), "attention") for size in sizes]


class Client:
    """One request as ASGI messages; the body comes in chunks, and the client may disconnect."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []

    def start(
        self, body: bytes, more: bool = False, method: str = "POST", path: str = "/v1/caption", **headers: str
    ) -> asyncio.Task[None]:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": quote(path).encode(), "root_path": "", "scheme": "http", "query_string": b"",
            "client": ("x", 1), "server": ("x", 2),
            "headers": [
                (name.lower().replace("_", "-").encode(), value.encode())
                for name, value in ({"host": "localhost:1", "content-type": "application/json"} | headers).items()
            ],
        }  # fmt: skip
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        return asyncio.create_task(self.app(scope, self.incoming.get, send))

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Any, StandIn]]:
    model = StandIn()
    app = create_app(model, Settings(**settings), "stand-in")  # type: ignore[arg-type]
    async with app.router.lifespan_context(app):
        try:
            yield app, model
        finally:
            model.gate.set()


BODY = json.dumps({"photos": [base64.b64encode(b"photo").decode()]}).encode()


def test_too_slow_an_upload_gets_408_and_too_slow_an_answer_503_with_retry_after():
    async def scenario() -> None:
        async with running(timeout=0.5) as (app, _):
            slow = Client(app)
            await slow.start(BODY[:10], more=True)
            assert slow.status == 408
            waiting = Client(app)
            await waiting.start(BODY)
            assert waiting.status == 503
            assert dict(waiting.sent[0]["headers"])[b"retry-after"] == b"1"
            assert app.state.service.slots.in_flight == 0

    run_async(scenario())


def test_a_client_that_disconnects_frees_its_slot_at_once_uploading_or_waiting():
    async def scenario() -> None:
        async with running(queue=1, max_photos=1, timeout=PATIENCE) as (app, model):
            slots = app.state.service.slots
            for body, more in ((BODY[:10], True), (BODY, False)):
                client = Client(app)
                task = client.start(body, more)
                while not (slots.bytes if more else slots.in_flight):
                    await asyncio.sleep(0)
                assert slots.bytes == len(body)
                if not more:
                    refused = Client(app)
                    await refused.start(BODY)
                    assert refused.status == 429
                client.incoming.put_nowait({"type": "http.disconnect"})
                await asyncio.wait_for(task, PATIENCE)
                assert (slots.in_flight, slots.bytes) == (0, 0)
            assert app.state.service.metrics.disconnects._value.get() == 2
            next_one = Client(app)
            model.gate.set()
            await next_one.start(BODY)
            assert next_one.status == 200
            assert b'"5 bytes"' in next_one.sent[1]["body"]

    run_async(scenario())


CHAT = {"messages": [{"role": "user", "images": [base64.b64encode(b"photo").decode()]}], "stream": False}


@pytest.mark.parametrize(("path", "body"), [("/v1/caption", BODY), ("/api/chat", json.dumps(CHAT).encode())])
def test_a_datastore_s_photos_are_in_no_response(path: str, body: bytes):
    async def scenario() -> None:
        async with running() as (app, model):
            model.gate.set()
            client = Client(app)
            await client.start(body, path=path)
            assert client.status == 200, client.sent
            answer = b"".join(message.get("body", b"") for message in client.sent)
            assert b"5 bytes" in answer and b"private" not in answer

    run_async(scenario())


def test_bodies_that_do_not_come_keep_nobody_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sightline.serve.uploads.IDLE_SECONDS", 0.2)

    async def scenario() -> None:
        async with running(queue=2, max_photos=1, timeout=PATIENCE) as (app, model):
            model.gate.set()
            silent = [Client(app) for _ in range(8)]
            tasks = [client.start(BODY[:5], more=True) for client in silent]
            while app.state.service.slots.bytes < 8 * 5:
                await asyncio.sleep(0)
            other = Client(app)
            await other.start(BODY)
            assert other.status == 200
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert {client.status for client in silent} == {408}
            assert app.state.service.slots.bytes == 0

    run_async(scenario())


def test_the_bytes_of_all_uploads_together_are_limited():
    async def scenario() -> None:
        async with running(queue=1, max_photos=1, max_bytes=2**21, timeout=PATIENCE) as (app, _):
            assert app.state.service.slots.max_bytes == 4 * 2**21
            large = [Client(app) for _ in range(4)]
            tasks = [client.start(bytes(2**21), more=True) for client in large]
            while app.state.service.slots.bytes < 4 * 2**21:
                await asyncio.sleep(0)
            refused = Client(app)
            await refused.start(BODY)
            assert refused.status == 429
            for client in large:
                client.incoming.put_nowait({"type": "http.disconnect"})
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert app.state.service.slots.bytes == 0

    run_async(scenario())


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/docs", "/openapi.json", "/v1/caption", "/index.html"])
@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\x7f"])
def test_a_path_with_a_control_character_is_unknown(path: str, character: str):
    async def scenario() -> None:
        async with running() as (app, _):
            client = Client(app)
            await client.start(b"", method="GET", path=path + character)
            assert client.status == 404
            assert b"nothing here" in client.sent[1]["body"]

    run_async(scenario())


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {"host": "evil.example"}, 421),
        ({}, {"host": "evil.example:8000"}, 421),
        ({}, {"host": "127.0.0.1:8000"}, 200),
        ({}, {"host": "[::1]:8000"}, 200),
        ({}, {"host": "[::1]"}, 200),
        ({"allowed_hosts": ("photos.example",)}, {"host": "photos.example"}, 200),
        ({"host": "0.0.0.0"}, {"host": "anything.example"}, 200),
        ({}, {"origin": "http://evil.example"}, 403),
        ({}, {"origin": "null"}, 403),
        ({}, {"origin": "http://localhost:1"}, 200),
        ({"cors_origins": ("https://a.example",)}, {"origin": "https://a.example"}, 200),
        ({"cors_origins": ("https://a.example",)}, {"origin": "https://b.example"}, 403),
        ({"cors_origins": ("*",)}, {"origin": "https://b.example"}, 200),
        ({"token": "secret"}, {}, 401),
        ({"token": "secret"}, {"authorization": "Bearer secret"}, 200),
        ({"token": "secret"}, {"authorization": "bearer secret"}, 200),
        ({"token": "secret"}, {"authorization": "Basic secret"}, 401),
        ({"token": "secret"}, {"authorization": "Bearer secret2"}, 401),
        ({"token": "secret"}, {"authorization": "Bearer "}, 401),
        ({"token": "secret"}, {"authorization": "Bearer s\xe9cret"}, 401),
        ({"token": "secret"}, {"authorization": "Bearer secret", "host": "evil.example"}, 200),
    ],
)
def test_access_control(settings: dict[str, Any], headers: dict[str, str], status: int):
    async def scenario() -> None:
        async with running(**settings) as (app, model):
            model.gate.set()
            client = Client(app)
            await client.start(BODY, **headers)
            assert client.status == status
            assert b"x-content-type-options" in dict(client.sent[0]["headers"])

    run_async(scenario())


def test_tokens_are_compared_in_a_time_that_says_nothing_of_them(monkeypatch: pytest.MonkeyPatch):
    """Hashes of one length, by a function that reads them to the end, whatever was sent."""
    import hmac

    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return first == second

    async def scenario() -> None:
        async with running(token="secret") as (app, model):
            model.gate.set()
            for sent in ("s", "secre", "secret", "x" * 4000):
                client = Client(app)
                await client.start(BODY, authorization=f"Bearer {sent}")
                assert client.status == (200 if sent == "secret" else 401)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    run_async(scenario())
    assert len(compared) == 4
    assert {len(value) for pair in compared for value in pair} == {32}
