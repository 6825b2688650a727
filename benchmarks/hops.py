"""Files of this package that a command enters, and how often control passes from one file to another.

    python benchmarks/hops.py
    python benchmarks/hops.py caption-onnx explain

Few files and few hops mean that a reader follows a walk through the code without getting lost. Calls of functions are
counted, not imports, returns or comprehensions.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import sightline
from sightline.cli import run

PACKAGE = str(Path(sightline.__file__).parent)
PHOTO = str(Path(__file__).parents[1] / "examples" / "dog.jpg")
IS_FUNCTION = 1  # CO_OPTIMIZED: bodies of modules and classes do not have it
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # from Python 3.12 on most are not calls


class Tracer:
    """Counts while it is active; threads that are started meanwhile are counted each for itself."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from here on, for walks that begin with threads to start; `stop` before those end."""
        self.active = True
        self.files: dict[str, int] = {}  # each with its number of entries
        self.hops = 0
        self._last = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code, file = frame.f_code, frame.f_code.co_filename
        if not self.active or event != "call" or not file.startswith(PACKAGE) or not code.co_flags & IS_FUNCTION:
            return
        if code.co_name in COMPREHENSIONS:
            return
        if file != getattr(self._last, "file", None):
            self.files[file] = self.files.get(file, 0) + 1
            self.hops += 1
            self._last.file = file

    def stop(self) -> None:
        self.active = False

    def __enter__(self) -> Tracer:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


Walk = Callable[[Tracer], None]


def command(*arguments: str) -> Walk:
    def walk(tracer: Tracer) -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            code = run(list(arguments))
        if code:
            raise SystemExit(f"sightline {' '.join(arguments)}: exit code {code}: {errors.getvalue().strip()}")

    return walk


def explain(tracer: Tracer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command("explain", PHOTO, "--runtime", "onnx", "-o", f"{folder}/explained.html")(tracer)


def bulk(tracer: Tracer) -> None:
    """A bulk job of three photos, all in this process."""
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        photos.mkdir()
        for number in range(3):
            shutil.copy(PHOTO, photos / f"{number}.jpg")
        command("bulk", str(photos), "--runtime", "onnx", "--workers", "0", "-o", f"{folder}/captions.jsonl")(tracer)


def training(tracer: Tracer) -> None:
    """One epoch of a small patch transformer: two batches of four photos, then a caption of each of two others."""
    with tempfile.TemporaryDirectory() as folder:
        rows = ["image,caption,split"]
        for number in range(10):
            shutil.copy(PHOTO, Path(folder, f"{number}.jpg"))
            rows.append(f"{number}.jpg,a dog runs with a ball,{'train' if number < 8 else 'val'}")
        Path(folder, "captions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        changes = [
            "training.epochs=1", "training.batch_size=4", "training.precision=no", "data.workers=0",
            "data.min_captions=1", "tokenizer.min_count=1", "encoder.image_size=32", "encoder.width=16",
            "decoder.width=16", "decoder.blocks=1", "encoder.blocks=1", "encoder.heads=2", "decoder.heads=2",
        ]  # fmt: skip
        overrides = [argument for change in changes for argument in ("--set", change)]
        table, output = f"{folder}/captions.csv", f"{folder}/run"
        command("train", "patch-transformer-word", "--data", table, "-o", output, *overrides)(tracer)


def http_request() -> Walk:
    """One POST /v1/caption to a server that runs; its threads start while the tracer is active, so that they count."""
    from sightline.serve.app import create_app
    from sightline.serve.batching import CaptionWork
    from sightline.serve.server import warm_up
    from sightline.serve.settings import Settings

    work = CaptionWork(sightline.load(runtime="onnx"), max_pixels=10**8)
    warm_up(work)
    app = create_app(work, Settings(), "default")
    app.middleware_stack = app.build_middleware_stack()  # otherwise made by the first request
    content = base64.b64encode(Path(PHOTO).read_bytes()).decode()
    body = {"type": "http.request", "body": json.dumps({"photos": [content]}).encode(), "more_body": False}
    headers = {"host": "localhost", "content-type": "application/json"}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/caption", "raw_path": b"/v1/caption", "root_path": "", "query_string": b"", "client": ("x", 1),
        "server": ("x", 2), "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    status: list[int] = []

    async def request(tracer: Tracer) -> None:
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait(body)

        async def send(message: MutableMapping[str, Any]) -> None:
            status.append(message.get("status", 0))

        async with app.router.lifespan_context(app):
            tracer.reset()
            await app(scope, incoming.get, send)
            tracer.stop()
        if status[0] != 200:
            raise SystemExit(f"POST /v1/caption: status {status[0]}")

    return lambda tracer: asyncio.run(request(tracer))


WALKS: dict[str, Callable[[], Walk]] = {  # what prepares a walk, and is not counted
    "caption-onnx": lambda: command("caption", PHOTO, "--runtime", "onnx"),
    "caption-torch": lambda: command("caption", PHOTO, "--runtime", "torch"),
    "explain": lambda: explain,
    "bulk": lambda: bulk,
    "http": http_request,
    "training": lambda: training,
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks", nargs="*", choices=[[], *WALKS], help="all if none is named")
    parser.add_argument("--files", action="store_true", help="list the files of each walk with their entries")
    given = parser.parse_args(arguments)
    print(f"{'walk':<16}{'files':>6}{'hops':>6}")
    for name in given.walks or WALKS:
        walk = WALKS[name]()
        with Tracer() as tracer:
            walk(tracer)
        print(f"{name:<16}{len(tracer.files):>6}{tracer.hops:>6}")
        if given.files:
            for file, entries in sorted(tracer.files.items(), key=lambda pair: -pair[1]):
                print(f"  {entries:>5}  {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main(sys.argv[1:])
