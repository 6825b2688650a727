"""Many photos on the page, in a real browser: captions to edit, undo, order, and every download read back."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import zipfile
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from browsing import CONTROLS_WITHOUT_NAME, INT8_CONFIDENCE, INT8_OOD_SCORE, address, opened, served
from drawings import EVERY
from PIL import Image
from serving import made_once

from sightline.engine.captioner import load
from sightline.nn.hub import DEFAULT_MODEL
from sightline.serve.browser import MODEL_FILES, PAGE, copy_model, copy_page
from sightline.types import COLUMNS, UNSURE, Caption, level_of

EXAMPLES = PAGE / "examples"
PHONE = {"viewport": {"width": 360, "height": 700}, "is_mobile": True, "has_touch": True}

DROP = """async (files) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], name));
  }
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="session")
def default_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``sightline export default --web`` writes; only to be read."""

    def make(folder: Path) -> None:
        copy_page(folder)
        copy_model(folder / "model", DEFAULT_MODEL)

    return made_once(tmp_path_factory, "default-site", make)


def files() -> dict[str, bytes]:
    """Real photos; a drawing, of which the model is unsure; a name that a spreadsheet would run; and a broken file."""
    named = {"dog.jpg": "dog", "=photo & co.jpg": "photographer", "cat.jpg": "cat"}
    found = {name: (EXAMPLES / f"{example}.jpg").read_bytes() for name, example in named.items()}
    drawing = io.BytesIO()
    EVERY[0].draw((400, 300)).save(drawing, "PNG")
    return {**found, "drawing.png": drawing.getvalue(), "broken.jpg": found["dog.jpg"][:20_000]}


def drop(page: Any, chosen: dict[str, bytes]) -> None:
    page.evaluate(DROP, [[name, base64.b64encode(data).decode()] for name, data in chosen.items()])
    page.wait_for_selector("#photos:not([hidden])")
    page.wait_for_selector("#progress", state="hidden")


def names(page: Any) -> list[str]:
    return list(page.locator("#cards .name").all_text_contents())


def caption_field(page: Any, name: str) -> Any:
    return page.get_by_label(f"Caption of {name}", exact=True)


def edit(page: Any, name: str, text: str) -> None:
    caption_field(page, name).fill(text)
    caption_field(page, name).blur()


def download(page: Any, kind: str) -> bytes:
    with page.expect_download() as waiting:
        page.click(f"[data-download={kind}]")
    return Path(waiting.value.path()).read_bytes()


def sidecars(page: Any) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(download(page, "zip"))) as file:
        assert file.testzip() is None
        return {name: file.read(name).decode() for name in file.namelist()}


def alt_texts(page: Any) -> dict[str, str]:
    html = download(page, "html").decode()
    return {unescape(src): unescape(alt) for src, alt in re.findall(r'<img src="([^"]*)" alt="([^"]*)">', html)}


def check_row(row: dict[str, str], name: str, expected: Caption) -> None:
    assert row["source"] == (f"'{name}" if name.startswith("=") else name)
    assert row["caption"] == expected.text
    assert float(row["confidence"]) == pytest.approx(expected.confidence, abs=INT8_CONFIDENCE)
    assert float(row["ood_score"]) == pytest.approx(expected.ood_score, abs=INT8_OOD_SCORE)
    assert (row["unsure"], row["finished"], row["error"]) == (str(expected.unsure).lower(), "true", "")


@pytest.fixture(scope="module")
def expected(default_site: Path) -> dict[str, Caption]:
    """Python's captions of ``files()``."""
    python = load(default_site / "model", runtime="onnx")
    captions = {name: python.caption(data) for name, data in files().items() if name != "broken.jpg"}
    assert 0 < sum(caption.unsure for caption in captions.values()) < 4, "photos of both kinds"
    return captions


def unsure_of(captions: dict[str, Caption]) -> list[str]:
    return [name for name, caption in captions.items() if caption.unsure]


def test_captions_of_the_default_model_are_downloaded(
    browser: Any, default_site: Path, expected: dict[str, Caption]
) -> None:
    chosen, unsure = files(), unsure_of(expected)
    with served(default_site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        megabytes = sum((default_site / "model" / name).stat().st_size for name in MODEL_FILES) / 1e6
        assert f"{megabytes:.1f} MB," in page.text_content("#about")
        drop(page, chosen)
        assert page.text_content("#counts") == f"4 captioned, {len(unsure)} of them unsure · 1 failed"
        assert "on photos like those the model was trained on, fewer on others" in page.text_content("#percentages")
        assert names(page)[: len(unsure) + 1] == [*unsure, "broken.jpg"]
        page.select_option("#order", "added")
        assert names(page) == list(chosen)
        assert page.locator(".card-error:visible").all_text_contents() == [
            "This photo is cut off or damaged: copy or download it again."
        ]
        for name, caption in expected.items():
            assert caption_field(page, name).input_value() == caption.description()

        rows = list(csv.DictReader(io.StringIO(download(page, "csv").decode(), newline="")))
        assert list(rows[0]) == [*COLUMNS, "error"]
        for row, (name, caption) in zip(rows, expected.items(), strict=False):
            check_row(row, name, caption)
        levels = page.locator("#cards .status").evaluate_all("found => found.map((one) => one.dataset.level)")
        shown = [UNSURE if row["unsure"] == "true" else level_of(float(row["confidence"])) for row in rows[:4]]
        assert levels == [*shown, "failed"]
        failed = dict.fromkeys(COLUMNS, "") | {"source": "broken.jpg"}
        assert rows[4] == failed | {"error": "this photo is cut off or damaged: copy or download it again"}
        rows = json.loads(download(page, "json"))
        assert [one["unsure"] for one in rows] == [caption.unsure for caption in expected.values()]
        for one, caption in zip(rows, expected.values(), strict=True):
            same = {**caption.as_dict(), "source": one["source"], "checked": False}
            assert one.keys() == same.keys() and one["caption"] == same["caption"]
            assert [word["text"] for word in one["words"]] == [word["text"] for word in same["words"]]

        sure = {name: caption for name, caption in expected.items() if not caption.unsure}
        assert sidecars(page) == {f"{Path(name).stem}.txt": f"{caption.text}\n" for name, caption in sure.items()}
        encoded = {name: name.replace("=photo & co", "%3Dphoto%20%26%20co") for name in expected}
        assert alt_texts(page) == {encoded[name]: caption.description() for name, caption in sure.items()}
        assert f"{len(unsure)} unsure left out" in page.text_content("#report")
        page.check("#include-unsure")
        assert len(sidecars(page)) == len(alt_texts(page)) == 4
        page.uncheck("#include-unsure")

        confidences = {one["source"]: one["confidence"] for one in rows if not one["unsure"]}
        least = 1 + round(100 * min(confidences.values()))
        page.fill("#min-confidence", str(least))
        confident = {name for name, confidence in confidences.items() if 100 * confidence >= least}
        assert 0 < len(confident) < len(confidences), "some are below it"
        assert set(sidecars(page)) == {f"{Path(name).stem}.txt" for name in confident}
        assert set(alt_texts(page)) == {encoded[name] for name in confident}
        assert f"{4 - len(confident)} unsure or below {least}% left out" in page.text_content("#report")
        page.fill("#min-confidence", "150")
        page.click("[data-download=zip]")
        page.get_by_text("Nothing to write: every caption is unsure or below 100%.").first.wait_for()
        assert page.input_value("#min-confidence") == "100"


# Its own page: Chromium drops the eleventh download within a second.
def test_captions_of_the_default_model_are_edited(
    browser: Any, default_site: Path, expected: dict[str, Caption]
) -> None:
    chosen, unsure = files(), unsure_of(expected)
    with served(default_site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        drop(page, chosen)
        page.select_option("#order", "added")
        page.fill("#min-confidence", "100")
        edit(page, "dog.jpg", '  "Rex" & I,\n running ')
        edit(page, "broken.jpg", "=1+1")
        edit(page, unsure[0], "A cup of coffee.")
        still = f", {len(unsure) - 1} of them unsure" if len(unsure) > 1 else ""
        assert page.text_content("#counts") == f"4 captioned{still} · 1 failed"
        rows = list(csv.DictReader(io.StringIO(download(page, "csv").decode(), newline="")))
        assert (rows[0]["caption"], rows[0]["confidence"], rows[0]["unsure"]) == ('"Rex" & I, running', "", "false")
        assert (rows[4]["caption"], rows[4]["error"]) == ("'=1+1", "")
        assert alt_texts(page)[unsure[0]] == "A cup of coffee."  # a person's caption, whatever the least confidence
        page.fill("#min-confidence", "0")
        (first, *_) = json.loads(download(page, "json"))
        assert (first["checked"], first["model_caption"]) == (True, expected["dog.jpg"].text)
        page.click("#copy-all")
        page.get_by_text("5 captions copied.").first.wait_for()
        lines = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert lines[0] == 'dog.jpg\t"Rex" & I, running' and lines[4] == "broken.jpg\t'=1+1"
        assert lines[1] == f"'=photo & co.jpg\t{expected['=photo & co.jpg'].sentence()}"

        page.click("#photos [data-undo]")
        assert caption_field(page, unsure[0]).input_value() == expected[unsure[0]].description()
        page.get_by_label("Remove dog.jpg", exact=True).click()
        assert names(page) == [name for name in chosen if name != "dog.jpg"]
        assert page.evaluate("document.activeElement.ariaLabel") == "=photo & co.jpg: word by word"
        page.keyboard.press("Control+z")
        assert names(page) == list(chosen)
        assert caption_field(page, "dog.jpg").input_value() == '"Rex" & I, running'
        page.get_by_label("dog.jpg: word by word", exact=True).click()
        page.wait_for_selector("#confidence:not([hidden])")
        assert page.text_content("#sentence").lower() == expected["dog.jpg"].sentence().lower()
        assert page.input_value("#wording") == '"Rex" & I, running'


def test_an_unsure_caption_is_no_alt_text_before_a_person_has_checked_it(
    browser: Any, default_site: Path, expected: dict[str, Caption]
) -> None:
    (name, *_), chosen = unsure_of(expected), files()
    with served(default_site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        drop(page, {name: chosen[name], "dog.jpg": chosen["dog.jpg"]})
        page.get_by_label(f"{name}: word by word", exact=True).click()
        page.wait_for_selector("#confidence:not([hidden])")
        shares = page.locator("#sentence .word").evaluate_all(
            "found => found.map((one) => getComputedStyle(one).getPropertyValue('--share'))"
        )
        assert set(shares) == {"0"} and page.is_hidden("#confidence-bar") and page.is_hidden("#hint-line")
        page.click("#sentence .word >> nth=1")
        assert page.text_content("#selected-word .facts") == expected[name].words[1].certainty()
        assert page.get_attribute("#selected-word .facts", "data-level") == UNSURE

        assert page.is_hidden("#copy") and page.is_visible("#confirm-first")
        page.click("#approve")
        assert page.is_hidden("#approve") and page.is_hidden("#confirm-first")
        page.click("#copy")
        page.wait_for_function("document.querySelector('#copy').textContent === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == page.input_value("#wording")
        page.click("#result [data-undo]")
        assert page.is_hidden("#copy")
        page.fill("#wording", "A drawing.")
        page.locator("#wording").blur()
        page.click("#copy")
        page.wait_for_function("navigator.clipboard.readText().then((text) => text === 'A drawing.')")
        page.click("#previous")  # the checked one comes last now
        page.wait_for_selector("#confidence:not([hidden])")
        assert page.is_visible("#copy") and page.is_visible("#confidence-bar") and page.is_hidden("#approve")


def test_a_folder_keeps_its_paths_and_the_sidecars_their_names(browser: Any, site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "beach"
    (folder / "day 1").mkdir(parents=True)
    for number, name in enumerate(("dog.jpg", "dog.png", "day 1/dog.jpg", ".hidden.jpg")):
        EVERY[number].draw((90, 60)).save(folder / name)
    (folder / "notes.txt").write_text("no photo")
    with served(site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        page.set_input_files("#folder", folder)
        page.wait_for_selector("#progress", state="hidden")
        assert page.text_content("#report") == "3 photos added. 2 other files in the folder skipped."
        page.check("#include-unsure")
        assert sorted(sidecars(page)) == ["beach/day 1/dog.txt", "beach/dog.jpg.txt", "beach/dog.png.txt"]
        page.set_input_files("#folder", folder)  # the same photos again
        assert len(names(page)) == 3


LIVE = """() => {
  const live = (window.live = new Map()), { createObjectURL, revokeObjectURL } = URL;
  URL.createObjectURL = (blob) => { const url = createObjectURL(blob); live.set(url, blob.size); return url; };
  URL.revokeObjectURL = (url) => { live.delete(url); revokeObjectURL(url); };
}"""
THUMBNAILS = "count => document.querySelectorAll('#cards img:not([hidden])').length === count"


def test_only_thumbnails_stay_in_memory(browser: Any, site: Path, tmp_path: Path) -> None:
    """Each card keeps one small picture; a photo that is shown word by word is released when it is left."""
    many = [tmp_path / f"{number}.png" for number in range(4)]
    for path in many:
        Image.effect_noise((1200, 900), 90).save(path)  # a megabyte each
    with served(site) as server, opened(browser, address(server), reduced_motion="reduce") as page:
        page.evaluate(LIVE)
        page.set_input_files("#file", many)
        page.wait_for_selector("#progress", state="hidden")
        page.wait_for_function(THUMBNAILS, arg=4)
        page.click("#cards .open >> nth=1")
        page.wait_for_selector("#confidence:not([hidden])")
        assert page.text_content("#position") == "2 of 4"
        assert page.evaluate("live.size") == 5, "the whole photo, while it is shown"
        page.keyboard.press("Escape")
        page.wait_for_selector("#photos:not([hidden])")
        sizes = page.evaluate("[...live.values()]")
        assert len(sizes) == 4 and max(sizes) < min(path.stat().st_size for path in many) / 4
        page.click("#remove-all")
        assert page.evaluate("live.size") == 0 and names(page) == []
        page.click("#photos [data-undo]")
        page.wait_for_function(THUMBNAILS, arg=4)


def test_photos_by_keyboard_and_on_a_phone(browser: Any, site: Path) -> None:
    chosen = {f"{number}.jpg": files()["dog.jpg"] for number in range(3)}
    with served(site) as server, opened(browser, address(server), **PHONE, reduced_motion="reduce") as page:
        drop(page, chosen)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(CONTROLS_WITHOUT_NAME) == 0
        page.focus("#cards .open >> nth=0")
        page.keyboard.press("Enter")
        page.wait_for_selector("#confidence:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.keyboard.press("Escape")
        page.wait_for_selector("#photos:not([hidden])")
        assert page.evaluate("document.activeElement.className") == "open", "the focus returns to the card"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        page.keyboard.type("Typed. ")
        page.keyboard.press("Tab")
        assert "checked by you" in page.text_content("#cards .status >> nth=0")
        assert page.get_attribute("#photos [data-undo]", "aria-label") == f"Undo the edit of {names(page)[0]}"
        assert page.get_attribute("#status", "aria-live") == "polite"
