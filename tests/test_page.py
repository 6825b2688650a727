"""The page in a real browser: captions as in Python, every input, keyboard, a phone, offline, no other hosts."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import browsing
import numpy as np
import pytest
from browsing import CONTROLS_WITHOUT_NAME, PATIENCE, address, opened, served, watch
from drawings import EVERY
from PIL import Image
from serving import serving

from sightline.engine.captioner import Captioner, load
from sightline.explain import explain
from sightline.explain.heatmap import scaled
from sightline.io.images import open_image
from sightline.serve.browser import PAGE
from sightline.tokenizers import tokenizer_from_json
from sightline.tokenizers.content_words import word_groups

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")

from sightline.serve.site import ENGINE, FAILED, WAITING

CAPTION = """async ([data, options]) => {
  const file = new Blob([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))]);
  const result = await sightline.caption(file, options), square = await sightline.square(file);
  return { result, square: Array.from(square) };
}"""


@pytest.fixture(scope="session")
def url(site: Path) -> Iterator[str]:
    with served(site) as server:
        yield address(server)


@pytest.fixture(scope="session")
def python(site: Path) -> Captioner:
    return load(site / "model", runtime="onnx")


# -- the same words ---------------------------------------------------------------------------------------------------


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photos() -> dict[str, tuple[bytes, int]]:
    """Photos of many kinds, each with the greatest difference of a pixel that decoding may make."""
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


def test_captions_are_those_of_python(browser: Any, url: str, python: Captioner) -> None:
    with opened(browser, url, reduced_motion="reduce") as page:
        texts = set()
        for name, (data, tolerance) in photos().items():
            for options in ({}, {"beam": 1}, {"beam": 7}):
                sliders = {"temperature": 0, **options} if options else None
                found = page.evaluate(CAPTION, [base64.b64encode(data).decode(), sliders])
                result, expected = found["result"], python.caption(data, **options)
                assert result["text"] == expected.text, (name, options)
                assert result["sentence"] == expected.sentence()
                assert result["certainty"] == expected.certainty()
                assert result["confidence"] == pytest.approx(expected.confidence, abs=2e-3)
                assert result["ood_score"] == pytest.approx(expected.ood_score, abs=5e-3)
                for one, other in zip(result["words"], expected.words, strict=True):
                    assert one["text"] == other.text
                    assert one["confidence"] == pytest.approx(other.confidence, abs=2e-3)
                    np.testing.assert_allclose(one["attention"], other.attention, atol=2e-3)
                heat_maps = scaled([word.attention for word in expected.words])
                np.testing.assert_allclose([word["heatmap"] for word in result["words"]], heat_maps, atol=0.02)
                texts.add(expected.text)
            picture = python.preprocesses[0].visible(open_image(data))
            square = np.array(found["square"]).reshape(*picture.size, 3)
            assert np.abs(square - np.asarray(picture.convert("RGB")).astype(int)).max() <= tolerance, name
        assert len(texts) > 2, "photos that all get one caption compare nothing"


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
        {"beam": 3, "length_penalty": 1.0, "max_length": 9, "no_repeat_ngram": 0, "no_repeat_words": True},
    )):  # fmt: skip
        values = json.loads(manifest.read_text())
        values["decoding"] |= decoding
        if decoding.get("no_repeat_words"):
            values["word_groups"] = word_groups(tokenizer_from_json(values["tokenizer"]))
        manifest.write_text(json.dumps(values))
        python = load(manifest.parent, runtime="onnx")
        if python.options().no_repeat_words:
            changed = [python.caption(photo) != python.caption(photo, no_repeat_words=False) for photo in data]
            assert any(changed), "captions that repeat no word anyway compare nothing"
        with served(tmp_path / "site") as server, opened(browser, address(server), reduced_motion="reduce") as page:
            for photo in data:
                result = page.evaluate(CAPTION, [base64.b64encode(photo).decode(), None])["result"]
                expected = python.caption(photo)
                assert (result["text"], result["finished"]) == (expected.text, expected.finished), number


# -- using the page ---------------------------------------------------------------------------------------------------


def sentence(page: Any) -> str:
    page.wait_for_selector("#confidence:not([hidden])")
    return page.text_content("#sentence")


def hide_result(page: Any) -> None:
    """So that `sentence` waits for the next one."""
    page.evaluate("document.querySelector('#confidence').hidden = true")


def check_ranking(page: Any, selector: str) -> None:
    """A word and its alternatives, in the order of the numbers, none below 1%."""
    numbers = [int(text.removesuffix("%")) for text in page.locator(f"{selector} .number").all_text_contents()]
    assert len(numbers) > 1 and numbers == sorted(numbers, reverse=True) and numbers[-1] >= 1
    assert page.locator(f"{selector} .chosen").count() == 1


SEND = """async ([data, how]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "photo.png", { type: "image/png" }));
  const event = how === "paste" ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true })
    : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


def test_every_input_takes_a_photo(browser: Any, url: str, python: Captioner) -> None:
    data = photos()["drawn, lossless"][0]
    expected = python.caption(data)
    with opened(browser, url, reduced_motion="reduce") as page:
        page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": data})
        assert sentence(page).lower() == expected.sentence().lower()
        assert page.get_attribute("#photo", "alt") == expected.sentence()
        assert expected.sentence() in page.text_content("#status")
        for how in ("paste", "drop"):
            hide_result(page)
            page.evaluate(SEND, [base64.b64encode(data).decode(), how])
            assert sentence(page).lower() == expected.sentence().lower(), how
        for click in ("[data-example=coffee]", "#camera"):
            page.click("#home")
            hide_result(page)
            page.click(click)
            if click == "#camera":
                page.click("#shutter:enabled")
            assert sentence(page)
        assert page.evaluate("document.querySelector('video').srcObject") is None, "the camera stays on"
        for kind in ("JPEG", "PNG", "WEBP"):
            whole = encoded(EVERY[0].draw((300, 200)), kind)
            half = {"name": "x", "mimeType": f"image/{kind.lower()}", "buffer": whole[: len(whole) // 2]}
            page.set_input_files("#file", half)
            page.locator("#result-error", has_text="This photo is cut off or damaged").wait_for()
            page.set_input_files("#file", {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": b"no photo at all"})
            page.locator("#result-error", has_text="This file is not an image: use JPEG, PNG,").wait_for()
        tiff = encoded(EVERY[0].draw((30, 20)), "TIFF")
        for kind, start in (("TIFF", tiff), ("HEIC", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(64))):
            page.set_input_files("#file", {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": start})
            page.locator("#result-error", has_text=f"This browser cannot read {kind}: use sightline caption").wait_for()
            for place in ("#result-error", "li:last-child .card-error"):
                commands = page.locator(f"{place} code").all_text_contents()
                assert commands == ["sightline caption", "sightline serve --server-page"], place
        page.click("#home")
        page.wait_for_selector("#welcome:not([hidden])")
        page.go_forward()
        page.wait_for_selector("#result:not([hidden])")


def test_words_options_and_keys(browser: Any, url: str, python: Captioner) -> None:
    data = photos()["noise"][0]
    expected = python.caption(data)
    with opened(browser, url) as page:
        page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": data})
        sentence(page)
        page.wait_for_selector("#stage canvas.visible", state="detached")  # the animation is over
        page.click("#sentence .word >> nth=1")
        assert page.get_attribute("#sentence .word >> nth=1", "aria-pressed") == "true"
        assert expected.words[1].text in page.text_content("#legend")
        page.wait_for_selector("#stage canvas.visible")
        assert page.text_content("#selected-word .facts") == expected.words[1].certainty() != ""
        assert page.text_content("#meaning") in explain(python, data).page()
        check_ranking(page, "#selected-word .ranking")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#sentence .word >> nth=2", "aria-pressed") == "true"
        page.keyboard.press("Escape")
        assert page.locator("#sentence [aria-pressed=true]").count() == 0
        if expected.unsure:
            page.click("#approve")
        page.click("#copy")
        page.wait_for_function("document.querySelector('#copy').textContent === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == expected.description()
        page.click("#options summary")
        page.focus("#beam")
        page.keyboard.press("End")
        page.wait_for_selector("#confidence", state="hidden")
        assert sentence(page).lower() == python.caption(data, beam=10).sentence().lower()
        page.focus("#temperature")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#confidence", state="hidden")
        assert sentence(page)
        assert page.is_visible("#again") and page.is_disabled("#beam")


def test_it_fits_a_phone_and_every_control_has_a_name(browser: Any, url: str) -> None:
    sizes = {"viewport": {"width": 360, "height": 700}, "is_mobile": True, "has_touch": True}
    with opened(browser, url, **sizes, reduced_motion="reduce") as page:
        for number in range(2):
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert page.evaluate(CONTROLS_WITHOUT_NAME) == 0
            if not number:
                page.tap("[data-example=dog]")
                sentence(page)


def test_the_explanation_page_works_in_the_browser(browser: Any, python: Captioner, tmp_path: Path) -> None:
    explanation = explain(python, photos()["drawn, lossless"][0])
    explanation.save(tmp_path / "explained.html")
    with browser.context(reduced_motion="reduce", viewport={"width": 360, "height": 700}) as context:
        page, url = context.new_page(), (tmp_path / "explained.html").as_uri()
        errors = watch(page, url)
        page.goto(url)
        assert page.text_content("h1").lower() == explanation.caption.sentence().lower()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("canvas.visible").count() == 0
        page.click(".word >> nth=1")
        page.wait_for_selector("#heat-map.visible")
        page.wait_for_function(DRAWN)
        assert page.is_visible("#layers")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute(".word >> nth=2", "aria-pressed") == "true"
        check_ranking(page, ".panel:visible .ranking")
        page.keyboard.press("Escape")
        assert page.locator("canvas.visible").count() == 0
        assert not errors


DRAWN = """() => {
  const canvas = document.querySelector("#heat-map"), { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return new Set(pixels).size > 50; // a photo with a heat map has many values, an empty canvas one
}"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see a process's files")
def test_no_process_outside_the_browser_s_group_keeps_its_pipes(browser: Any) -> None:
    def pipes_of(process: object, numbers: str = "*") -> set[str]:
        found = set()
        for file in Path(f"/proc/{process}/fd").glob(numbers):
            with suppress(OSError):  # it has just been closed
                found.add(str(file.readlink()))
        return {name for name in found if name.startswith(("pipe:", "socket:"))}

    with browser.context() as context:
        context.new_page()
        pipes = pipes_of(browser.process, "[1-4]")  # to Playwright
        holders = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # another user's process, or one that has just ended
                if pipes_of(process.name) & pipes:
                    holders.add(os.getpgid(int(process.name)))
        assert pipes and holders == {browser.group}


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_browser_that_does_not_close_a_context_is_killed_and_started_anew(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "CLOSING", 0.5)
    with pytest.warns(UserWarning, match="did not close a context"), browser.context() as context:
        context.new_page()
        os.killpg(browser.group, signal.SIGSTOP)
    monkeypatch.undo()
    with browser.context() as context:
        page = context.new_page()
        page.goto("data:text/html,<p>there</p>")
        assert page.inner_text("p") == "there"


def test_it_works_offline_after_the_first_visit(browser: Any, site: Path) -> None:
    with served(site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        page.wait_for_selector("body[data-offline=ready]")
        page.click("[data-example=cat]")
        before = sentence(page)
        server.shutdown()
        server.server_close()
        page.reload()
        page.wait_for_selector("body.ready")
        page.click("[data-example=cat]")
        assert sentence(page) == before


def test_the_server_s_page_obeys_its_content_security_policy(browser: Any, site: Path) -> None:
    with serving("--model", site / "model", "--page-model", site / "model") as server:
        with opened(browser, f"http://127.0.0.1:{server.port}/", reduced_motion="reduce") as page:
            assert page.evaluate("crossOriginIsolated"), "one thread where there could be more"
            page.click("[data-example=dog]")
            assert sentence(page)
            assert page.get_attribute("nav a", "href") == "docs"
        assert server.metric("sightline_photos_total") == 0, "a photo went to the server"


def test_without_a_model_for_the_browser_the_server_captions(browser: Any, site: Path) -> None:
    model = site / "model"
    with serving("--model", model, SIGHTLINE_TOKEN="open-sesame") as server, browser.context() as context:
        page, url = context.new_page(), f"http://127.0.0.1:{server.port}/"
        errors = watch(page, url)
        context.set_default_timeout(PATIENCE)
        page.goto(url)
        page.click("[data-example=dog]")
        page.get_by_text("The server needs a token first.").wait_for()
        page.fill("#token", "open-sesame")
        page.click("[data-example=dog]")
        assert sentence(page)
        page.click("#sentence .word >> nth=0")
        page.wait_for_selector("#stage canvas.visible")
        check_ranking(page, "#selected-word .ranking")
        assert [line for line in errors if "401" not in line] == []
        page.set_input_files("#file", {"name": "my_notes.jpg", "mimeType": "image/jpeg", "buffer": b"no photo"})
        page.locator("#result-error", has_text="This file is not an image: use JPEG,").wait_for()
        errors[:] = [line for line in errors if "422" not in line]
        page.goto(f"{url}docs")
        page.get_by_text("/v1/explain").wait_for()
        assert [line for line in errors if "401" not in line] == [], "Swagger UI breaks the content security policy"


def test_the_page_waits_for_the_browser_s_model_and_requests_nothing_that_is_missing(
    browser: Any, tmp_path: Path
) -> None:
    shutil.copytree(PAGE, tmp_path, dirs_exist_ok=True)
    limits = {"max_bytes": 10**6}
    health = {"model": "tiny", "token_required": False, "beam": 3, "limits": limits}
    (tmp_path / "healthz").write_text(json.dumps(health))
    index = tmp_path / "index.html"
    built = index.read_text()
    made = "<!doctype html><link rel=icon href=data:,><meta name=sightline-engine content=browser><p>with its model</p>"

    def on_server(note: str, pending: str) -> str:
        return built.replace(ENGINE, f'<meta name="sightline-engine" content="server" data-note="{note}"{pending}>')

    for after, in_use, expected in (
        (made, False, "with its model"),
        (made, True, "is ready: reload this page"),
        (on_server(FAILED, ""), True, FAILED),
    ):
        index.write_text(on_server(WAITING, " data-pending"))
        with served(tmp_path) as server, browser.context() as context:
            page = context.new_page()
            errors = watch(page, address(server))
            page.clock.install()
            page.goto(address(server))
            page.wait_for_selector("body.ready", timeout=PATIENCE)
            page.evaluate(f"document.getElementById('result').hidden = {json.dumps(not in_use)}")
            with page.expect_response(address(server), timeout=PATIENCE):
                page.clock.fast_forward(3000)  # it checks, and goes on waiting
            assert WAITING in page.text_content("#note") and expected not in page.text_content("body")
            index.write_text(after)
            page.clock.fast_forward(3000)
            page.get_by_text(expected).wait_for(timeout=PATIENCE)
            page.wait_for_load_state()  # Chromium may never close a page that is being left
        assert not errors
