"""The best and the worst captions of an evaluation as one page: the quickest way to see what a score means."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from sightline.errors import ConfigError
from sightline.evaluation.scoring import Evaluation, ScoredImage
from sightline.io.files import write_atomically
from sightline.io.html import PHOTO_GRID, render_html, thumbnail
from sightline.types import METRIC_NAMES

SHOWN: Final = ("cider", "bleu_4", "meteor", "rouge_l", "bleu_1")  # most telling first

STYLE = """
.report { padding-bottom: 4rem; }
.report h2 { margin: 2.6rem 0 1.1rem; }
.scores { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1.4rem 0 1rem; padding: 0; list-style: none; }
.scores b { display: block; color: var(--text); font-size: 1.5rem; font-variant-numeric: tabular-nums; }
"""


def write_page(evaluation: Evaluation, path: str | Path, count: int = 20) -> None:
    """The ``count`` best and worst photos by their own CIDEr-D, in one file that needs no other."""
    write_atomically(path, render_page(evaluation, count))


def render_page(evaluation: Evaluation, count: int = 20) -> str:
    if not all("cider" in image.scores for image in evaluation.images):
        raise ConfigError("the page ranks photos by CIDEr-D: evaluate with the metric cider")
    ranked = sorted(evaluation.images, key=lambda image: (-image.scores["cider"], image.name))
    count = min(count, (len(ranked) + 1) // 2)  # no photo is among the best and the worst
    best, worst = ranked[:count], ranked[count:][-count:][::-1]
    scores = "".join(
        f"<li>{METRIC_NAMES[key]} <b>{100 * evaluation.scores[key]:.1f}</b></li>"
        for key in SHOWN
        if key in evaluation.scores
    )
    body = (
        f'<div class="report">\n<h1>Best and worst captions</h1>\n<ul class="scores quiet">{scores}</ul>\n'
        f'<p class="quiet"><code>{escape(evaluation.signature)}</code></p>\n'
        f"{_section('best', best)}{_section('worst', worst)}</div>\n"
    )
    return render_html("Best and worst captions", body, STYLE + PHOTO_GRID)


def _section(which: str, images: list[ScoredImage]) -> str:
    if not images:
        return ""
    title = f"The {which} {len(images)}" if len(images) > 1 else f"The {which} one"
    return f'<h2>{title}</h2>\n<div class="photos">\n{"".join(map(_figure, images))}</div>\n'


def _figure(image: ScoredImage) -> str:
    numbers = " · ".join(f"{METRIC_NAMES[key]} {100 * image.scores[key]:.0f}" for key in SHOWN if key in image.scores)
    photo = "" if image.image is None else thumbnail(image.image, image.caption)
    references = "".join(f"<li>{escape(text)}</li>" for text in image.references)
    return (
        f"<figure>{photo}<figcaption>"
        f'<p class="caption">{escape(image.caption)}</p><p class="quiet">{escape(numbers)}</p>'
        f'<ul>{references}</ul><p class="quiet">{escape(image.name)}</p></figcaption></figure>\n'
    )
