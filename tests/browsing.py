"""What the tests of the page share: a browser, a web server, and the page opened in it."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shlex
import shutil
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.engine.confidence import Captions, Confidence, Photos, Words, encode_halves

# WebAssembly and a CPU with int8 instructions round sums differently; docs/page.md has the measured differences.
INT8_CONFIDENCE, INT8_OOD_SCORE = 0.06, 0.06
WEB = Path(__file__).parents[1] / "web"
PATIENCE = 300_000  # milliseconds: machines that run tests may have other work
CLOSING = 120  # seconds that Chromium may take to close a context; Playwright itself waits without limit
ARGUMENTS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
IN_NPM = "import('@sparticuz/chromium').then((module) => module.default.executablePath()).then(console.log)"
CONTROLS_WITHOUT_NAME = """
  [...document.querySelectorAll('button, input:not([aria-hidden]), a, summary')].filter((item) =>
  item.checkVisibility() && !(item.textContent.trim() || item.ariaLabel || item.labels?.length
  || item.querySelector('[alt]'))).length"""


def find_browser() -> str:
    """$SIGHTLINE_BROWSER, Debian's or another Chromium on the PATH, or the one inside an npm package; else a skip."""
    names = (os.environ.get("SIGHTLINE_BROWSER"), "chromium", "chromium-browser", "google-chrome")
    for name in names:
        if name and (found := shutil.which(name)):
            return found
    if (WEB / "node_modules/@sparticuz/chromium").is_dir() and shutil.which("node"):
        found = subprocess.run(["node", "-e", IN_NPM], cwd=WEB, capture_output=True, text=True).stdout.strip()
        if found:
            return found
    pytest.skip("no Chromium: apt install chromium, or in web/ npm install --no-save @sparticuz/chromium")


class Chromium:
    """The browser of all tests of a process. One that does not close a context in time is killed, and started anew."""

    def __init__(self, driver: Any, path: str) -> None:
        self.driver, self.path = driver, path
        self.running: Any = None
        self.process = self.group = 0

    @contextmanager
    def context(self, **options: Any) -> Iterator[Any]:
        context = self._browser().new_context(**options)
        try:
            yield context
        finally:
            self._close(context)

    def _browser(self) -> Any:
        if self.running is None or not self.running.is_connected():
            self.running = self.driver.chromium.launch(executable_path=self.path, args=ARGUMENTS)
            session = self.running.new_browser_cdp_session()
            processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
            session.detach()
            self.process = next(one["id"] for one in processes if one["type"] == "browser")
            self.group = os.getpgid(self.process) if os.name == "posix" else 0
        return self.running

    def _close(self, context: Any) -> None:
        killed: list[bool] = []

        def kill() -> None:
            killed.append(True)
            with suppress(ProcessLookupError):
                if self.group:
                    os.killpg(self.group, signal.SIGKILL)
                else:
                    os.kill(self.process, signal.SIGTERM)

        limit = threading.Timer(CLOSING, kill)
        limit.start()
        try:
            context.close()
        except Exception:
            if not killed:
                raise
            warnings.warn(f"Chromium did not close a context within {CLOSING} s and was killed", stacklevel=1)
        finally:
            limit.cancel()

    def close(self) -> None:
        if self.running is not None:
            self.running.close()  # here Playwright kills it after 30 s


def with_own_log(browser: str, folder: Path) -> str:
    """A command that starts the browser with its output in a file.

    Chromium's handlers of crashes leave its process group and keep its output open. Playwright waits until its pipes
    are closed, without limit, and what it kills after 30 s is the group.
    """
    if os.name != "posix":
        return browser
    command = folder / "chromium"
    log = shlex.quote(str(folder / "chromium.log"))
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(browser)} "$@" >> {log} 2>&1\n')
    command.chmod(0o755)
    return str(command)


def sources_digest() -> str:
    """The hash that the build of ``web/`` writes into what it makes."""
    named = [WEB / name for name in ("index.html", "package-lock.json", "sw.js", "vite.config.ts")]
    named += [WEB / "../src/sightline/io" / name for name in ("page.css", "levels.json")]  # shared with Python
    digest = hashlib.sha256()
    for path in [*named, *walk(WEB / "public"), *walk(WEB / "src")]:
        digest.update(f"{path.relative_to(WEB).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        yield from walk(path) if path.is_dir() else [path]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        """Files are always sent whole: by their times, in seconds, one that was just written again seems unchanged."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def log_message(self, *args: Any) -> None:
        """Requests are not printed among the tests' output."""


@contextmanager
def served(folder: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """Any web server will do: this is Python's own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def address(server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/"


def calibration(dimension: int) -> Confidence:
    random = np.random.default_rng(5)
    words = Words(intercept=0.2, slope=0.6, offsets={"a": 1.5, "wall": -1.0}, function_words=frozenset({"a", "the"}))
    photo = encode_halves(random.standard_normal(dimension) / 16)
    captions = Captions(intercept=0.4, words=1.5, log_probability=0.9, photo=photo, unsure_below=0.2)
    mean, matrix = random.standard_normal(dimension) / 8, random.standard_normal((4, dimension)) / 4
    photos = Photos(
        dimension=dimension, directions=4, mean=encode_halves(mean), matrix=encode_halves(matrix), limit=1.3
    )  # fmt: skip
    return Confidence(words=words, captions=captions, photos=photos)


@contextmanager
def opened(browser: Chromium, url: str, **options: Any) -> Iterator[Any]:
    """The page, once its model is loaded; requests to other hosts and errors fail the test."""
    with browser.context(permissions=["clipboard-read", "clipboard-write", "camera"], **options) as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        errors = watch(page, url)
        page.goto(url)
        page.wait_for_selector("body.ready")
        page.wait_for_selector("#demo-words .word")  # the example of the first screen has been captioned
        yield page
        assert not errors


def watch(page: Any, url: str) -> list[str]:
    """Errors of the page and requests to other hosts, as they occur."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("request", lambda one: None if is_local(one.url, url) else errors.append(f"requested {one.url}"))
    return errors


def is_local(requested: str, url: str) -> bool:
    return requested.startswith((url, "blob:", "data:"))
