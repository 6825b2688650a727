"""What ``sightline serve`` can bear: throughput of many clients against one, latencies, errors, and memory.

    python benchmarks/serve_load.py [--photos FOLDER] [--model FOLDER]

Starts a server of its own on a free port of 127.0.0.1 and asks nothing of any other machine. One client, then 32, each
asking again as soon as it is answered, every request one photo on a kept connection; then 5,000 requests while the
server's resident memory is read from its own metrics. Every phase ends after so many requests or seconds, whichever
comes first. Without a folder of photos, ones of 500 × 375 pixels are drawn. Exit code 1 when an aim is missed.
``--url`` measures another server of this machine instead, one that takes the same form and answers 200.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

CLIENTS = 32
RATIO = 2.0
GROWTH = 0.05  # of memory, from the first fifth of the requests to the last
BOUNDARY = "sightline-load"
RESIDENT = re.compile(rb"^process_resident_memory_bytes (\S+)", re.MULTILINE)


@dataclass
class Outcome:
    clients: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # bytes, read now and then

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.latencies, 100 * share)) if self.latencies else float("nan")


class Connection:
    """HTTP/1.1 by hand, so that the client takes next to nothing of the machine it shares with the server."""

    def __init__(self, port: int):
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


async def load(
    port: int, path: str, bodies: list[bytes], clients: int, requests: int, seconds: float, watch: bool = False
) -> Outcome:
    """``watch``: read the memory fifty times meanwhile, which takes a few milliseconds of the server's each time."""
    outcome = Outcome(clients)
    numbers = iter(range(requests))
    began = time.perf_counter()

    async def client() -> None:
        connection = Connection(port)
        for number in numbers:
            if time.perf_counter() - began > seconds:
                break
            started = time.perf_counter()
            try:
                status, answer = await connection.ask(post(path, bodies[number % len(bodies)]))
                outcome.latencies.append(time.perf_counter() - started)
                if status != 200:
                    outcome.errors.append(f"{status} {answer[:100]!r}")
            except (OSError, asyncio.IncompleteReadError) as error:
                outcome.errors.append(repr(error))
                connection.close()
            if watch and number % max(1, requests // 50) == 0:
                outcome.memory.append(await resident(port))
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - began
    return outcome


async def resident(port: int) -> float:
    connection = Connection(port)
    _, text = await connection.ask(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    connection.close()
    found = RESIDENT.search(text)
    return float(found[1]) if found else 0.0


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def forms(folder: str | None, count: int = 64) -> list[bytes]:
    paths = sorted(Path(folder).glob("*.jpg"))[:count] if folder else []
    photos = [path.read_bytes() for path in paths] or [drawn(seed) for seed in range(16)]
    head = 'Content-Disposition: form-data; name="photos"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
    return [f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + photo + f"\r\n--{BOUNDARY}--\r\n".encode() for photo in photos]


def drawn(seed: int) -> bytes:
    """Soft blots of colour, as large a file as a photo of that size."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
    grain = random.normal(0, 9, (375, 500, 3))
    pixels = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) + grain
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
    return file.getvalue()


@contextmanager
def server(model: str | None, log: list[str]) -> Iterator[int]:
    command = [sys.executable, "-m", "sightline", "serve", "--port", "0", "--timeout", "120", "--server-page"]
    process = subprocess.Popen(
        [*command, *(["--model", model] if model else [])], stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                yield int(found[1])
                break
        else:
            sys.exit(f"the server did not start: {''.join(log)}")
    finally:
        process.terminate()
        log += process.communicate(timeout=120)[1].splitlines()


def tell(outcome: Outcome) -> None:
    print(
        f"{outcome.clients:7d}{len(outcome.latencies):10d}{outcome.seconds:9.1f}{outcome.rate:13.2f}"
        f"{1000 * outcome.percentile(0.5):10.0f}{1000 * outcome.percentile(0.99):10.0f}{len(outcome.errors):8d}",
        flush=True,
    )


def measure(port: int, path: str, options: argparse.Namespace) -> bool:
    def run(clients: int, requests: int, watch: bool = False) -> Outcome:
        outcome = asyncio.run(load(port, path, bodies, clients, requests, options.seconds, watch))
        tell(outcome)
        return outcome

    bodies = forms(options.photos)
    asyncio.run(load(port, path, bodies, CLIENTS, 2 * CLIENTS, options.seconds))  # warming up
    print("clients  requests  seconds  requests/s  p50, ms   p99, ms  errors", flush=True)
    pairs = []
    for _ in range(options.rounds):  # in turn, so that a busy machine slows both alike
        pairs.append((run(1, options.requests), run(CLIENTS, 4 * options.requests)))
    ratio = float(np.median([many.rate / one.rate for one, many in pairs]))
    print(f"{CLIENTS} clients against one: {ratio:.2f} times the requests (aim: at least {RATIO:g})", flush=True)
    lasting = run(CLIENTS, options.total, watch=True)
    fifth = max(1, len(lasting.memory) // 5)
    early, late = np.median(lasting.memory[fifth : 2 * fifth] or [0]), np.median(lasting.memory[-fifth:])
    growth = float(late / early - 1) if early else 0.0
    course = " ".join(f"{value / 2**20:.0f}" for value in lasting.memory[:: max(1, fifth // 2)])
    print(f"memory over {len(lasting.latencies)} requests, MB: {course} ({growth:+.1%}, aim: at most {GROWTH:+.0%})")
    errors = [error for outcome in (*sum(pairs, ()), lasting) for error in outcome.errors]
    for error in sorted(set(errors))[:5]:
        print(f"error: {error}")
    if len(lasting.latencies) < options.total:
        print(
            f"only {len(lasting.latencies)} of {options.total} requests in {options.seconds:g} seconds: give --seconds"
        )
    return ratio >= RATIO and growth <= GROWTH and not errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", help="a folder of .jpg files")
    parser.add_argument("--model", help="a model folder; else the shipped one")
    parser.add_argument("--url", help="another server on this machine, e.g. http://127.0.0.1:8000/predict")
    parser.add_argument("--requests", type=int, default=60, help="of the single client; the many have four times that")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total", type=int, default=5000, help="requests while memory is watched")
    parser.add_argument("--seconds", type=float, default=600, help="that no phase exceeds")
    options = parser.parse_args()
    if options.url:
        address = urlsplit(options.url)
        if address.hostname != "127.0.0.1":
            sys.exit("only servers on 127.0.0.1 are measured")
        sys.exit(0 if measure(address.port or 80, address.path or "/v1/caption", options) else 1)
    log: list[str] = []
    with server(options.model, log) as port:
        reached = measure(port, "/v1/caption", options)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
