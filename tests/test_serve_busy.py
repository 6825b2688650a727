"""``sightline serve`` with a token and a short queue: tokens, the in-flight limit, disconnects, and the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import ENVIRONMENT, MULTIPART, PATIENCE, Reply, RunningServer, form, raw, serving, wait_until

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

ORIGIN = "https://photos.example"


@pytest.fixture(scope="module")
def held_up(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a token, one allowed origin, a short queue, and a gate before its model."""
    gate = tmp_path_factory.mktemp("gate") / "open"
    gate.touch()
    options = ("--queue", 4, "--max-photos", 2, "--timeout", PATIENCE, "--cors-origin", ORIGIN)
    with serving("--model", tiny_model, *options, gate=gate, SIGHTLINE_TOKEN="open-sesame") as running:
        running.headers["Authorization"] = "Bearer open-sesame"
        yield running
        gate.touch()


def test_captions_and_metrics_need_the_token(held_up: RunningServer, photo_bytes: list[bytes]):
    for header in ("", "Bearer open-sesam", "Bearer open-sesame2", "Basic open-sesame"):
        for reply in (
            held_up.post("/v1/caption", photo_bytes[0], Authorization=header),
            held_up.post("/v1/explain", photo_bytes[0], Authorization=header),
            held_up.get("/metrics", Authorization=header),
        ):
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert "sesame" not in reply.error
    for path in ("/", "/healthz", "/docs"):
        assert held_up.get(path, Authorization="").status == 200
    assert held_up.post("/v1/caption", photo_bytes[0]).status == 200
    assert held_up.get("/healthz").json["token_required"] is True


def start(calls: list[Any]) -> tuple[list[threading.Thread], list[Reply]]:
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda call=call: replies.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    return threads, replies


def test_a_full_queue_a_client_that_disconnects_and_batches(held_up: RunningServer, photo_bytes: list[bytes]):
    assert held_up.gate
    batches, captioned = held_up.metric("sightline_batch_photos_count"), held_up.metric("sightline_photos_total")
    disconnects = held_up.metric("sightline_disconnects_total")
    held_up.gate.unlink()
    first, first_reply = start([lambda: held_up.post("/v1/caption", photo_bytes[0])])
    held_up.wait_for("sightline_in_flight_photos", 1)
    others, replies = start([lambda: held_up.post("/v1/caption", photo_bytes[1:3])])
    held_up.wait_for("sightline_in_flight_photos", 3)

    client = held_up.connect()
    client.request("POST", "/v1/caption", form([photo_bytes[3]], {}), held_up.headers | {"Content-Type": MULTIPART})
    held_up.wait_for("sightline_in_flight_photos", 4)
    full = held_up.post("/v1/caption", photo_bytes[0])
    assert full.status == 429
    assert int(full.headers["retry-after"]) >= 1
    assert "4 photos are in flight" in full.error
    assert held_up.get("/healthz").status == 200, "the event loop is free while the model computes"

    client.close()
    held_up.wait_for("sightline_in_flight_photos", 3)
    assert held_up.metric("sightline_disconnects_total") == disconnects + 1
    late, late_reply = start([lambda: held_up.post("/v1/caption", photo_bytes[4])])
    held_up.wait_for("sightline_in_flight_photos", 4)
    held_up.gate.touch()
    for thread in first + others + late:
        thread.join(PATIENCE)
    assert [reply.status for reply in first_reply + replies + late_reply] == [200, 200, 200]
    held_up.wait_for("sightline_in_flight_photos", 0)
    held_up.wait_for("sightline_photos_total", captioned + 4)  # the one who disconnected cost nothing
    together = held_up.metric("sightline_batch_photos_count") - batches
    assert together in (1, 2), "the two join the first, and the late one too if it was opened in time"


def test_a_request_whose_headers_never_end_is_cut_off(held_up: RunningServer):
    answer = raw(held_up, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    assert answer == b""


def test_an_allowed_origin_is_accepted_and_no_other(held_up: RunningServer, photo_bytes: list[bytes]):
    allowed = held_up.post("/v1/caption", photo_bytes[0], Origin=ORIGIN)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, ORIGIN)
    asked = held_up.ask(
        "OPTIONS", "/v1/caption", Origin=ORIGIN, Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization",
    )  # fmt: skip
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert "content-security-policy" in asked.headers
    other = held_up.post("/v1/caption", photo_bytes[0], Origin="http://evil.example")
    assert other.status == 403
    assert "access-control-allow-origin" not in other.headers


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_server_that_is_stopped_answers_the_requests_in_flight(
    tiny_model: Path, tmp_path: Path, photo_bytes: list[bytes]
):
    gate = tmp_path / "open"
    gate.touch()
    token = tmp_path / "token"
    token.write_text("from-a-file\n")
    with serving("--model", tiny_model, "--timeout", PATIENCE, "--token-file", token, gate=gate) as server:
        server.headers["Authorization"] = "Bearer from-a-file"
        gate.unlink()
        waiting, replies = start([lambda photo=photo: server.post("/v1/caption", photo) for photo in photo_bytes[:5]])
        body = form([photo_bytes[5]], {})
        uploading = server.connect()
        uploading.putrequest("POST", "/v1/caption")
        for name, value in (server.headers | {"Content-Type": MULTIPART, "Content-Length": str(len(body))}).items():
            uploading.putheader(name, value)
        uploading.endheaders(body[:100])
        server.wait_for("sightline_in_flight_photos", 5)
        arrived = sum(len(form([photo], {})) for photo in photo_bytes[:5])
        server.wait_for("sightline_upload_bytes", arrived + 100)

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not can_connect(server.port), "the socket to close")
        uploading.send(body[100:])
        gate.touch()
        assert uploading.getresponse().status == 200
        for thread in waiting:
            thread.join(PATIENCE)
        assert [reply.status for reply in replies] == [200] * 5
        assert server.process.wait(PATIENCE) == 0
        wait_until(lambda: "stopped" in server.lines[-1], "the last line")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_server_as_intended_with_exit_code_0(tiny_model: Path):
    with serving("--model", tiny_model) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        wait_until(lambda: "stopped" in server.lines[-1], "the last line")


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# A server in the midst of an export that does not end by itself.
EXPORTING = """
import asyncio, pathlib, signal, sys
from sightline.serve import browser
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit that it is ignored
browser.EXPORT = browser.EXPORT.replace("main()", "import os, time; os.write(2, b'%d' % os.getpid()); time.sleep(600)")
read = asyncio.StreamReader.read

async def show_first(self, count=-1):
    print((await read(self, 16)).decode(), flush=True)
    return await read(self, count)

asyncio.StreamReader.read = show_first
folder = pathlib.Path(sys.argv[1])
asyncio.run(browser.BrowserModel(folder / "page", folder).export())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_export_for_the_page_ends_with_the_server(tmp_path: Path, number: int):
    command = [sys.executable, "-c", EXPORTING, str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    assert server.stdout
    with server:
        export = int(server.stdout.readline())
        server.send_signal(number)
    try:
        wait_until(lambda: not is_running(export), "the export to end")
    finally:
        if is_running(export):
            os.kill(export, signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
