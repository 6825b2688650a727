"""The server's parts on their own: settings, files, bodies, access control, command. No model, no socket."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import threading
import tracemalloc
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from fastapi import FastAPI
from serving import run_async
from starlette.exceptions import HTTPException

from sightline.decoding.options import DecodingOptions, user_options
from sightline.errors import ConfigError
from sightline.explain import Explanation
from sightline.serve.app import create_app
from sightline.serve.browser import BrowserModel
from sightline.serve.schemas import CaptionBody, CaptionOptions, ExplainOptions
from sightline.serve.server import open_to_all
from sightline.serve.settings import Settings, make_settings
from sightline.serve.site import PageFiles, Site
from sightline.serve.uploads import read_json
from sightline.types import Caption, Word

PATIENCE = 60


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port": 70000}, "--port is 70000"),
        ({"max_bytes": 0}, "--max-bytes is 0"),
        ({"timeout": 0}, "--timeout is 0"),
        ({"queue": 2, "max_photos": 3}, "queue is 2, but a request may bring max_photos 3"),
        ({"cors_origins": ("example.org",)}, "--cors-origin"),
        ({"cors_origins": ("https://example.org/path",)}, "without a path"),
        ({"token": ""}, "the token must be"),
        ({"token": "two words"}, "the token must be"),
    ],
)
def test_settings_out_of_bounds_are_named_by_their_flag(values: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as error:
        make_settings(**values)
    assert words in str(error.value)
    assert "two words" not in str(error.value)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_only_loopback_is_local(host: str, local: bool):
    assert make_settings(host=host).is_local == local
    warning = open_to_all(make_settings(host=host))
    assert (f"--host {host} without a token" in warning and "set SIGHTLINE_TOKEN" in warning) == (not local)
    assert open_to_all(make_settings(host=host, token="secret")) == ""


# -- files ------------------------------------------------------------------------------------------------------------


def test_static_files_are_of_known_kinds_with_plain_names_and_no_links(tmp_path: Path):
    (tmp_path / "assets").mkdir()
    for name in ("index.html", "assets/app.mjs", ".hidden.js", "notes.exe"):
        (tmp_path / name).write_text("text")
    (tmp_path / "link.json").symlink_to("/etc/hostname")
    files = PageFiles(directory=tmp_path)
    found = {
        name
        for name in ("index.html", "assets/app.mjs", ".hidden.js", "notes.exe", "link.json", "../app.py", "none.js")
        if files.lookup_path(name)[1] is not None
    }
    assert found == {"index.html", "assets/app.mjs"}
    path = tmp_path / "assets/app.mjs"
    response = files.file_response(path, path.stat(), {"type": "http", "headers": []})
    assert response.headers["content-type"].startswith("text/javascript")
    assert "'wasm-unsafe-eval'" in response.headers["content-security-policy"]


def test_the_page_needs_its_model_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match="not a folder"):
        Site(FastAPI(), BrowserModel(tmp_path / "none"))


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_has_every_decoding_option_with_its_help():
    properties = CaptionOptions.model_json_schema()["properties"]
    assert {name: field["description"] for name, field in properties.items()} == {
        option.name: option.help for option in user_options()
    }
    assert set(ExplainOptions.model_fields) == {*properties, "occlusion"}


@pytest.mark.parametrize("options", [{"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.5}])
def test_the_schema_allows_what_decoding_allows_sampling_options_only_with_sample(options: dict[str, Any]):
    jsonschema = pytest.importorskip("jsonschema")
    schema = CaptionOptions.model_json_schema()
    off = {"temperature": 1, "top_k": 0, "top_p": 1}
    for given in (options, {**options, "sample": False}, {**options, "sample": True}, off):
        try:
            DecodingOptions(**given)
        except ConfigError:
            allowed = False
        else:
            allowed = True
        assert allowed == bool(given.get("sample") or given is off)
        assert jsonschema.Draft202012Validator(schema).is_valid(given) == allowed, given


# -- bodies -----------------------------------------------------------------------------------------------------------

SIZE = 200_000
COSTLY = {
    "numbers": b'{"photos":[' + b"0," * (SIZE // 2) + b"0]}",
    "empty strings": b'{"photos":[' + b'"",' * (SIZE // 3) + b'""]}',
    "unknown fields": b'{"photos":["AAAA"],' + b",".join(b'"%x":0' % number for number in range(SIZE // 8)) + b"}",
    "one field many times": b'{"photos":["AAAA"]' + b',"beam":1' * (SIZE // 9) + b"}",
    "a list as an option": b'{"photos":["AAAA"],"beam":[' + b"0," * (SIZE // 2) + b"0]}",
    "nested objects": b'{"a":' * (SIZE // 5),
    "a few unknown fields": b'{"photos":["AAAA"],' + b",".join(b'"%x":0' % number for number in range(40)) + b"}",
    "a few numbers": b'{"photos":[0,0,0,0,0,0,0,0,0,0]}',
    "a long name": b'{"photos":["AAAA"],"' + b"k" * SIZE + b'":0}',
    "a long value": b'{"photos":["AAAA"],"beam":"' + b"\\u0000" * (SIZE // 6) + b'"}',
    "long values": b'{"photos":["AAAA"],"beam":[' + b",".join([b'"%s"' % (b"v" * (SIZE // 20))] * 20) + b"]}",
    "a long number": b'{"photos":["AAAA"],"beam":' + b"9" * 4000 + b"}",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_json_body_costs_memory_and_an_answer_in_proportion_to_its_size(name: str):
    body = COSTLY[name]
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException) as caught:
            read_json(body, CaptionBody, max_photos=16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status_code == 422
    assert len(caught.value.detail) < 1000
    assert peak < 8 * len(body) + 500_000


def test_the_first_errors_of_a_body_are_named_and_the_others_counted():
    body = json.dumps({"photos": ["AAAA"], **{f"field {number}": 0 for number in range(7)}}).encode()
    with pytest.raises(HTTPException, match=r"'field 0'.*'field 4'; and 2 more errors$"):
        read_json(body, CaptionBody, max_photos=16)


def test_as_many_photos_and_options_as_are_allowed_fit_a_json_body():
    photos = ["data:image/jpeg;base64,AAAA"] * 16
    options = {"sample": True, "beam": 2, "candidates": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 1}
    body = json.dumps({"photos": photos} | options, indent=4).encode()
    upload = read_json(body, CaptionBody, max_photos=16)
    assert (len(upload.photos), upload.options) == (16, options)


# -- the app, without a socket ----------------------------------------------------------------------------------------


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
        return [Explanation(Caption(f"{size} bytes", (Word(str(size), 1.0),), 0.0), "attention") for size in sizes]


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


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def error_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The one line that the command prints when it does not start."""
    import logging

    from sightline.cli import run

    package_log, root = logging.getLogger("sightline"), logging.getLogger()
    before = package_log.handlers, package_log.propagate, package_log.level, list(root.handlers)
    monkeypatch.delenv("SIGHTLINE_TOKEN", raising=False)
    for name in ("PYTHONWARNINGS", "HF_HUB_VERBOSITY", "TORCH_CPP_LOG_LEVEL", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "")

    def call(*arguments: str) -> str:
        assert run(["serve", *arguments]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    with warnings.catch_warnings():
        yield call
    package_log.handlers, package_log.propagate, root.handlers = before[0], before[1], before[3]
    package_log.setLevel(before[2])


def test_wrong_flags_and_tokens_are_one_line(error_line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert "--queue is 0" in error_line("--queue", "0")
    assert "--token-file" in error_line("--token-file", str(tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    assert "not empty" in error_line("--token-file", str(tmp_path / "empty"))
    monkeypatch.setenv("SIGHTLINE_TOKEN", "")
    assert "not empty" in error_line()


def test_a_port_in_use_is_known_before_the_model_is_loaded(error_line):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in error_line("--port", str(port), "--model", "no/such/folder")


def test_a_host_that_is_not_ours_is_one_line(error_line):
    assert "cannot listen on 203.0.113.7:0" in error_line("--host", "203.0.113.7", "--port", "0")


def test_what_is_missing_is_named(error_line, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert error_line() == 'error: sightline serve needs uvicorn: pip install "sightline-captions[serve]"'


# -- explanations -----------------------------------------------------------------------------------------------------


def test_the_frame_is_the_part_of_the_photo_that_the_encoder_takes():
    from sightline.io.preprocess import Preprocess

    assert Preprocess(fit="squash").frame(200, 100) == (0, 0, 1, 1)
    assert Preprocess(size=224, resize=224, fit="crop").frame(200, 100) == pytest.approx((0.25, 0, 0.75, 1))
    assert Preprocess(size=200, resize=400, fit="crop").frame(100, 100) == pytest.approx((0.25, 0.25, 0.75, 0.75))


def test_a_model_without_attention_is_explained_by_occlusion_one_photo_at_a_time(tiny_flickr8k_kept: Path):
    import torch

    from sightline.data import load_dataset
    from sightline.engine.captioner import Captioner
    from sightline.engine.torch_backend import TorchBackend
    from sightline.nn.checkpoint import CaptionModel, Checkpoint
    from sightline.nn.decoders import build_decoder
    from sightline.nn.encoders import build_encoder
    from sightline.serve.batching import CaptionWork
    from sightline.serve.server import warm_up
    from sightline.tokenizers import train_tokenizer

    torch.manual_seed(0)
    tokenizer = train_tokenizer("word", load_dataset(tiny_flickr8k_kept).captions("train"), min_count=1, max_length=8)
    encoder = build_encoder("patches", image_size=16, patch_size=8, width=16, blocks=1, heads=2)
    decoder = build_decoder("lstm", features=16, vocabulary=tokenizer.size, max_length=8, width=16)
    work = CaptionWork(Captioner([TorchBackend(Checkpoint(CaptionModel(encoder, decoder), tokenizer, {}))]), 10**6)
    assert not work.query({}, explain=True).alone
    warm_up(work)
    query = work.query({}, explain=True)
    assert query.alone
    assert not work.query({}, explain=False).alone
    photo = next((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir()).read_bytes()
    output = work.decode(work.encode([work.prepare(photo)]), query)[0].as_dict()
    assert output["method"] == "occlusion"
    assert [len(word["attention"]) for word in output["words"]] == [8] * len(output["words"]) != []
