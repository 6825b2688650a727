"""A caption as one picture: the photo beside its sentence, then every word with its heat map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sightline.errors import ConfigError
from sightline.explain.heatmap import overlay, paper_overlay, scaled
from sightline.types import Caption, Word

WIDTH, MARGIN, GAP = 1600, 72, 28
BELOW_HEAD = 60
TALLEST = 1.3  # of a picture, in widths; longer photos get narrower instead
LABEL = 92  # pixels below a tile for its word
ROW_GAP = 36
CORNER = 10
PAPER, INK, GREY, TRACK, AMBER = (252, 251, 248), (28, 28, 32), (122, 120, 116), (232, 229, 222), (222, 148, 38)

ATTENTION = "Bright: what the model attended to while writing the word"
OCCLUSION = "Bright: where hiding the photo makes the word less likely"
BAR = "Bar: confidence in the word"

Pen = ImageDraw.ImageDraw
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def draw(caption: Caption, legend: str = ATTENTION, paper: bool = False, labels: Sequence[str] = ()) -> Image.Image:
    """The whole picture, 1600 pixels wide; ``legend`` says what bright means. Words without a map have bars alone.

    ``paper``: the maps as in the figures of Show, Attend and Tell. ``labels`` stand below the maps, one for each word.
    """
    photo = caption.photo
    if photo is None:
        raise ConfigError("this caption has no photo to draw on: make it with Captioner.caption, or keep_photos=True")
    heat_maps = _heat_maps(caption)
    head = _head(caption, photo, legend if heat_maps else "")
    columns = columns_for(len(caption.words))
    width = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) // columns
    small = _fitted(photo, width)
    tiles = [
        _tile(word, width, _paper_overlay(small, word) if paper else overlay(small, heat), text)
        for word, heat, text in zip(caption.words, heat_maps, labels or [""] * len(heat_maps))
    ]
    tiles = tiles or [_tile(word, width, None) for word in caption.words]
    step = max((tile.height for tile in tiles), default=0) + ROW_GAP
    rows = -(-len(tiles) // columns)
    height = 2 * MARGIN + head.height + (BELOW_HEAD + rows * step - ROW_GAP if rows else 0)
    canvas = Image.new("RGB", (WIDTH, height), PAPER)
    canvas.paste(head, (MARGIN, MARGIN))
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        canvas.paste(tile, (MARGIN + column * (width + GAP), MARGIN + head.height + BELOW_HEAD + row * step))
    return canvas


def columns_for(words: int) -> int:
    """4 to 6 words in a row, so that the last row is as full as can be."""
    return min((5, 6, 4), key=lambda columns: -words % columns)


def _heat_maps(caption: Caption) -> list[np.ndarray]:
    """One for each word, or none where the words have no maps."""
    grids = [word.attention for word in caption.words if word.attention is not None]
    return list(scaled(grids)) if grids and len(grids) == len(caption.words) else []


def _paper_overlay(photo: Image.Image, word: Word) -> Image.Image:
    assert word.attention is not None
    return paper_overlay(photo, np.asarray(word.attention))


def _head(caption: Caption, photo: Image.Image, legend: str) -> Image.Image:
    """The photo, and to its right the sentence with its confidence."""
    width = WIDTH - 2 * MARGIN
    picture = _fitted(photo, round(0.4 * width))
    left = picture.width + 2 * GAP
    text = caption.sentence() or "No words."
    size, lines = _fit_sentence(text, width - left, max(picture.height - 180, 120))
    leading = round(1.25 * size)
    notes = [caption.certainty(), *([legend] if legend else []), *([] if caption.unsure else [BAR])]
    notes = [line for note in notes for line in _wrapped(note, _font(22, note), width - left)]
    block = len(lines) * leading + 60 + len(notes) * 34
    head = Image.new("RGB", (width, max(picture.height, block)), PAPER)
    head.paste(_rounded(picture), (0, 0))
    pen = ImageDraw.Draw(head)
    top = max(0, (picture.height - block) // 2)
    for number, line in enumerate(lines):
        pen.text((left, top + number * leading), line, INK, _font(size, line))
    top += len(lines) * leading + 30
    if not caption.unsure:
        _bar(pen, (left, top), min(360, width - left), caption.confidence, thickness=8)
    for number, note in enumerate(notes):
        pen.text((left, top + 26 + number * 34), note, GREY, _font(22, note))
    return head


def _tile(word: Word, width: int, picture: Image.Image | None, label: str = "") -> Image.Image:
    """One word: its picture, the word, its confidence unless it is unsure, and a label or the gate at the right."""
    top = 0 if picture is None else picture.height + 18
    tile = Image.new("RGB", (width, top + LABEL), PAPER)
    if picture is not None:
        tile.paste(_rounded(picture), (0, 0))
        width = max(picture.width, 150)  # the bar is as wide as the picture above it
    pen = ImageDraw.Draw(tile)
    text, font = _shortened(word.text, 30, tile.width - 4)
    pen.text((0, top), text, INK, font)
    if not word.unsure:
        _bar(pen, (0, top + 48), width, word.confidence, thickness=5)
        numbers = f"{word.confidence:.0%}"
        pen.text((0, top + 64), numbers, GREY, _font(20, numbers))
    if label or word.gate is not None:
        label = label or f"gate {word.gate:.2f}"
        left = max(60, width - _font(20, label).getlength(label))  # narrow pictures leave room for "100%"
        pen.text((left, top + 64), label, GREY, _font(20, label))
    return tile


def _fitted(photo: Image.Image, width: int) -> Image.Image:
    """The photo ``width`` wide, or narrower where it would be too tall."""
    scale = min(width / photo.width, TALLEST * width / photo.height)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _rounded(picture: Image.Image) -> Image.Image:
    """Round corners, drawn four times as large and shrunk, for Pillow draws edges hard."""
    large = Image.new("L", (picture.width * 4, picture.height * 4), 0)
    ImageDraw.Draw(large).rounded_rectangle((0, 0, large.width - 1, large.height - 1), 4 * CORNER, fill=255)
    mask = large.resize(picture.size, Image.Resampling.BOX)
    return Image.composite(picture, Image.new("RGB", picture.size, PAPER), mask)


def _bar(pen: Pen, corner: tuple[int, int], width: int, share: float, thickness: int) -> None:
    left, top = corner
    pen.rounded_rectangle((left, top, left + width - 1, top + thickness - 1), thickness // 2, fill=TRACK)
    filled = round(width * min(1.0, max(0.0, share)))
    if filled:
        right = left + max(filled, thickness) - 1
        pen.rounded_rectangle((left, top, right, top + thickness - 1), thickness // 2, fill=AMBER)


def _fit_sentence(text: str, width: int, height: int) -> tuple[int, list[str]]:
    """The largest type in which the sentence fits, and its lines."""
    for size in range(60, 27, -4):
        lines = _wrapped(text, _font(size, text), width)
        if len(lines) * 1.25 * size <= height:
            break
    return size, lines


def _wrapped(text: str, font: Font, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _shortened(text: str, size: int, width: int) -> tuple[str, Font]:
    font = _font(size, text)
    while len(text) > 1 and font.getlength(text) > width:
        text = text.rstrip("…")[:-1] + "…"
    return text, font


FALLBACKS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf", "segoeui.ttf")


def _font(size: int, text: str) -> Font:
    """Pillow's own type, which needs no file; for letters it lacks, a common one of the system if there is any."""
    return _plain(size) if text.replace("…", "").isascii() else _wide(size)


@lru_cache
def _plain(size: int) -> Font:
    return ImageFont.load_default(size)


@lru_cache
def _wide(size: int) -> Font:
    for name in FALLBACKS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)
