"""``sightline serve`` over HTTP: the real command, a real socket, a tiny model."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serving import LIMITS, MULTIPART, PATIENCE, RunningServer, encoded, form, raw, serving, wait_until

import sightline
from sightline.errors import ImageError
from sightline.io.images import open_image

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")


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
    expected = captioner.caption(photo_bytes[0], **options)
    as_json = server.post_json("/v1/caption", {"photos": [encoded(photo_bytes[0])], **options})
    assert as_json.json["captions"] == [expected.as_dict()]
    fields = {name: str(value).lower() for name, value in options.items()}
    named = replace(expected, source="0.jpg")
    assert server.post("/v1/caption", photo_bytes[0], fields).json["captions"] == [named.as_dict()]


def test_candidates_widen_the_beam_as_on_the_command_line(server: RunningServer, photo_bytes: list[bytes]):
    (caption,) = server.post("/v1/caption", photo_bytes[0], {"candidates": 4}).json["captions"]
    assert len(caption["others"]) == 3


def test_every_candidate_names_the_photo(server: RunningServer, photo_bytes: list[bytes]):
    for path, key in (("/v1/caption", "captions"), ("/v1/explain", "explanations")):
        (caption,) = server.post(path, photo_bytes[0], {"candidates": 3}).json[key]
        assert [one["source"] for one in (caption, *caption["others"])] == ["0.jpg"] * 3


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


# -- uploads and headers -----------------------------------------------------------------------------------------------


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
