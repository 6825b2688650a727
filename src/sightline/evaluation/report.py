"""The best and the worst captions of an evaluation as one page: the quickest way to see what a score means."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import Final

from PIL import Image

from sightline.errors import ConfigError, ImageError
from sightline.evaluation.scoring import Evaluation, ScoredImage
from sightline.io.files import write_atomically
from sightline.io.images import open_image

SIDE = 320  # pixels of a thumbnail's longer side
LABELS: Final = {"cider": "CIDEr-D", "bleu_4": "BLEU-4", "meteor": "METEOR", "rouge_l": "ROUGE-L", "bleu_1": "BLEU-1"}

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
code { overflow-wrap: anywhere; }
.photos { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; border: 1px solid #8886; border-radius: .5rem; overflow: hidden; }
img { display: block; width: 100%; height: 15rem; object-fit: contain; background: #8882; }
figcaption { padding: .75rem 1rem; }
.caption { font-weight: 600; margin: 0; }
.name, .scores { color: #777; font-size: .85rem; margin: .25rem 0; overflow-wrap: anywhere; }
ul { margin: .5rem 0 0; padding-left: 1.2rem; font-size: .9rem; }
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
    scores = ", ".join(
        f"{label} {100 * evaluation.scores[key]:.1f}" for key, label in LABELS.items() if key in evaluation.scores
    )
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Best and worst captions</title>\n<style>{_STYLE}</style>\n"
        f"<h1>Best and worst captions</h1>\n<p>{escape(scores)}</p>\n"
        f"<p><code>{escape(evaluation.signature)}</code></p>\n"
        f"{_section(f'The {len(best)} best', best)}{_section(f'The {len(worst)} worst', worst)}</html>\n"
    )


def _section(title: str, images: list[ScoredImage]) -> str:
    if not images:
        return ""
    return f'<h2>{escape(title)}</h2>\n<div class="photos">\n{"".join(map(_figure, images))}</div>\n'


def _figure(image: ScoredImage) -> str:
    numbers = " · ".join(
        f"{label} {100 * image.scores[key]:.0f}" for key, label in LABELS.items() if key in image.scores
    )
    references = "".join(f"<li>{escape(text)}</li>" for text in image.references)
    return (
        f"<figure>{_thumbnail(image)}<figcaption>"
        f'<p class="caption">{escape(image.caption)}</p><p class="scores">{escape(numbers)}</p>'
        f'<p class="name">{escape(image.name)}</p><ul>{references}</ul></figcaption></figure>\n'
    )


def _thumbnail(image: ScoredImage) -> str:
    if image.image is None:
        return ""
    try:
        photo = open_image(image.image)
    except ImageError:
        return ""  # gone since it was captioned; the words still tell
    photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    photo.save(data, "JPEG", quality=80)
    text = base64.b64encode(data.getvalue()).decode("ascii")
    return f'<img alt="{escape(image.caption)}" src="data:image/jpeg;base64,{text}">'
