"""The page of an evaluation: photos with their captions, the best and the worst."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sightline.errors import ConfigError
from sightline.evaluation.report import render_page, write_page
from sightline.evaluation.scoring import Evaluation, evaluate

QUICK = ("bleu", "rouge", "cider")


@pytest.fixture(scope="module")
def evaluated(tiny_model: Path, tiny_flickr8k_kept: Path) -> Evaluation:
    return evaluate(tiny_model, tiny_flickr8k_kept, "val", metrics=QUICK, beam=2, length_penalty=0.5)


def test_the_page_shows_photos_and_escapes_words(evaluated: Evaluation, tmp_path: Path):
    spoilt = replace(evaluated.images[0], caption='<script>alert("x")</script>', name="a&b.jpg", references=("<b>",))
    page = render_page(replace(evaluated, images=(spoilt, *evaluated.images[1:])))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "a&amp;b.jpg" in page
    assert "<li>&lt;b&gt;</li>" in page
    assert page.count("data:image/jpeg;base64,") == 2
    assert not re.search("https?:", page)
    write_page(evaluated, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_the_page_lists_the_best_first_and_no_photo_twice(evaluated: Evaluation):
    image = evaluated.images[0]
    images = tuple(
        replace(image, name=f"photo{number}", image=None, scores={"cider": number / 10}) for number in range(7)
    )
    page = render_page(replace(evaluated, images=images), count=20)
    positions = [page.index(f">photo{number}<") for number in (6, 5, 4, 3, 0, 1, 2)]
    assert positions == sorted(positions)
    assert page.count("<figure>") == 7
    assert "<h2>The best 4</h2>" in page and "<h2>The worst 3</h2>" in page
    assert "<h2>The best one</h2>" in render_page(replace(evaluated, images=images[:2]))
    with pytest.raises(ConfigError, match="CIDEr-D"):
        render_page(replace(evaluated, images=(replace(image, scores={}),)))


def test_the_page_fits_a_phone_and_has_the_design_of_the_others(
    evaluated: Evaluation, tmp_path: Path, browser: Any
) -> None:
    from sightline.io.html import STYLESHEET

    long = replace(evaluated.images[0], name="a" * 200, caption="b" * 200, references=("c" * 200, "a dog " * 60))
    page = tmp_path / "page.html"
    write_page(replace(evaluated, images=(long, *evaluated.images[1:]), signature="signature|" * 40), page)
    assert STYLESHEET.read_text(encoding="utf-8") in page.read_text(encoding="utf-8")
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 3}
    with browser.context(**phone) as context:
        shown = context.new_page()
        shown.set_default_timeout(120_000)
        shown.goto(page.as_uri())
        assert shown.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        beyond = """[...document.querySelectorAll('main *')].filter((item) => {
            const box = item.getBoundingClientRect();
            return box.width && (box.left < 0 || box.right > innerWidth + 0.5 || item.scrollWidth > item.clientWidth + 1
                && getComputedStyle(item).display !== 'inline');
        }).map((item) => item.outerHTML.slice(0, 80))"""
        assert shown.evaluate(beyond) == []
        photo, text = shown.locator(".photos img").first, shown.locator(".photos .caption").first
        assert photo.evaluate("item => item.getBoundingClientRect().width") > 300, "photos fill the width"
        assert text.evaluate("item => parseFloat(getComputedStyle(item).fontSize)") >= 16
        shown.screenshot(path=str(tmp_path / "phone.png"))
