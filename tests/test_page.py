"""The page in a real browser: the words Python says, photos by every door, keys, a phone, offline, nobody asked."""

from __future__ import annotations

import base64
import functools
import http.server
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawings import EVERY
from PIL import Image
from serving import serving

from sightline.engine.captioner import Captioner, load
from sightline.engine.confidence import Captions, Confidence, Photos, Words, encode_halves
from sightline.io.images import open_image
from sightline.serve.built import copy_page

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline[serve]'")

from sightline.serve.site import FAILED, WAITING
from sightline.serve.static import fallback

WEB = Path(__file__).parents[1] / "web"
PATIENCE = 120_000  # milliseconds: machines that run tests may have other work
IN_NPM = "import('@sparticuz/chromium').then((own) => own.default.executablePath()).then(console.log)"

ASK = """async ([data, wish]) => {
  const file = new Blob([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))]);
  const told = await sightline.caption(file, wish), square = await sightline.square(file);
  return { told, square: Array.from(square) };
}"""


# -- a browser, a site ------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install it")
    path = find_browser()
    arguments = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


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
    captions = Captions(intercept=0.4, words=1.5, log_probability=0.9, unsure_below=0.2)
    mean, matrix = random.standard_normal(dimension) / 8, random.standard_normal((4, dimension)) / 4
    photos = Photos(
        dimension=dimension, directions=4, mean=encode_halves(mean), matrix=encode_halves(matrix), limit=1.3
    )  # fmt: skip
    return Confidence(words=words, captions=captions, photos=photos)


@pytest.fixture(scope="module")
def site(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``sightline export --web`` writes, with a model of a few milliseconds that was calibrated at random."""
    pytest.importorskip("onnxscript", reason="exporting needs it: pip install 'sightline[onnx]'")
    from sightline.onnx.export import export

    folder = tmp_path_factory.mktemp("page") / "site"
    copy_page(folder)
    export(tiny_model, web=folder / "model")
    (folder / "model" / "confidence.json").write_text(json.dumps(calibration(32).to_json()))
    return folder


@pytest.fixture(scope="module")
def python(site: Path) -> Captioner:
    return load(site / "model", runtime="onnx")


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """The page, once its model is there; anything it asks elsewhere and any error fails the test."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write", "camera"], **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: None if own(request.url, url) else faults.append(f"asked {request.url}"))
    page.goto(url)
    page.wait_for_selector("body.ready")
    page.wait_for_selector("#demo-words .word")  # the first screen's own example has been captioned
    yield page
    assert not faults
    context.close()


def own(asked: str, url: str) -> bool:
    return asked.startswith((url, "blob:", "data:"))


# -- the same words ---------------------------------------------------------------------------------------------------


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photos() -> dict[str, tuple[bytes, int]]:
    """Photos of many kinds, each with the greatest difference of a pixel that decoding may bring."""
    random = np.random.default_rng(2)
    turned = Image.Exif()
    turned[0x0112] = 6
    clear = EVERY[3].draw((90, 60)).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    noise = Image.fromarray(random.integers(0, 256, (70, 50, 3), np.uint8))
    return {
        "drawn, lossless": (encoded(EVERY[0].draw((300, 200)), "PNG"), 0),
        "noise": (encoded(noise, "PNG"), 0),
        "tall": (encoded(EVERY[1].draw((60, 400)), "PNG"), 0),
        "wide": (encoded(EVERY[2].draw((500, 40)), "PNG"), 0),
        "smaller than the model's square": (encoded(EVERY[4].draw((20, 14)), "PNG"), 0),
        "as large as it": (encoded(EVERY[5].draw((32, 32)), "PNG"), 0),
        "clear in part": (encoded(clear, "PNG"), 2),
        "grey": (encoded(EVERY[6].draw((120, 90)).convert("L"), "PNG"), 0),
        "JPEG": (encoded(EVERY[7].draw((256, 192)), "JPEG", quality=92), 3),
        "JPEG on its side": (encoded(EVERY[8].draw((256, 160)), "JPEG", quality=92, exif=turned), 3),
        "WebP": (encoded(EVERY[9].draw((200, 150)), "WEBP", lossless=True), 0),
    }


def test_the_page_says_what_python_says(browser: Any, site: Path, python: Captioner) -> None:
    with served(site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        texts = set()
        for name, (data, tolerance) in photos().items():
            for options in ({}, {"beam": 1}, {"beam": 7}):
                wish = {"temperature": 0, **options} if options else None
                found = page.evaluate(ASK, [base64.b64encode(data).decode(), wish])
                told, expected = found["told"], python.caption(data, **options)
                assert told["text"] == expected.text, (name, options)
                assert told["sentence"] == expected.sentence()
                assert told["certainty"] == expected.certainty()
                assert told["confidence"] == pytest.approx(expected.confidence, abs=2e-3)
                assert told["ood_score"] == pytest.approx(expected.ood_score, abs=5e-3)
                for one, other in zip(told["words"], expected.words, strict=True):
                    assert one["text"] == other.text
                    assert one["confidence"] == pytest.approx(other.confidence, abs=2e-3)
                    np.testing.assert_allclose(one["attention"], other.attention, atol=2e-3)
                texts.add(expected.text)
            picture = python.preprocesses[0].visible(open_image(data))
            square = np.array(found["square"]).reshape(*picture.size, 3)
            assert np.abs(square - np.asarray(picture.convert("RGB")).astype(int)).max() <= tolerance, name
        assert len(texts) > 2, "photos that all get one sentence compare nothing"


def test_every_rule_of_the_search_holds_in_the_page(
    browser: Any, site: Path, tmp_path: Path, tiny_flickr8k_kept: Path
) -> None:
    """Repetition, shortest and longest length, unknown words and the length's weight, as the manifest asks for them."""
    shutil.copytree(site, tmp_path / "site")
    manifest = tmp_path / "site/model/sightline.json"
    data = [path.read_bytes() for path in sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())[:3]]
    for number, decoding in enumerate((
        {"beam": 3, "length_penalty": 0.0, "min_length": 5, "no_repeat_ngram": 1},
        {"beam": 4, "length_penalty": 1.5, "max_length": 7, "no_repeat_ngram": 2, "allow_unknown": True},
    )):  # fmt: skip
        values = json.loads(manifest.read_text())
        values["decoding"] |= decoding
        manifest.write_text(json.dumps(values))
        python = load(manifest.parent, runtime="onnx")
        with served(tmp_path / "site") as server, opened(browser, address(server), reduced_motion="reduce") as page:
            for photo in data:
                told = page.evaluate(ASK, [base64.b64encode(photo).decode(), None])["told"]
                expected = python.caption(photo)
                assert (told["text"], told["finished"]) == (expected.text, expected.finished), number


# -- hands ------------------------------------------------------------------------------------------------------------


def said(page: Any) -> str:
    page.wait_for_selector("#told:not([hidden])")
    return page.text_content("#sentence")


HAND_OVER = """async ([data, how]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], "photo.png", { type: "image/png" }));
  const event = how === "paste" ? new ClipboardEvent("paste", { clipboardData: carried, bubbles: true })
    : new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


def test_a_photo_comes_in_by_every_door(browser: Any, site: Path, python: Captioner) -> None:
    data = photos()["drawn, lossless"][0]
    expected = python.caption(data)
    with served(site) as server, opened(browser, address(server)) as page:
        page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": data})
        assert said(page).lower() == expected.sentence().lower()
        assert page.get_attribute("#photo", "alt") == expected.sentence()
        assert expected.sentence() in page.text_content("#status")
        for how in ("paste", "drop"):
            page.reload()
            page.evaluate(HAND_OVER, [base64.b64encode(data).decode(), how])
            assert said(page).lower() == expected.sentence().lower(), how
        page.reload()
        page.click("[data-example=coffee]")
        assert said(page)
        page.reload()
        page.click("#camera")
        page.click("#shutter:enabled")
        assert said(page)
        assert page.evaluate("document.querySelector('video').srcObject") is None, "the camera stays on"
        for kind in ("JPEG", "PNG", "WEBP"):
            whole = encoded(EVERY[0].draw((300, 200)), kind)
            half = {"name": "x", "mimeType": f"image/{kind.lower()}", "buffer": whole[: len(whole) // 2]}
            page.set_input_files("#file", half)
            page.wait_for_function("document.querySelector('#late').textContent.includes('is cut off or damaged')")
            page.set_input_files("#file", {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": b"no photo at all"})
            page.wait_for_function("document.querySelector('#late').textContent.includes('cannot read that photo')")
        page.click("#home")
        page.wait_for_selector("#welcome:not([hidden])")
        page.go_forward()
        page.wait_for_selector("#result:not([hidden])")


def test_words_controls_and_keys(browser: Any, site: Path, python: Captioner) -> None:
    data = photos()["noise"][0]
    expected = python.caption(data)
    with served(site) as server, opened(browser, address(server)) as page:
        page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": data})
        said(page)
        page.wait_for_selector("#stage canvas.lit", state="detached")  # the show is over
        page.click("#sentence .word >> nth=1")
        assert page.get_attribute("#sentence .word >> nth=1", "aria-pressed") == "true"
        assert expected.words[1].text in page.text_content("#legend")
        page.wait_for_selector("#stage canvas.lit")
        assert page.locator("#chosen .ranking li").count() == 5
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#sentence .word >> nth=2", "aria-pressed") == "true"
        page.keyboard.press("Escape")
        assert page.locator("#sentence [aria-pressed=true]").count() == 0
        page.click("#copy")
        page.wait_for_function("document.querySelector('#copy').textContent === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == expected.sentence()
        page.click("#tune summary")
        page.focus("#beam")
        page.keyboard.press("End")
        page.wait_for_selector("#told", state="hidden")
        assert said(page).lower() == python.caption(data, beam=10).sentence().lower()
        page.focus("#temperature")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#told", state="hidden")
        assert said(page)
        assert page.is_visible("#again") and page.is_disabled("#beam")


def test_it_fits_a_phone_and_every_control_has_a_name(browser: Any, site: Path) -> None:
    sizes = {"viewport": {"width": 360, "height": 700}, "is_mobile": True, "has_touch": True}
    with served(site) as server, opened(browser, address(server), **sizes, reduced_motion="reduce") as page:
        for number in range(2):
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            nameless = "[...document.querySelectorAll('button, input:not([aria-hidden]), a, summary')].filter((own) => "
            nameless += "own.checkVisibility() && !(own.textContent.trim() || own.ariaLabel || own.labels?.length || "
            nameless += "own.querySelector('[alt]'))).length"
            assert page.evaluate(nameless) == 0
            if not number:
                page.tap("[data-example=dog]")
                said(page)


def test_it_works_offline_after_the_first_visit(browser: Any, site: Path) -> None:
    with served(site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        page.wait_for_selector("body[data-offline=ready]")
        page.click("[data-example=cat]")
        before = said(page)
        server.shutdown()
        server.server_close()
        page.reload()
        page.wait_for_selector("body.ready")
        page.click("[data-example=cat]")
        assert said(page) == before


def test_the_server_s_page_runs_in_the_browser_under_its_policy(browser: Any, site: Path, tiny_model: Path) -> None:
    with serving("--model", tiny_model, "--page-model", site / "model") as server:
        with opened(browser, f"http://127.0.0.1:{server.port}/", reduced_motion="reduce") as page:
            assert page.evaluate("crossOriginIsolated"), "one thread where there could be more"
            page.click("[data-example=dog]")
            assert said(page)
            assert page.get_attribute("nav a", "href") == "docs"
        assert server.metric("sightline_photos_total") == 0, "a photo went to the server"


def test_the_plain_page_waits_for_the_other_one_without_asking_for_what_is_not_there(
    browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "healthz").write_text(json.dumps({"model": "tiny", "token_required": False, "limits": {}}))
    page_file, faults = tmp_path / "index.html", []
    for after, in_use, expected in (
        (b"<!doctype html><p id=made>made</p>", False, "made"),
        (b"<!doctype html><p id=made>made</p>", True, "is ready: load this page again"),
        (fallback(FAILED).body, True, FAILED),
    ):
        page_file.write_bytes(fallback(WAITING, waiting=True).body)
        with served(tmp_path) as server, browser.new_context() as context:
            page = context.new_page()
            page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
            page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
            with page.expect_response(address(server)):
                page.goto(address(server))
            page.evaluate(f"document.getElementById('result').hidden = {json.dumps(not in_use)}")
            with page.expect_response(address(server), timeout=PATIENCE):
                pass  # it has looked, and waits on
            assert WAITING in page.text_content("#note")
            page_file.write_bytes(after)
            page.get_by_text(expected).wait_for(timeout=PATIENCE)
        assert not faults
