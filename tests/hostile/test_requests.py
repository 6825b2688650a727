"""What clients send to a server that is none of a photo's business: random bodies, and photos that fill the memory."""

from __future__ import annotations

import asyncio
import io
import json
import random
import threading
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from corpus import ROUNDS, mutated, report
from PIL import Image
from serving import BOUNDARY, MULTIPART, RunningServer, form, run_async, serving

from sightline.explain.explanation import Explanation
from sightline.io.images import decoded_bytes
from sightline.types import Caption

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from sightline.serve import app
from sightline.serve.settings import Settings


def encoded(size: tuple[int, int], kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind, **options)
    return file.getvalue()


class CountingWork:
    """Prepares nothing, and counts how many photos of each size it prepares at once."""

    threads = batch_size = 1

    def __init__(self) -> None:
        self.now, self.most, self.lock, self.gate = [0, 0], [0, 0], threading.Lock(), threading.Event()

    def prepare(self, data: bytes, name: str) -> str:
        large = name == "large"
        with self.lock:
            self.now[large] += 1
            self.most[large] = max(self.most[large], self.now[large])
        if large:
            assert self.gate.wait(60)
        time.sleep(0.01)
        with self.lock:
            self.now[large] -= 1
        return name


def test_large_photos_are_decoded_one_at_a_time_and_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    work: Any = CountingWork()
    service = app.Service(work, Settings(), frozenset())
    monkeypatch.setattr(app, "LARGE_BYTES", 1000 * 1000)

    def submit(prepared: str, query: object) -> Future[Explanation]:
        done: Future[Explanation] = Future()
        done.set_result(Explanation(Caption(prepared, (), 0.0), "attention"))
        return done

    monkeypatch.setattr(service.batcher, "submit", submit)
    query: Any = None

    async def texts(tasks: Iterable[Awaitable[Any]]) -> list[str]:
        return [found.caption.text for found in await asyncio.gather(*tasks)]

    async def caption() -> None:
        large = [asyncio.create_task(service.caption_one(encoded((600, 600)), "large", query)) for _ in range(8)]
        small = [service.caption_one(encoded((60, 60)), "small", query) for _ in range(20)]
        assert await asyncio.wait_for(texts(small), 60) == ["small"] * 20  # while the large ones wait
        work.gate.set()
        assert await texts(large) == ["large"] * 8

    run_async(caption())
    assert work.most == [2, 1]


def test_the_memory_of_a_photo_is_known_by_its_header() -> None:
    assert decoded_bytes(encoded((100, 50))) == 100 * 50 * 4
    assert decoded_bytes(encoded((100, 50), "JPEG")) == 100 * 50 * 4
    assert decoded_bytes(encoded((100, 50), "JPEG", progressive=True, subsampling=0)) == 100 * 50 * (4 + 2 * 3)
    assert decoded_bytes(encoded((100, 50), "JPEG", progressive=True, subsampling=2)) == 100 * 50 * (4 + 3)
    assert decoded_bytes(b"") == decoded_bytes(b"no photo") == 0


# -- random requests --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tiny_model: Path):
    with serving("--model", tiny_model, "--timeout", 60) as running:
        yield running


VALUES = [None, True, False, 0, -1, 2**70, 1e308, "", "x", "\x00", "NaN", [], {}, "A" * 5000, "data:image/png;base64,"]
OPTIONS = ["photos", "beam", "candidates", "sample", "temperature", "top_k", "top_p", "seed", "max_length", "nothing"]


def random_json(rng: random.Random, photos: list[str]) -> bytes:
    def value(depth: int = 0) -> Any:
        kind = rng.randrange(6 if depth < 6 else 3)
        if kind < 3:
            return rng.choice([*VALUES, *photos])
        if kind < 5:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(OPTIONS): value(depth + 1) for _ in range(rng.randrange(4))}

    body = {rng.choice(OPTIONS): value() for _ in range(rng.randrange(6))}
    if rng.random() < 0.7:
        body["photos"] = [rng.choice([*photos, "AAAA"])]
    text = json.dumps(body).encode()
    return mutated(text, rng) if rng.random() < 0.4 else text


def random_form(rng: random.Random, photos: list[bytes]) -> bytes:
    fields = {rng.choice(OPTIONS): rng.choice(VALUES) for _ in range(rng.randrange(4))}
    sent = [mutated(photo, rng) if rng.random() < 0.5 else photo for photo in rng.sample(photos, 2)]
    body = form(sent, fields, rng.choice(["photos", "photos", "other", "\r\n"]))
    return mutated(body, rng) if rng.random() < 0.5 else body


def test_random_requests_get_an_answer_and_the_server_goes_on(server: RunningServer, photo_bytes: list[bytes]) -> None:
    import base64

    rng, statuses = random.Random(19), {}
    texts = [base64.b64encode(photo).decode() for photo in photo_bytes[:3]]
    tried = 40 * ROUNDS
    for number in range(tried):
        if number % 2:
            body, kind = random_json(rng, texts), "application/json"
        else:
            body, kind = random_form(rng, photo_bytes), MULTIPART.replace(BOUNDARY, rng.choice([BOUNDARY, "x"]))
        path = rng.choice(["/v1/caption", "/v1/explain"])
        reply = server.ask("POST", path, body, Content_Type=kind)
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
        if reply.status != 200:
            assert reply.status in (400, 413, 415, 422), (number, reply)
            assert reply.error and len(reply.body) < 2000, (number, reply)
    assert server.post("/v1/caption", photo_bytes[0]).status == 200
    assert not [line for line in server.lines if "Traceback" in line]
    assert server.metric("sightline_photos_in_flight") == 0
    report("requests", tried, statuses.get(500, 0), 0)
