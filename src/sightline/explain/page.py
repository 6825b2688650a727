"""A caption as an interactive page: one file that needs no other file and no network.

Its body, style and script are ``web/page.html``, ``.css`` and ``.js``; this file fills them in. Every text from
outside is escaped here, and the script is given numbers only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import ConfigError
from sightline.explain.explanation import REASONS
from sightline.explain.heatmap import COLOUR, COLOUR_MAP, HIGHEST, SPREAD, scaled
from sightline.io.files import printable
from sightline.io.html import jpeg_url, render_html
from sightline.types import UNSURE, Caption, Word

if TYPE_CHECKING:
    from sightline.explain.explanation import Explanation

WEB = Path(__file__).parent / "web"
LEGENDS = {
    "attention": "Bright is what the model attended to while writing the word: its attention, smoothed to the photo. "
    "That is a hint, not a proof, of what made it choose the word.",
    "occlusion": "Bright is where hiding the photo makes the word less likely. Where a map is dark, its word says why: "
    "often the rest of the photo and the words before are enough.",
}
GATE = " The gate says how much the photo, rather than the words before, decided the word."
ALTERNATIVES = "Probability as the next word"
CHOICES = "The model’s own probabilities, given the words before. Those below 1% are left out."
CONFIDENCE = " Confidence is another number: the probability that people use the word for this photo, too."
END = "(the end)"
LEAST = 0.01  # of a probability that is shown


def render(explanation: Explanation) -> str:
    """The page's text."""
    caption, photo = explanation.caption, explanation.caption.photo
    if photo is None:
        raise ConfigError("this caption has no photo to show: make it with sightline.explain.explain")
    views, shape = _views(explanation)
    gated = any(word.gate is not None for word in caption.words)
    title = caption.sentence() or "No words."
    body = Template(_web("page.html")).substitute(
        alt=escape(title),
        photo=jpeg_url(photo),
        width=photo.width,
        height=photo.height,
        ratio=f"{photo.width / photo.height:.4f}",
        name=escape(printable(Path(caption.source).name)),
        words=_words(caption),
        level=caption.level,
        bar="" if caption.unsure else f'<span class="bar" style="--share:{caption.confidence:.3f}"></span> ',
        certainty=escape(caption.certainty()),
        meaning=_meaning(caption),
        tools=_tools(caption),
        hint=_hint(caption),
        panels="".join(map(_panel, caption.words, explanation.dark)),
        heads=_heads(explanation.by_head) if explanation.by_head is not None else "",
        others=_others(caption),
        legend=LEGENDS[explanation.method] + (GATE if gated else ""),
        data=json.dumps(_data(views, shape)),
    )
    return render_html(title, body, _web("page.css"), _web("page.js"))


def _views(explanation: Explanation) -> tuple[list[np.ndarray], tuple[int, int]]:
    """Maps (words, h, w), scaled to be drawn: over all heads, then for each layer its mean and its heads one by one."""
    maps = [word.attention for word in explanation.caption.words if word.attention is not None]
    if not maps or len(maps) < len(explanation.caption.words):
        return [], (0, 0)
    views = [scaled(maps)]
    if explanation.by_head is not None:
        for layer in explanation.by_head.swapaxes(0, 1):  # (words, heads, h, w)
            views += [scaled(layer.mean(1)), *(scaled(head) for head in layer.swapaxes(0, 1))]
    height, width = maps[0].shape
    return views, (height, width)


def _data(views: Sequence[np.ndarray], shape: tuple[int, int]) -> dict[str, Any]:
    """For the script: a byte is ``highest`` / 255 of heat."""
    return {
        "height": shape[0],
        "width": shape[1],
        "spread": SPREAD,
        "colour": COLOUR,
        "highest": HIGHEST,
        "scale": _base64(COLOUR_MAP.tobytes()),
        "views": [_base64(np.rint(view * (255 / HIGHEST)).clip(0, 255).astype(np.uint8).tobytes()) for view in views],
    }


def _words(caption: Caption) -> str:
    buttons = [
        f'<button type="button" class="word{"" if index else " first"}" aria-pressed="false" '
        f'style="--share:{0 if word.unsure else word.confidence:.3f}">{escape(word.text)}</button>'
        for index, word in enumerate(caption.words)
    ]
    if not buttons:
        return "No words."
    buttons[-1] = f'<span class="last">{buttons[-1]}.</span>'  # or the full stop may have a line to itself
    return (f'<span class="unsure">{UNSURE}: </span>' if caption.unsure else "") + " ".join(buttons)


def _meaning(caption: Caption) -> str:
    """The confidence in one sentence."""
    if caption.ood_score is not None and caption.ood_score > 1:
        return "The photo is unlike those the model was trained on: do not rely on this caption."
    if caption.calibrated is None:
        return "The model’s own estimate, which has not been compared with people’s captions."
    return (
        f"Of 100 captions with this confidence, about {100 * caption.confidence:.0f} are right on photos like those "
        "the model was trained on, fewer on others. Right means that people use most of their words, too."
    )


def _hint(caption: Caption) -> str:
    if not caption.words:
        return "The caption is empty."
    line = "" if caption.unsure else " The line under a word is its confidence."
    return f"Select a word to see what the model attended to while writing it, and its alternatives.{line}"


def _tools(caption: Caption) -> str:
    if not caption.words:
        return ""
    names = {"play": "Play", "whole": "Whole photo"}
    return "".join(f'<button type="button" class="pill" id="{key}">{name}</button>' for key, name in names.items())


def _panel(word: Word, reason: str) -> str:
    """The word with its calibrated confidence, then the word among its alternatives with the model's probabilities."""
    facts = " · ".join([*filter(None, [word.certainty()]), *_gate(word)])
    note = CHOICES + (CONFIDENCE if word.level and not word.unsure else "")
    dark = f'<p class="quiet">{REASONS[reason][0]}</p>' if reason else ""
    level = f'<p class="facts"><span class="level" data-level="{word.level}">{facts}</span></p>' if facts else ""
    choices = [(word.text, word.probability), *((_shown(text), share) for text, share in word.alternatives)]
    return (
        f'<section class="panel" hidden><h2>{escape(word.text)}</h2>{level}{dark}<h3 class="label">{ALTERNATIVES}</h3>'
        f'{_ranking("ranking", choices, chosen=word.text)}<p class="quiet">{note}</p></section>\n'
    )


def _gate(word: Word) -> list[str]:
    return [] if word.gate is None else [f"gate β {word.gate:.2f}"]


def _others(caption: Caption) -> str:
    rows = _ranking(
        "ranking candidates", ((other.sentence() or "No words.", other.confidence) for other in caption.others)
    )
    return f'<h3 class="label">Other candidates</h3>{rows}\n' if rows else ""


def _ranking(name: str, entries: Iterable[tuple[str, float]], chosen: str | None = None) -> str:
    """In the order of the numbers; those below 1% are left out, except the chosen one's."""
    rows = [
        f"<li{' class=chosen' if text == chosen else ''}><span>{escape(text)}</span>"
        f'<span class="bar" style="--share:{share:.3f}"></span>'
        f'<span class="number">{"&lt;1%" if share < LEAST else f"{share:.0%}"}</span></li>'
        for text, share in sorted(entries, key=lambda entry: -entry[1])
        if share >= LEAST or text == chosen
    ]
    return f'<ol class="{name}">{"".join(rows)}</ol>' if rows else ""


def _heads(by_head: np.ndarray) -> str:
    """One row of small maps for each layer; the numbers are positions among the views."""
    _, layers, heads, height, width = by_head.shape
    rows = [
        '<div class="layer"><button type="button" class="mean" data-view="0" aria-pressed="true">All</button></div>'
    ]
    for layer in range(layers):
        first = 1 + layer * (heads + 1)
        cells = [
            f'<button type="button" class="mean" data-view="{first}" aria-pressed="false">Layer {layer + 1}</button>'
        ] + [
            f'<button type="button" class="head" data-view="{first + head}" aria-pressed="false" '
            f'aria-label="Layer {layer + 1}, head {head}"><canvas width="{width}" height="{height}"></canvas></button>'
            for head in range(1, heads + 1)
        ]
        rows.append(f'<div class="layer">{"".join(cells)}</div>')
    return (
        f'<section id="layers" hidden><h3 class="label">Layers and heads</h3><div class="heads" role="group" '
        f'aria-label="Layers and heads" style="--heads:{heads}">{"".join(rows)}</div></section>\n'
    )


def _shown(token: str) -> str:
    """A token of any tokenizer for a person to read."""
    return {"<end>": END, " ": "(a space)"}.get(token, token.removeprefix("▁"))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
