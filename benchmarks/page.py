"""The page in a real browser against Python on the same ONNX files: same pixels, same words, how long, how large.

    python benchmarks/page.py --data flickr8k/ [--photos 200] [--site FOLDER] [--against FOLDER]

Needs playwright and Chromium (``--browser``, else the one on the PATH). ``--site`` is what ``sightline export --web``
wrote; without it, the default model's page. ``--against`` is another such folder, whose encoder is timed in turns with
the first one's: only such ratios mean something on a busy machine. Every photo goes through the page's own worker.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data import load_dataset
from sightline.engine.captioner import load
from sightline.io.images import open_image
from sightline.nn.hub import DEFAULT_MODEL
from sightline.serve.browser import copy_model, copy_page

ASK = """async (data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const file = new Blob([bytes], { type: "image/jpeg" }), began = performance.now();
  const result = await sightline.caption(file, null), seconds = (performance.now() - began) / 1000;
  const square = await sightline.square(file);
  let text = "";
  for (let at = 0; at < square.length; at += 32768) text += String.fromCharCode(...square.subarray(at, at + 32768));
  return { result, seconds, square: btoa(text) };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def page_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that the benchmarks of the page share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    return parser


def site_folder(given: Path | None, scratch: Path) -> Path:
    """The exported page that was given, or else the default model's page, written to `scratch`."""
    if given:
        return given
    copy_page(scratch / "site")
    copy_model(scratch / "site" / "model", DEFAULT_MODEL)
    return scratch / "site"


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        compare(site_folder(arguments.site, Path(scratch)), arguments)


def compare(site: Path, arguments: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    examples = load_dataset(arguments.data).examples("dev")
    photos = [Path(example.image) for example in examples][:: max(1, len(examples) // arguments.photos)]
    photos = photos[: arguments.photos]
    captioner = load(site / "model", runtime="onnx")
    same, texts, seconds, work, exact, worst, means, sure, maps = 0, [], [], [], 0, 0, [], [], []
    ood_scores, marks, others = [], 0, []
    with served(site) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=arguments.browser, args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")  # no demonstration in between
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("body.ready", timeout=300_000)
        loaded = time.perf_counter() - began
        page.wait_for_selector("#demo-words .word")
        if arguments.against:
            with served(arguments.against) as address:
                second = browser.new_page(reduced_motion="reduce")
                second.goto(address)
                second.wait_for_selector("#demo-words .word", timeout=300_000)
        for photo in photos:
            data = photo.read_bytes()
            if arguments.against:
                found = second.evaluate(ASK, base64.b64encode(data).decode())
                others.append(found["result"]["seconds"]["encoder"])
            found = page.evaluate(ASK, base64.b64encode(data).decode())
            result, expected = found["result"], captioner.caption(data)
            picture = captioner.preprocesses[0].visible(open_image(data))
            square = np.frombuffer(base64.b64decode(found["square"]), np.uint8).reshape(*picture.size, 3)
            difference = np.abs(square.astype(int) - np.asarray(picture.convert("RGB")))
            worst, exact = max(worst, int(difference.max())), exact + int(not difference.any())
            means.append(float(difference.mean()))
            seconds.append(found["seconds"])
            work.append(tuple(result["seconds"].values()))
            marks += result["unsure"] == expected.unsure
            if expected.ood_score is not None:
                ood_scores.append(abs(result["ood_score"] - expected.ood_score))
            if result["text"] == expected.text:
                same += 1
                sure.append(abs(result["confidence"] - expected.confidence))
                maps.append(max(
                    float(np.abs(np.array(one["attention"]) - other.attention).max())
                    for one, other in zip(result["words"], expected.words) if other.attention is not None
                ))  # fmt: skip
            else:
                texts.append(f"    {photo.name}\n      page    {result['text']}\n      python  {expected.text}")
        browser.close()
    count, parts = len(photos), [statistics.median(part) for part in zip(*work)]
    print(f"model files            {sum(file.stat().st_size for file in (site / 'model').iterdir()) / 1e6:.2f} MB")
    files = [file for file in site.rglob("*") if file.is_file() and site / "model" not in file.parents]
    rest = sum(file.stat().st_size for file in files)
    print(f"page and runtime       {rest / 1e6:.2f} MB")
    print(f"from address to ready  {loaded:.1f} s")
    print(f"first caption          {seconds[0]:.2f} s")
    print(f"captions               {statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (slowest)")
    print("  of it                pixels {:.2f}, encoder {:.2f}, words {:.2f} s".format(*parts))
    print(
        f"pixels as Pillow's     {exact} of {count} photos exactly; greatest difference {worst}, mean {max(means):.3f}"
    )
    if others:
        other = statistics.median(others)
        print(f"  the other encoder    {other:.2f} s, {other / parts[1]:.2f} times as long")
    print(f"same words             {same} of {count}: {same / count:.1%}; same unsure mark: {marks}")
    print(f"of these, confidence differs by {statistics.median(sure):.4f} (median), {max(sure):.4f} (most)")
    print(f"  a word's map by      {max(maps):.4f} (most)")
    print(f"OOD score differs by   {max(ood_scores, default=0):.4f} (most)")
    print(*texts, sep="\n")


if __name__ == "__main__":
    main()
