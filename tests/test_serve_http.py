"""``sightline serve`` over HTTP: the real command, a real socket, a tiny model."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serving import BOUNDARY, MULTIPART, PATIENCE, RunningServer, form, raw, serving, wait_until

import sightline
from sightline.errors import ImageError
from sightline.io.images import open_image

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

MAX_BYTES = 4_000_000
LIMITS = ("--max-bytes", MAX_BYTES, "--max-pixels", 2_000_000, "--max-photos", 4, "--timeout", PATIENCE)


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose temporary folder does not exist: an upload that went to disk would fail."""
    folder = tmp_path_factory.mktemp("page-model")
    (folder / "confidence.json").write_text('["a"]')
    (folder / "secret.pem").write_text("not of a kind that is served")
    with serving("--model", tiny_model, *LIMITS, "--page-model", folder, TMPDIR=str(folder / "none")) as running:
        yield running


@pytest.fixture(scope="module")
def captioner(tiny_model: Path) -> sightline.Captioner:
    return sightline.load(tiny_model)


def encoded(photo: bytes) -> str:
    return base64.b64encode(photo).decode()


def png(width: int, height: int) -> bytes:
    """A header that promises many pixels, and a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    head = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


# -- captions ---------------------------------------------------------------------------------------------------------


def test_captions_are_those_of_the_python_api_one_at_a_time_and_together(
    server: RunningServer, captioner: sightline.Captioner, photo_bytes: list[bytes]
):
    expected = [captioner.caption(photo).as_dict() | {"source": "0.jpg"} for photo in photo_bytes]
    assert len({caption["caption"] for caption in expected}) > 1
    alone = [server.post("/v1/caption", photo).json for photo in photo_bytes]
    assert alone == [{"captions": [caption]} for caption in expected]
    with ThreadPoolExecutor(12) as callers:
        together = list(callers.map(lambda photo: server.post("/v1/caption", photo).json, photo_bytes * 2))
    assert [answer["captions"][0]["caption"] for answer in together] == [caption["caption"] for caption in expected] * 2


def test_several_photos_keep_their_order_in_a_form_and_in_json(
    server: RunningServer, captioner: sightline.Captioner, photo_bytes: list[bytes]
):
    expected = [caption.text for caption in captioner.caption(photo_bytes[:4])]
    as_form = server.post("/v1/caption", photo_bytes[:4])
    as_json = server.post_json("/v1/caption", {"photos": [encoded(photo) for photo in photo_bytes[:4]]})
    as_url = server.post_json("/v1/caption", {"photos": [f"data:image/jpeg;base64,{encoded(photo_bytes[0])}"]})
    for reply in (as_form, as_json):
        assert [caption["caption"] for caption in reply.json["captions"]] == expected
    assert [caption["source"] for caption in as_form.json["captions"]] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert as_url.json["captions"][0]["caption"] == expected[0]


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 4, "candidates": 3, "length_penalty": 1.5},
        {"max_length": 5, "min_length": 2},
        {"sample": True, "seed": 5, "temperature": 1.5, "top_k": 10, "candidates": 2},
    ],
)
def test_options_mean_what_they_mean_in_python(
    server: RunningServer, captioner: sightline.Captioner, photo_bytes: list[bytes], options: dict[str, Any]
):
    expected = captioner.caption(photo_bytes[0], **options).as_dict()
    as_json = server.post_json("/v1/caption", {"photos": [encoded(photo_bytes[0])], **options})
    assert as_json.json["captions"] == [expected]
    fields = {name: str(value).lower() for name, value in options.items()}
    assert server.post("/v1/caption", photo_bytes[0], fields).json["captions"] == [expected | {"source": "0.jpg"}]


def test_candidates_widen_the_beam_as_on_the_command_line(server: RunningServer, photo_bytes: list[bytes]):
    (caption,) = server.post("/v1/caption", photo_bytes[0], {"candidates": 4}).json["captions"]
    assert len(caption["others"]) == 3


@pytest.mark.parametrize("occlusion", [False, True])
def test_explanations_are_those_of_the_python_api(
    server: RunningServer, captioner: sightline.Captioner, photo_bytes: list[bytes], occlusion: bool
):
    from sightline.explain import explain

    expected = explain(captioner, photo_bytes[1], occlusion)
    (output,) = server.post("/v1/explain", photo_bytes[1], {"occlusion": str(occlusion).lower()}).json["explanations"]
    assert output["method"] == expected.method
    assert output["sentence"] == expected.caption.sentence()
    assert output["frame"] == [0, 0, 1, 1] or output["frame"][0] > 0
    assert len(output["others"]) == len(expected.caption.others)
    assert len(output["words"]) == len(expected.caption.words)
    for word, own in zip(output["words"], expected.caption.words):
        assert (word["text"], word["probability"]) == (own.text, round(own.probability, 4))
        assert [text["text"] for text in word["alternatives"]] == [text for text, _ in own.alternatives]
        for row, own_row in zip(word["attention"], own.attention):
            assert row == pytest.approx(own_row, abs=1e-3)
        assert max(itertools.chain(*word["heat_map"])) <= 2.5


# -- errors -----------------------------------------------------------------------------------------------------------


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
            shown + "is not an image: use JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP or TIFF",
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


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/docs", "/openapi.json", "/model/confidence.json"])
def test_head_gets_the_headers_of_get_and_no_body(server: RunningServer, path: str):
    whole, head = server.get(path), server.ask("HEAD", path)
    assert (head.status, head.body, head.headers["content-type"]) == (200, b"", whole.headers["content-type"])


def test_uploads_that_break_off_leave_nothing_behind(server: RunningServer, photo_bytes: list[bytes]):
    body = form([photo_bytes[0]], {})
    head = f"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    for cut in (0, 10, len(body) // 2, len(body) - 1):
        raw(server, head.encode() + body[:cut], wait=False)
    server.wait_for("sightline_in_flight_photos", 0)
    assert server.post("/v1/caption", photo_bytes[0]).status == 200


def test_large_uploads_stay_in_memory(server: RunningServer, photo_bytes: list[bytes]):
    padded = photo_bytes[0] + bytes(3_000_000)  # more than would be kept in memory by default; the server has no TMPDIR
    assert server.post("/v1/caption", padded).json["captions"][0]["caption"]


# -- other sites, files, other machines -------------------------------------------------------------------------------

HEADERS = ("content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy")


@pytest.mark.parametrize("path", ["/", "/docs", "/healthz", "/metrics", "/openapi.json", "/none", "/v1/caption"])
def test_every_answer_has_the_security_headers_and_none_lets_other_sites_in(server: RunningServer, path: str):
    for reply in (server.get(path), server.ask("OPTIONS", path, Origin="http://evil.example")):
        assert all(name in reply.headers for name in HEADERS)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in reply.headers)
        assert "server" not in reply.headers


def test_other_sites_and_other_names_are_refused(server: RunningServer, photo_bytes: list[bytes]):
    assert server.post("/v1/caption", photo_bytes[0], Origin="http://evil.example").status == 403
    assert server.post("/v1/caption", photo_bytes[0], Host="evil.example").status == 421
    assert server.post("/v1/caption", photo_bytes[0], Origin=f"http://127.0.0.1:{server.port}").status == 200


def test_only_files_of_the_page_and_its_model_are_served(server: RunningServer):
    file = server.get("/model/confidence.json")
    assert (file.status, file.json) == (200, ["a"])
    etag = file.headers["etag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}', f'W/"a",W/{etag} , "b"', "*"):
        assert server.get("/model/confidence.json", If_None_Match=given).status == 304, given
    assert server.get("/model/confidence.json", If_None_Match='"other", "another"').status == 200
    lines = f'If-None-Match: "other"\r\nIf-None-Match: {etag}\r\nConnection: close\r\n\r\n'
    request = b"GET /model/confidence.json HTTP/1.1\r\nHost: localhost\r\n" + lines.encode()
    assert raw(server, request).startswith(b"HTTP/1.1 304 ")
    assert server.ask("HEAD", "/model/confidence.json").body == b""
    for path in (
        "/model/secret.pem", "/model/", "/model/../app.py", "/model/%2e%2e/app.py", "/../../../etc/passwd",
        "/model/..%2f..%2fapp.py", "//etc/passwd", "/model/confidence.json%00",
    ):  # fmt: skip
        reply = server.get(path)
        assert (reply.status, "nothing here" in reply.error) == (404, True), path


def test_the_page_and_the_api_documentation_are_there(server: RunningServer):
    page, docs = server.get("/"), server.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"Sightline" in page.body
    assert b"swagger-ui/swagger-ui-bundle.js" in docs.body
    assert not re.search(rb"(src|href)=.(https?:)?//", docs.body + page.body), "nothing from other hosts"
    assert server.get("/swagger-ui/swagger-ui-bundle.js").status == 200
    from sightline.serve.compatible import PATHS

    document = server.get("/openapi.json").json
    assert {"/v1/caption", "/v1/explain", "/healthz", "/metrics", *PATHS} < set(document["paths"])
    caption = document["paths"]["/v1/caption"]["post"]
    assert set(caption["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    fields = caption["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert (fields["beam"]["default"], fields["sample"]["default"]) == (2, False), "the model's own"
    assert {"200", "400", "408", "413", "415", "422", "429", "503"} <= set(caption["responses"])


def test_metrics_are_text_for_prometheus(server: RunningServer, photo_bytes: list[bytes]):
    before = server.metric("sightline_photos_total")
    server.post("/v1/caption", photo_bytes[:2])
    server.wait_for("sightline_photos_total", before + 2)  # counted after the answer has gone
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'sightline_requests_total{path="/v1/caption",status="200"}' in reply.body
    server.get("/some/random/path")
    assert b"random" not in server.get("/metrics").body, "unknown paths must not grow the list of labels"


# -- everything at once -----------------------------------------------------------------------------------------------


def test_schemathesis_finds_nothing(server: RunningServer, tmp_path: Path):
    """Requests made up from our own OpenAPI document; random bytes are no photo, so that 422 is a good answer."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install schemathesis")
    captioned = server.metric("sightline_photos_total")
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
        "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "1", "--checks", "all",
        "--exclude-checks", "positive_data_acceptance", "--continue-on-failure", "--no-shrink", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(\d{3,}) generated, \1 passed", done.stdout), done.stdout
    assert server.metric("sightline_photos_total") > captioned, "the example in the document is a photo"
    assert server.metric("sightline_in_flight_photos") == 0
    assert server.lines[1:] == [], "nothing was logged"


def test_what_libtiff_says_of_uploads_that_are_decoded_at_once_names_each(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    def scan(size: int, spoilt: bool) -> bytes:
        pixels = np.random.default_rng(size).integers(0, 2, (size, size), np.uint8) * 255
        file = io.BytesIO()
        Image.fromarray(pixels).convert("1").save(file, "TIFF", compression="group4")
        data = bytearray(file.getvalue())
        data[size : size + 300] = b"\x55" * 300 if spoilt else data[size : size + 300]
        return bytes(data)

    photos = [scan(200, True), scan(210, False), scan(300, True), scan(500, True)]
    expected = []
    for number, photo in enumerate(photos):
        caplog.clear()
        with contextlib.suppress(ImageError):
            open_image(photo, called=f"{number}.jpg")
        expected += [record.getMessage() + "\n" for record in caplog.records]
    assert [line[:6] for line in expected] == ["0.jpg:", "2.jpg:", "3.jpg:"] and len(set(expected)) == 3
    before = len(server.lines)
    for _ in range(5):
        server.post("/v1/caption", photos)
    server.post_json("/v1/caption", {"photos": [encoded(photos[1]), encoded(photos[0])]})
    wait_until(lambda: len(server.lines) - before >= 16, "a line for each damaged upload")
    said = server.lines[before:]
    assert sorted(said) == sorted(5 * expected + [expected[0].replace("0.jpg", "photo 2")])
