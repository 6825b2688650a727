"""Pictures unlike any photo a captioner was trained on, drawn on the spot: the check of the "unsure" mark.

Every kind is a function of a random generator, so that a hundred pictures of it differ in colours, sizes and contents
and the same seed draws the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

WORDS = [
    "the",
    "report",
    "of",
    "this",
    "year",
    "shows",
    "that",
    "most",
    "of",
    "our",
    "members",
    "would",
    "rather",
    "read",
    "a",
    "short",
    "page",
    "than",
    "a",
    "long",
    "one",
    "and",
    "so",
    "we",
    "have",
    "left",
    "out",
    "what",
    "can",
    "be",
    "found",
    "elsewhere",
    "total",
    "amount",
    "paid",
    "customer",
    "number",
    "address",
    "please",
    "return",
    "one",
    "copy",
    "within",
    "fourteen",
    "days",
    "chapter",
    "section",
    "table",
    "figure",
    "note",
    "see",
    "also",
    "file",
    "edit",
    "view",
    "window",
    "help",
    "search",
    "settings",
    "open",
    "save",
]
SIZES = ((640, 480), (500, 375), (375, 500), (800, 600), (512, 512), (1280, 720))
Colour = tuple[int, int, int]


def pictures(count: int, seed: int = 0) -> Iterator[tuple[str, Image.Image]]:
    """``count`` pictures of every kind, each with the kind's name."""
    for kind, draw in KINDS.items():
        for number in range(count):
            yield kind, draw(Random(f"{kind}-{seed}-{number}")).convert("RGB")


def drawing(random: Random) -> Image.Image:
    """A child's picture: a house, a sun, trees and stick people in crayon lines on paper."""
    image, pen, width, height = _sheet(random, _pale(random))
    thick = random.randint(3, 9)
    ground = int(height * random.uniform(0.65, 0.8))
    pen.line(_wavy(random, 0, ground, width), fill=_strong(random), width=thick)
    for _ in range(random.randint(2, 6)):
        size = random.randint(height // 6, height // 3)
        x, ink = random.randint(0, width - size), _strong(random)
        random.choice((_house, _person, _tree))(pen, x, ground, size, ink, thick)
    radius = height // random.randint(8, 14)
    sun = (random.randint(radius * 2, width - radius * 2), radius * 2)
    pen.ellipse(
        (sun[0] - radius, sun[1] - radius, sun[0] + radius, sun[1] + radius), outline=_strong(random), width=thick
    )
    return image


def clip_art(random: Random) -> Image.Image:
    """Flat shapes in strong colours with black outlines."""
    image, pen, width, height = _sheet(random, random.choice((_pale(random), _strong(random))))
    for _ in range(random.randint(3, 9)):
        size = random.randint(height // 8, height // 2)
        x, y = random.randint(-size // 3, width - size // 2), random.randint(-size // 3, height - size // 2)
        sides = random.choice((3, 4, 5, 6, 40))
        outline = random.choice(("black", None))
        pen.regular_polygon(
            (x + size // 2, y + size // 2, size // 2), sides, random.randint(0, 90), _strong(random), outline
        )
    return image


def screenshot(random: Random) -> Image.Image:
    """A desktop with windows: title bars, menus, lists, buttons and lines of small text."""
    image, pen, width, height = _sheet(random, _any(random), size=random.choice(((1280, 720), (1024, 768), (800, 600))))
    dark = random.random() < 0.4
    for _ in range(random.randint(1, 3)):
        w, h = int(width * random.uniform(0.5, 0.95)), int(height * random.uniform(0.5, 0.9))
        x, y = random.randint(0, width - w), random.randint(0, height - h)
        paper, ink = ((32, 33, 38), (220, 220, 220)) if dark else ((250, 250, 250), (30, 30, 30))
        pen.rectangle((x, y, x + w, y + h), fill=paper, outline=(128, 128, 128))
        pen.rectangle((x, y, x + w, y + 28), fill=_any(random))
        for number in range(3):
            pen.ellipse((x + w - 24 * number - 22, y + 8, x + w - 24 * number - 10, y + 20), fill=_strong(random))
        side = x + w // 4
        pen.line((side, y + 28, side, y + h), fill=(128, 128, 128))
        _lines(random, pen, (x + 10, y + 40, side - 10, y + h - 10), ink, 13)
        _lines(random, pen, (side + 12, y + 40, x + w - 12, y + h - 60), ink, random.choice((12, 14, 16)))
        pen.rounded_rectangle((x + w - 110, y + h - 44, x + w - 14, y + h - 14), 6, fill=_strong(random))
    pen.rectangle((0, height - 36, width, height), fill=(40, 42, 50) if dark else (225, 228, 232))
    return image


def text_page(random: Random) -> Image.Image:
    """A page of a book or a letter, black on white or nearly so."""
    image, pen, width, height = _sheet(
        random, _paper(random), size=random.choice(((600, 800), (768, 1024), (800, 600)))
    )
    margin = width // random.randint(8, 14)
    top = margin
    if random.random() < 0.6:
        pen.text((margin, margin), _phrase(random, 4).upper(), fill="black", font=_font(random.randint(24, 40)))
        top += 70
    columns = random.choice((1, 1, 2))
    room = (width - margin * (columns + 1)) // columns
    for column in range(columns):
        left = margin + column * (room + margin)
        _lines(random, pen, (left, top, left + room, height - margin), "black", random.choice((12, 14, 16, 20)))
    return image


def chart(random: Random) -> Image.Image:
    """Bars, lines or a pie, with axes and labels."""
    image, pen, width, height = _sheet(random, random.choice(((255, 255, 255), _pale(random))))
    left, top, right, bottom = width // 8, height // 8, width - width // 10, height - height // 7
    pen.text((left, top // 3), _phrase(random, 3), fill="black", font=_font(height // 20))
    kind = random.choice(("bars", "lines", "pie"))
    if kind == "pie":
        angle, radius = random.uniform(0, 360), min(right - left, bottom - top) // 2
        centre = ((left + right) // 2, (top + bottom) // 2)
        for part in _shares(random, random.randint(3, 7)):
            box = (centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius)
            pen.pieslice(box, angle, angle + part * 360, fill=_strong(random), outline="white")
            angle += part * 360
        return image
    pen.line((left, top, left, bottom, right, bottom), fill="black", width=2)
    for step in range(1, 6):
        y = bottom - (bottom - top) * step // 6
        pen.line((left, y, right, y), fill=(210, 210, 210))
        pen.text((left - 34, y - 6), str(step * random.choice((10, 20))), fill="black", font=_font(12))
    count = random.randint(4, 12)
    positions = [left + (right - left) * (number + 1) // (count + 1) for number in range(count)]
    for _ in range(1 if kind == "bars" else random.randint(1, 4)):
        ink = _strong(random)
        values = [bottom - int((bottom - top) * random.uniform(0.1, 0.95)) for _ in positions]
        if kind == "lines":
            pen.line(list(zip(positions, values)), fill=ink, width=3)
            continue
        half = (right - left) // (count + 1) // 3
        for x, y in zip(positions, values):
            pen.rectangle((x - half, y, x + half, bottom), fill=ink)
    return image


def noise(random: Random) -> Image.Image:
    """Uniform, normal, grey, coarse or salt-and-pepper noise."""
    width, height = random.choice(SIZES)
    dice = np.random.default_rng(random.getrandbits(32))
    kind = random.choice(("uniform", "normal", "grey", "coarse", "pepper"))
    pixels: np.ndarray
    if kind == "uniform":
        pixels = dice.integers(0, 256, (height, width, 3))
    elif kind == "normal":
        pixels = dice.normal(random.uniform(60, 200), random.uniform(20, 70), (height, width, 3))
    elif kind == "pepper":
        pixels = np.where(dice.random((height, width, 1)) < random.uniform(0.2, 0.8), 255, 0).repeat(3, 2)
    else:
        pixels = dice.integers(0, 256, (height, width, 1)).repeat(3, 2)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if kind == "coarse":
        side = random.choice((8, 16, 32))
        small = dice.integers(0, 256, (side, side, 3)).astype(np.uint8)
        image = Image.fromarray(small).resize(
            (width, height), random.choice((Image.Resampling.NEAREST, Image.Resampling.BICUBIC))
        )
    return image


def gradient(random: Random) -> Image.Image:
    """Two or three colours flowing into each other, straight or round."""
    width, height = random.choice(SIZES)
    y, x = np.mgrid[0:height, 0:width]
    x, y = x / width - random.random(), y / height - random.random()
    angle = random.uniform(0, 2 * math.pi)
    way = np.hypot(x, y) if random.random() < 0.4 else x * math.cos(angle) + y * math.sin(angle)
    way = (way - way.min()) / (way.max() - way.min())
    stops = [_any(random) for _ in range(random.choice((2, 3)))]
    channels = [np.interp(way, np.linspace(0, 1, len(stops)), [stop[c] for stop in stops]) for c in range(3)]
    return Image.fromarray(np.stack(channels, 2).astype(np.uint8))


def solid(random: Random) -> Image.Image:
    """One colour; sometimes black or white, as a lens cap or an empty page."""
    colour = random.choice(((0, 0, 0), (255, 255, 255), _any(random), _any(random), _any(random), _any(random)))
    return Image.new("RGB", random.choice(SIZES), colour)


def pattern(random: Random) -> Image.Image:
    """Stripes, chequers or dots, sharp or blurred: wallpaper and test cards."""
    image, pen, width, height = _sheet(random, _any(random))
    step, ink, kind = random.randint(10, 90), _any(random), random.choice(("stripes", "chequers", "dots"))
    for row, y in enumerate(range(0, height, step)):
        for column, x in enumerate(range(0, width, step)):
            if kind == "dots":
                pen.ellipse((x, y, x + step * 0.6, y + step * 0.6), fill=ink)
            elif (row + column) % 2 if kind == "chequers" else column % 2:
                pen.rectangle((x, y, x + step, y + step), fill=ink)
    return image.filter(ImageFilter.GaussianBlur(6)) if random.random() < 0.2 else image


KINDS: dict[str, Callable[[Random], Image.Image]] = {
    "drawings": drawing,
    "clip art": clip_art,
    "screenshots": screenshot,
    "text pages": text_page,
    "charts": chart,
    "noise": noise,
    "gradients": gradient,
    "solid colours": solid,
    "patterns": pattern,
}


def _sheet(
    random: Random, colour: Colour, size: tuple[int, int] | None = None
) -> tuple[Image.Image, ImageDraw.ImageDraw, int, int]:
    image = Image.new("RGB", size or random.choice(SIZES), colour)
    return image, ImageDraw.Draw(image), *image.size


def _any(random: Random) -> Colour:
    return (random.randrange(256), random.randrange(256), random.randrange(256))


def _pale(random: Random) -> Colour:
    return (random.randrange(225, 256), random.randrange(225, 256), random.randrange(225, 256))


def _paper(random: Random) -> Colour:
    shade = random.randrange(235, 256)
    return (shade, shade - random.randrange(6), shade - random.randrange(20))


def _strong(random: Random) -> Colour:
    channels = [random.randrange(0, 60), random.randrange(0, 256), random.randrange(180, 256)]
    random.shuffle(channels)
    return (channels[0], channels[1], channels[2])


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _phrase(random: Random, count: int) -> str:
    return " ".join(random.choices(WORDS, k=count))


def _lines(
    random: Random, pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int], ink: Colour | str, size: int
) -> None:
    """Words filling a box line by line, with paragraphs that end early."""
    font = _font(size)
    left, top, right, bottom = box
    while top + size <= bottom:
        room = (right - left) * (random.uniform(0.2, 0.9) if random.random() < 0.15 else 1.0)
        line = _phrase(random, max(1, int(room / (size * 2.6))))
        while font.getlength(line) > room and " " in line:
            line = line.rpartition(" ")[0]
        pen.text((left, top), line, fill=ink, font=font)
        top += int(size * 1.5)


def _wavy(random: Random, left: int, level: int, right: int) -> list[tuple[int, int]]:
    return [(x, level + random.randint(-4, 4)) for x in range(left, right + 40, 40)]


def _house(pen: ImageDraw.ImageDraw, x: int, ground: int, size: int, ink: Colour, thick: int) -> None:
    top = ground - size
    pen.rectangle((x, top + size // 3, x + size, ground), outline=ink, width=thick)
    pen.line((x, top + size // 3, x + size // 2, top, x + size, top + size // 3), fill=ink, width=thick)
    pen.rectangle((x + size // 3, ground - size // 3, x + size // 2, ground), outline=ink, width=thick)


def _person(pen: ImageDraw.ImageDraw, x: int, ground: int, size: int, ink: Colour, thick: int) -> None:
    top, head, middle = ground - size, size // 5, x + size // 2
    pen.ellipse((middle - head // 2, top, middle + head // 2, top + head), outline=ink, width=thick)
    hip = ground - size // 3
    pen.line((middle, top + head, middle, hip), fill=ink, width=thick)
    pen.line((middle - size // 4, ground, middle, hip, middle + size // 4, ground), fill=ink, width=thick)
    pen.line((middle - size // 4, top + size // 2, middle + size // 4, top + size // 3), fill=ink, width=thick)


def _tree(pen: ImageDraw.ImageDraw, x: int, ground: int, size: int, ink: Colour, thick: int) -> None:
    middle = x + size // 2
    pen.line((middle, ground, middle, ground - size // 2), fill=(110, 70, 30), width=thick * 2)
    pen.ellipse((x + size // 5, ground - size, x + size - size // 5, ground - size // 3), outline=ink, width=thick)


def _shares(random: Random, count: int) -> list[float]:
    parts = [random.uniform(0.2, 1) for _ in range(count)]
    return [part / sum(parts) for part in parts]
