"""Requests that ``sightline serve`` refuses over HTTP: each gets one line, and the server goes on and logs nothing."""

from __future__ import annotations

import io
import itertools
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from serving import BOUNDARY, LIMITS, MAX_BYTES, MULTIPART, PATIENCE, RunningServer, encoded, form, raw, serving

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose temporary folder does not exist: an upload that went to disk would fail."""
    with serving("--model", tiny_model, *LIMITS, TMPDIR=str(tmp_path_factory.mktemp("no") / "none")) as running:
        yield running
        assert running.lines[1:] == [], "nothing was logged"


def png(width: int, height: int) -> bytes:
    """A header that promises many pixels, and a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    head = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beam": 0}, "beam"),
        ({"beam": 11}, "beam"),
        ({"beam": "wide"}, "beam"),
        ({"bem": 3}, "did you mean 'beam'?"),
        ({"candidates": 5, "beam": 2}, "widen the beam"),
        ({"temperature": 2}, "sample=True"),
        ({"max_length": 900}, "max_length is 900"),
        ({"top_p": 0}, "top_p"),
        ({"length_penalty": "nan"}, "length_penalty"),
        ({"seed": -1}, "seed"),
        ({"occlusion": True}, "occlusion"),
        ({"sample": "yes"}, "sample"),
        ({"top_k": 5}, "sample=True"),
        ({"want_attention": True}, "want_attention"),
    ],
)
def test_options_out_of_bounds_get_one_line(
    server: RunningServer, photo_bytes: list[bytes], options: dict[str, Any], words: str
):
    for reply in (
        server.post("/v1/caption", photo_bytes[0], options),
        server.post_json("/v1/caption", {"photos": [encoded(photo_bytes[0])], **options}),
    ):
        assert reply.status == 422
        assert words in reply.error


def jpeg(size: tuple[int, int] = (64, 64)) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(file, "JPEG", quality=95)
    return file.getvalue()


BAD_PHOTOS = {
    "not an image": (b"%PDF-1.7 and so on", 422, "not an image"),
    "empty": (b"", 422, "empty"),
    "text": ("ünïcödé".encode() * 100, 422, "not an image"),
    "bomb": (png(50_000, 50_000), 422, "pixels"),
    "just too large": (png(2001, 1000), 422, "more than 2,000,000 pixels"),
    "cut off": (jpeg((400, 400))[:5000], 422, "cut off"),
    "only a signature": (b"\xff\xd8\xff\xe0", 422, "damaged"),
    "too many bytes": (bytes(MAX_BYTES + 1), 413, "larger than 4,000,000 bytes"),
}


@pytest.mark.parametrize("name", BAD_PHOTOS)
def test_a_bad_photo_gets_a_line_and_the_server_goes_on(server: RunningServer, photo_bytes: list[bytes], name: str):
    data, status, words = BAD_PHOTOS[name]
    as_form = server.post("/v1/caption", data)
    assert (as_form.status, words in as_form.error) == (status, True), as_form
    if status == 422:
        assert as_form.error.startswith("0.jpg ")
    assert server.post("/v1/caption", photo_bytes[0]).status == 200


@pytest.mark.parametrize("name", [name for name in BAD_PHOTOS if name != "too many bytes"])
def test_the_good_ones_of_several_photos_are_answered(server: RunningServer, photo_bytes: list[bytes], name: str):
    data, _, words = BAD_PHOTOS[name]
    (expected,) = server.post("/v1/caption", photo_bytes[2]).json["captions"]
    reply = server.post("/v1/caption", [data, photo_bytes[1], photo_bytes[2], data])
    first, _, third, last = reply.json["captions"]
    assert reply.status == 200 and third == expected | {"source": "2.jpg"}
    assert set(first) == {"source", "error"} and first["source"] == "0.jpg" and words in first["error"]
    assert (last["source"], last["error"]) == ("3.jpg", first["error"]), "the name is in source alone"
    assert not first["error"].startswith("0.jpg")
    as_json = server.post_json("/v1/explain", {"photos": [encoded(photo_bytes[0]), encoded(data), "?"]})
    explained, unread, undecoded = as_json.json["explanations"]
    assert as_json.status == 200 and explained["words"] and words in unread["error"]
    assert undecoded["error"] == "photo 3 is not base64: encode the file, without line breaks"


def test_the_name_of_a_bad_photo_is_printed_safely(server: RunningServer):
    for name, shown in (("\u202egpj.exe", "'\\u202egpj.exe' "), ("a" * 500, "a" * 200 + " ")):
        body = form([b"words"], {}).replace(b"0.jpg", name.encode())
        reply = server.ask("POST", "/v1/caption", body, Content_Type=MULTIPART)
        assert (reply.status, reply.error) == (
            422,
            shown + "is not an image: use JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP, TIFF or JPEG 2000",
        )


BAD_BODIES: dict[str, tuple[str, str, bytes, int, str]] = {
    "no type": ("POST", "", b"x", 415, "missing"),
    "image type": ("POST", "image/jpeg", b"x", 415, "image/jpeg"),
    "no boundary": ("POST", "multipart/form-data", b"x", 400, "form"),
    "not a form": ("POST", MULTIPART, b"hello", 400, "form"),
    "empty form": ("POST", MULTIPART, b"", 400, "cut off"),
    "cut off form": ("POST", MULTIPART, form([b"x" * 5000], {})[:3000], 400, "cut off"),
    "no photo": ("POST", MULTIPART, form([], {"beam": 2}), 422, "photos is missing"),
    "wrong field": ("POST", MULTIPART, form([b"x"], {}, name="image"), 422, "call it photos"),
    "photo as text": ("POST", MULTIPART, form([], {"photos": "dog.jpg"}), 422, "as a file"),
    "long field": ("POST", MULTIPART, form([b"x"], {"beam": "3" * 5000}), 422, "too long"),
    "twice": ("POST", MULTIPART, form([b"x"], {"beam": 2})[: -len(BOUNDARY) - 6] + form([], {"beam": 3}), 422, "twice"),
    "many photos": ("POST", MULTIPART, form([b"x"] * 5, {}), 422, "more than 4 photos"),
    "not JSON": ("POST", "application/json", b"{photos", 400, "not JSON"),
    "not UTF-8": ("POST", "application/json", b'{"photos": ["\xff"]}', 400, "not JSON"),
    "deep JSON": ("POST", "application/json", b"[" * 100_000, 422, "values"),
    "many values": ("POST", "application/json", b'{"photos": [' + b"0," * 500_000 + b"0]}", 422, "values"),
    "long form header": ("POST", MULTIPART, form([b"x"], {}).replace(b"0.jpg", b"n" * 100_000), 400, "form"),
    "JSON list": ("POST", "application/json", b"[]", 422, "body"),
    "null": ("POST", "application/json", b'{"photos": null}', 422, "photos"),
    "none": ("POST", "application/json", b'{"photos": []}', 422, "photos"),
    "numbers": ("POST", "application/json", b'{"photos": [1]}', 422, "photos"),
    "string number": ("POST", "application/json", b'{"photos": ["AAAA"], "beam": "3"}', 422, "beam"),
    "not base64": ("POST", "application/json", b'{"photos": ["?"]}', 422, "not base64"),
    "not ASCII": ("POST", "application/json", '{"photos": ["ü"]}'.encode(), 422, "not base64"),
    "address": ("POST", "application/json", b'{"photos": ["data:text/plain,hi"]}', 422, ";base64"),
    "five": ("POST", "application/json", json.dumps({"photos": ["AAAA"] * 5}).encode(), 422, "more than 4 photos"),
    "not a post": ("GET", "", b"", 405, "method"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_request_gets_a_line_and_the_server_goes_on(server: RunningServer, name: str):
    method, kind, body, status, words = BAD_BODIES[name]
    for path in ("/v1/caption", "/v1/explain"):
        reply = server.ask(method, path, body, **({"Content_Type": kind} if kind else {}))
        assert (reply.status, words in reply.error) == (status, True), reply
    assert server.get("/healthz").json["status"] == "ok"


def test_options_in_the_address_are_not_ignored_in_silence(server: RunningServer, photo_bytes: list[bytes]):
    assert "body" in server.post("/v1/caption?beam=1", photo_bytes[0]).error


def test_a_hundred_megabytes_are_refused_before_they_are_sent(server: RunningServer):
    head = f"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\nContent-Length: 104857600\r\n"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert b" 413 " in connection.recv(65536).splitlines()[0]
    memory = server.metric("process_resident_memory_bytes")

    def endless() -> Iterator[bytes]:
        yield form([], {})[:10]
        yield from itertools.repeat(bytes(65536), 1600)

    reply = server.ask("POST", "/v1/caption", endless(), Content_Type=MULTIPART)  # chunked: no length is announced
    assert reply.status in (400, 413)
    body = form([b"x"], {})[:-10]
    announced = itertools.chain([body], itertools.repeat(bytes(65536), 1600))
    reply = server.ask("POST", "/v1/caption", announced, Content_Type=MULTIPART)
    assert reply.status == 413
    assert "4,000,000 bytes" in reply.error
    assert server.metric("process_resident_memory_bytes") - memory < 60e6


def test_what_is_not_http_gets_a_line(server: RunningServer):
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A" * 20000,
    ):
        answer = raw(server, nonsense + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'{"error":' in answer
        assert b"x-content-type-options" in answer.lower()
    assert server.get("/healthz").status == 200


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (HEALTH + b"X-Large: " + b"a" * 100_000 + b"\r\n\r\n", 431, b"16,384 bytes"),
        (HEALTH + b"X: y\r\n" * 10_000 + b"\r\n", 431, b"16,384 bytes"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, b"16,384 bytes"),
        (CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400, b"exclude each other"),
        (CHUNKED + b"content-length: 0\r\n\r\n0\r\n\r\n", 400, b"exclude each other"),
    ],
)
def test_large_headers_and_two_lengths_are_refused_first_or_behind_another_request(
    server: RunningServer, request_: bytes, status: int, words: bytes
):
    alone = raw(server, request_)
    assert alone.startswith(b"HTTP/1.1 %d " % status)
    assert words in alone
    behind = raw(server, HEALTH + b"\r\n" + request_)
    assert behind.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 %d " % status in behind
    assert words in behind
    accepted = raw(server, HEALTH + b"Connection: close\r\nX-Long: " + b"a" * 15_000 + b"\r\n\r\n")
    assert accepted.startswith(b"HTTP/1.1 200 ")
