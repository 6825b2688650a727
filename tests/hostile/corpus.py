"""Damaged and odd images, made from a seed; ``SIGHTLINE_HOSTILE=100`` makes the tests here a hundred times as long."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator

import numpy as np
from PIL import Image

ROUNDS = max(1, int(os.environ.get("SIGHTLINE_HOSTILE") or 1))
MODES = ("RGB", "L", "RGBA", "1", "P", "LA", "CMYK", "I;16", "I", "F", "YCbCr", "LAB")
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
MAGIC = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"RIFF",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"P6 ",
    b"\0\0\0\x0cjP  ",
)
SIZES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)  # what a header's sizes are overwritten with


def report(what: str, tried: int, failed: int, lost: int) -> None:
    """Shown by ``pytest -rP``."""
    print(f"{what}: {tried:,} tried, {failed:,} failed, {lost:,} lost")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with some changed, removed, repeated or overwritten with the sizes that break readers."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not changed:
            break
        at = chance.randrange(min(len(changed), chance.choice([64, 1024, len(changed)])))
        way = chance.randrange(5)
        if way == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif way == 1:
            changed[at : at + chance.choice([1, 2, 4])] = chance.randbytes(chance.choice([1, 2, 4]))
        elif way == 2:
            del changed[at : at + chance.choice([1, 16, len(changed)])]
        elif way == 3:
            changed[at:at] = changed[at : at + chance.randrange(200)]
        else:
            changed[at : at + 4] = chance.choice(SIZES).to_bytes(4, chance.choice(["big", "little"]))
    return bytes(changed)


def odd_images(chance: random.Random) -> Iterator[bytes]:
    """Valid images of every mode and kind that Pillow writes, in odd sizes, some with metadata."""
    for mode in MODES:
        for kind in KINDS:
            size = chance.choice([(1, 1), (1, 300), (300, 1), (17, 31), (64, 64)])
            pixels = Image.fromarray(np.frombuffer(chance.randbytes(3 * size[0] * size[1]), np.uint8).reshape(*size, 3))
            options = (
                {"exif": b"Exif\0\0" + chance.randbytes(40)}
                if kind in ("JPEG", "PNG") and chance.random() < 0.3
                else {}
            )
            if kind == "JPEG" and chance.random() < 0.5:
                options["progressive"] = True
            file = io.BytesIO()
            try:
                pixels.convert("L" if mode == "I;16" else "RGB").convert(mode).save(file, kind, **options)
            except (OSError, ValueError, KeyError):  # this kind has no such mode
                continue
            yield file.getvalue()


def hostile_bytes(chance: random.Random, images: list[bytes]) -> bytes:
    """Random bytes, random bytes behind a true signature, or a mutated image."""
    way = chance.randrange(8)
    if way == 0:
        return chance.randbytes(chance.randrange(400))
    if way == 1:
        return chance.choice(MAGIC) + chance.randbytes(chance.randrange(400))
    return mutated(chance.choice(images), chance)
