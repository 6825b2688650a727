"""How much memory Chromium takes while the page captions many photos of 12 megapixels.

    python benchmarks/page_memory.py [--photos 200] [--site FOLDER]

Needs Linux, playwright and Chromium (``--browser``, else the one on the PATH). ``--site`` is what ``sightline export
--web`` wrote; without it, the default model's page is used. Counts the proportional set size of all of Chromium's
processes, after a garbage collection, and what the page itself still holds: object URLs and their bytes.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from page import page_parser, served, site_folder
from PIL import Image

from sightline.serve.browser import PAGE

SIZE = (4000, 3000)
AT = (1, 20, 100, 200)
LIVE = """() => {
  const live = (window.live = new Map()), { createObjectURL, revokeObjectURL } = URL;
  URL.createObjectURL = (blob) => { const url = createObjectURL(blob); live.set(url, blob.size); return url; };
  URL.revokeObjectURL = (url) => { live.delete(url); revokeObjectURL(url); };
}"""
DONE = """() => document.querySelectorAll("#cards li[data-state=done]").length"""


def main() -> None:
    arguments = page_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        site = site_folder(arguments.site, Path(scratch))
        photos = make_photos(Path(scratch), arguments.photos)
        print(
            f"{len(photos)} photos, {sum(photo.stat().st_size for photo in photos) / 1e6:.0f} MB of files", flush=True
        )
        measure(site, photos, arguments.browser)


def make_photos(folder: Path, count: int) -> list[Path]:
    """The example photos, enlarged and a little noisy; each file differs from all others by its last bytes."""
    noise = Image.effect_noise((SIZE[0] // 4, SIZE[1] // 4), 40).resize(SIZE).convert("RGB")
    made, photos = [], []
    for path in sorted(PAGE.glob("examples/*[a-z].jpg")):
        with Image.open(path) as photo, io.BytesIO() as file:
            Image.blend(photo.convert("RGB").resize(SIZE), noise, 0.1).save(file, "JPEG", quality=85)
            made.append(file.getvalue())
    for number in range(count):
        photos.append(folder / f"{number}.jpg")
        photos[-1].write_bytes(made[number % len(made)] + f"{number}".encode())
    return photos


def measure(site: Path, photos: list[Path], path: str) -> None:
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")
        page.set_default_timeout(0)
        processes, protocol = browser.new_browser_cdp_session(), page.context.new_cdp_session(page)
        page.goto(address)
        page.wait_for_selector("body.ready")
        page.wait_for_selector("#demo-words .word")
        page.evaluate(LIVE)
        report(0, page, processes, protocol)
        page.set_input_files("#file", photos)
        for count in sorted({*AT, len(photos)}):
            while count <= len(photos) and page.evaluate(DONE) < count:
                time.sleep(1)
            if count <= len(photos):
                report(count, page, processes, protocol)
        page.click("#remove-all")
        report(0, page, processes, protocol)
        browser.close()


def report(count: int, page: Any, processes: Any, protocol: Any) -> None:
    protocol.send("HeapProfiler.collectGarbage")
    pids = [process["id"] for process in processes.send("SystemInfo.getProcessInfo")["processInfo"]]
    total = sum(proportional_size(pid) for pid in pids)
    held, size = page.evaluate("[live.size, [...live.values()].reduce((sum, bytes) => sum + bytes, 0)]")
    print(f"{count:4} captioned: {total / 1e6:5.0f} MB; {held} object URLs with {size / 1e6:.1f} MB", flush=True)


def proportional_size(pid: int) -> int:
    """In bytes; 0 for a process that has ended."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


if __name__ == "__main__":
    main()
