"""What a training run leaves to look at: ``report.html``, ``curves.png`` and ``samples.png``, made from its files.

The page has the curves of losses and scores, captions of some val photos with their attention, the words that the model
uses more often, or less often, than people do, and those that it confuses. The pictures show curves and captions.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from sightline.data.dataset import Example
from sightline.data.reading import read_results
from sightline.engine.captioner import load
from sightline.evaluation.metrics import prepare
from sightline.io.files import atomic_path, counted, write_atomically
from sightline.io.html import jpeg_url, render_html
from sightline.io.model_files import CURVES, SAMPLES
from sightline.tokenizers.content_words import FUNCTION_WORDS
from sightline.training.state import gain, read_history
from sightline.types import METRIC_NAMES, Failure

log = logging.getLogger("sightline.training")
CAPTIONS = "val_captions.json"  # of the best epoch, as a results file
PHOTOS, WORDS = 6, 12  # shown on the page
RARE = 0.01  # words in a smaller share of the captions are left out: their numbers are chance
WIDTH, HEIGHT = 520, 300  # of a chart
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 34, 34  # of a chart, around the curves
SCALE = 3  # pixels of the PNG for one of a chart
COLOURS = ("#b06c08", "#3a6ea5", "#3f8f5b", "#8a4f9e")
INK, GRID, PAPER = "#66625b", "#e7e2d8", "#fbfaf6"

STYLE = """
.report { padding-bottom: 4rem; }
.report h2 { margin: 2.6rem 0 1.1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.4rem; }
.charts figure, .samples figure { background: var(--surface); border: 1px solid var(--border); border-radius: 1rem; }
.charts figure { padding: .8rem; }
.charts svg { display: block; width: 100%; height: auto; font: 12px var(--font); }
.charts text { fill: var(--muted); }
.charts .grid { stroke: var(--border); }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); gap: 1.4rem; }
.samples figure { overflow: hidden; }
.samples img { display: block; width: 100%; height: auto; }
.samples figcaption { padding: .4rem 1.2rem 1.2rem; }
.samples ul { margin: .4rem 0; padding-left: 1.1rem; font-size: .92rem; }
.words { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.4rem 3rem; }
.words table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
.words th, .words td { text-align: right; padding: .25rem .4rem; border-bottom: 1px solid var(--border); }
.words th:first-child, .words td:first-child { text-align: left; }
"""


def try_report(
    folder: Path, examples: Sequence[Example], start: dict[str, Any] | None = None, metric: str = "cider"
) -> None:
    """Write the report, or log why not: a picture never ends a training."""
    try:
        with torch.random.fork_rng(devices=[]):  # building the model again draws random numbers
            write_report(folder, examples, start, metric)
    except Exception as error:  # whatever it is, the model is saved
        log.warning("no report of this run: %s: %s", type(error).__name__, error)
        log.debug("the traceback", exc_info=True)


def write_report(
    folder: Path, examples: Sequence[Example], start: dict[str, Any] | None = None, metric: str = "cider"
) -> None:
    """Write the page and the picture of the curves.

    ``examples`` are the val photos that the run is scored on, ``start`` the scores of the model that it started from.
    """
    history = read_history(folder)
    if not history:
        return
    before = [{"epoch": -1, **start}] if start else []  # drawn as epoch 0
    charts = [chart for chart in make_charts([*before, *history]) if chart.curves]
    with atomic_path(folder / CURVES) as temporary:
        draw_charts(charts).save(temporary, "PNG")
    captions = read_results(folder / CAPTIONS) if (folder / CAPTIONS).is_file() else {}
    shown = [example for example in examples if example.name in captions]
    best: dict[str, Any] = next((record for record in reversed(history) if record.get("best")), {})
    scores = [f"{METRIC_NAMES[key]} {100 * best[key]:.1f}" for key in ("cider", "bleu_4") if key in best]
    facts = [counted(len(history), "epoch"), f"{history[-1]['minutes']:g} minutes"]
    facts += [f"best: epoch {best['epoch'] + 1}" + (f" with val {', '.join(scores)}" if scores else "")] if best else []
    facts += [gain(start, best, metric)] if start and best else []
    name = folder.resolve().name
    body = (
        f'<div class="report">\n<h1>{escape(name)}</h1>\n<p class="quiet">{escape(" · ".join(facts))}</p>\n'
        f'<h2>Curves</h2>\n<div class="charts">{"".join(map(chart_svg, charts))}</div>\n'
        f"{_samples(folder, shown)}{_words(captions, shown)}{_confusions(captions, shown)}</div>\n"
    )
    write_atomically(folder / "report.html", render_html(name, body, STYLE))


# -- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """Curves over epochs, by name; each is a list of (epoch, value)."""

    title: str
    curves: Mapping[str, Sequence[tuple[float, float]]]

    @property
    def epochs(self) -> tuple[float, float]:
        """The first and the last."""
        epochs = [epoch for points in self.curves.values() for epoch, _ in points]
        return min(epochs), max(*epochs, min(epochs) + 1)

    def frame(self) -> tuple[list[float], list[float]]:
        """The numbers at the axes: of epochs and of values."""
        first, last = self.epochs
        values = [value for points in self.curves.values() for _, value in points]
        across = [epoch for epoch in ticks(first, last, whole=True) if first <= epoch <= last]
        return across, ticks(min(values), max(values))

    def position(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point lies in the picture."""
        first, last = self.epochs
        _, up = self.frame()
        x = (point[0] - first) / (last - first)
        y = (point[1] - up[0]) / (up[-1] - up[0])
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)


def make_charts(history: Sequence[Mapping[str, Any]]) -> list[Chart]:
    def curves(names: Mapping[str, str], scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        found = {
            label: [
                (record["epoch"] + 1, scale * record[key])
                for record in history
                if isinstance(record.get(key), int | float) and math.isfinite(record[key])
            ]
            for key, label in names.items()
        }
        return {label: points for label, points in found.items() if points}

    scores = {key: METRIC_NAMES[key] for key in ("cider", "bleu_4", "rouge_l", "bleu_1")}
    return [
        Chart("Loss per token (negative log-likelihood)", curves({"train_nll": "train", "val_nll": "val"})),
        Chart("Scores on val, times 100", curves(scores, 100)),
        Chart("Reward in training", curves({"train_reward": "reward"})),
    ]


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers that enclose a range."""
    if high <= low:
        low, high = low - 1, high + 1
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def chart_svg(chart: Chart) -> str:
    across, up = chart.frame()
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(chart.title)}</text>']
    for value in up:
        _, y = chart.position((chart.epochs[0], value))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for epoch in across:
        x, _ = chart.position((epoch, up[0]))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{epoch:g}</text>')
    for colour, (label, points) in zip(COLOURS, chart.curves.items()):
        positions = [chart.position(point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(label)}, epoch {epoch:g}: '
            f"{value:.4g}</title></circle>"
            for (x, y), (epoch, value) in zip(positions, points)
        ]
    legend = " · ".join(
        f'<span style="color:{colour}">●</span> {escape(label)}' for colour, label in zip(COLOURS, chart.curves)
    )
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">{"".join(parts)}</svg>'
    )
    return f'<figure>{picture}<figcaption class="quiet">{legend}; by epoch</figcaption></figure>'


def draw_charts(charts: Sequence[Chart]) -> Image.Image:
    """All charts in one picture, one below the other."""
    canvas = Image.new("RGB", (SCALE * WIDTH, SCALE * HEIGHT * max(1, len(charts))), PAPER)
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(12 * SCALE)
    for number, chart in enumerate(charts):
        across, up = chart.frame()

        def at(point: tuple[float, float], chart: Chart = chart, number: int = number) -> tuple[float, float]:
            x, y = chart.position(point)
            return SCALE * x, SCALE * (y + number * HEIGHT)

        top = SCALE * number * HEIGHT
        pen.text((SCALE * LEFT, top + SCALE * 6), chart.title, INK, font)
        for value in up:
            x, y = at((chart.epochs[0], value))
            pen.line((x, y, SCALE * (WIDTH - RIGHT), y), GRID, SCALE)
            pen.text((x - SCALE * 8, y), f"{value:g}", INK, font, anchor="rm")
        for epoch in across:
            x, y = at((epoch, up[0]))
            pen.text((x, y + SCALE * 14), f"{epoch:g}", INK, font, anchor="mm")
        left: float = SCALE * (WIDTH - RIGHT)
        for colour, (label, points) in reversed([*zip(COLOURS, chart.curves.items())]):
            positions = [at(point) for point in points]
            pen.line(positions, colour, 2 * SCALE, joint="curve")
            for point in positions:
                pen.circle(point, 3 * SCALE, colour)
            pen.text((left, top + SCALE * 6), label, colour, font, anchor="ra")  # from the right
            left -= font.getlength(label) + 10 * SCALE
    return canvas.resize((canvas.width * 2 // SCALE, canvas.height * 2 // SCALE), Image.Resampling.LANCZOS)


# -- captions ---------------------------------------------------------------------------------------------------------


def _samples(folder: Path, examples: Sequence[Example]) -> str:
    """Photos from all over the val split, with the best model's captions and its attention where it has any."""
    if not examples:
        return ""
    step = max(1, len(examples) // PHOTOS)
    chosen = examples[::step][:PHOTOS]
    figures, pictures = [], []
    captions = load(folder, runtime="torch").stream([example.image for example in chosen], keep_photos=True)
    for example, caption in zip(chosen, captions):
        if isinstance(caption, Failure):
            continue
        picture = caption.overlay()
        picture.thumbnail((1100, 1100), Image.Resampling.LANCZOS)
        pictures.append(picture)
        references = "".join(f"<li>{escape(text)}</li>" for text in example.captions)
        figures.append(
            f'<figure><img alt="{escape(caption.sentence())}" src="{jpeg_url(picture, quality=80)}">'
            f'<figcaption><p class="label">People</p><ul>{references}</ul>'
            f'<p class="quiet">{escape(example.name)}</p></figcaption></figure>'
        )
    if pictures:
        with atomic_path(folder / SAMPLES) as temporary:
            stacked(pictures).save(temporary, "PNG")
    return f'<h2>Captions of val photos</h2>\n<div class="samples">{"".join(figures)}</div>\n'


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """One picture below the other."""
    canvas = Image.new("RGB", (max(one.width for one in pictures), sum(one.height for one in pictures)), PAPER)
    top = 0
    for picture in pictures:
        canvas.paste(picture, (0, top))
        top += picture.height
    return canvas


# -- words ------------------------------------------------------------------------------------------------------------


def word_shares(captions: Mapping[str, str], examples: Sequence[Example]) -> dict[str, tuple[float, float]]:
    """For each frequent word, the shares of the model's captions and of people's captions that have it."""
    predictions, references = prepare([captions[one.name] for one in examples], [one.captions for one in examples])
    people = [words for several in references for words in several]
    counts = [Counter(word for words in side for word in set(words)) for side in (predictions, people)]
    shares = {
        word: (counts[0][word] / len(predictions), counts[1][word] / max(1, len(people)))
        for word in counts[0] | counts[1]
    }
    return {word: pair for word, pair in shares.items() if max(pair) >= RARE}


def _words(captions: Mapping[str, str], examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    shares = word_shares(captions, examples)
    ranked = sorted(shares, key=lambda word: (shares[word][1] - shares[word][0], word))
    more = [word for word in ranked[:WORDS] if shares[word][0] > shares[word][1]]
    less = [word for word in ranked[::-1][:WORDS] if shares[word][0] < shares[word][1]]
    tables = "".join(_word_table(*columns, shares) for columns in (("more often", more), ("less often", less)))
    return (
        '<h2>Words</h2>\n<p class="quiet">Shares of captions that have the word: the model\'s captions of val photos, '
        f'and people\'s captions of the same photos.</p>\n<div class="words">{tables}</div>\n'
    )


def word_confusions(captions: Mapping[str, str], examples: Sequence[Example]) -> list[tuple[str, str, int]]:
    """(word of people, word of the model, photos) where the model has one in place of the other, clearest first.

    The first is a content word of more than half of a photo's references that its caption lacks, the second a content
    word of the caption that none of them has. Pairs are ranked by photos times their pointwise mutual information, so
    that two frequent words which meet by chance come last; those of one photo are left out.
    """
    predictions, references = prepare([captions[one.name] for one in examples], [one.captions for one in examples])
    pairs: Counter[tuple[str, str]] = Counter()
    lacked: Counter[str] = Counter()
    invented: Counter[str] = Counter()
    photos = 0
    for prediction, several in zip(predictions, references):
        counts = Counter(word for words in several for word in set(words))
        most = {word for word, count in counts.items() if 2 * count > len(several)}
        lacking, wrong = most - set(prediction) - FUNCTION_WORDS, set(prediction) - set(counts) - FUNCTION_WORDS
        if lacking and wrong:
            photos += 1
            lacked.update(lacking)
            invented.update(wrong)
            pairs.update((one, other) for one in lacking for other in wrong)
    weights = {
        (one, other): count * math.log(count * photos / (lacked[one] * invented[other]))
        for (one, other), count in pairs.items()
        if count > 1
    }
    ranked = sorted(weights, key=lambda pair: (-weights[pair], pair))
    return [(*pair, pairs[pair]) for pair in ranked if weights[pair] >= 0]


def _confusions(captions: Mapping[str, str], examples: Sequence[Example]) -> str:
    if not (found := word_confusions(captions, examples)[: 2 * WORDS]):
        return ""
    head = "<tr><th>people</th><th>model</th><th>photos</th></tr>"
    tables = [
        "".join(
            f"<tr><td>{escape(one)}</td><td>{escape(other)}</td><td>{count}</td></tr>" for one, other, count in part
        )
        for part in (found[:WORDS], found[WORDS:])
        if part
    ]
    return (
        '<h2>Confused words</h2>\n<p class="quiet">Photos whose captions lack a word of most people and have one of '
        f'none.</p>\n<div class="words">{"".join(f"<table>{head}{rows}</table>" for rows in tables)}</div>\n'
    )


def _word_table(how: str, words: Sequence[str], shares: Mapping[str, tuple[float, float]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(word)}</td>" + "".join(f"<td>{share:.1%}</td>" for share in shares[word]) + "</tr>"
        for word in words
    )
    return f"<table><tr><th>{how} than people</th><th>model</th><th>people</th></tr>{rows}</table>"
