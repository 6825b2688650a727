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


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with some changed, removed, repeated or overwritten with the sizes that break readers."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            break
        at = rng.randrange(min(len(changed), rng.choice([64, 1024, len(changed)])))
        way = rng.randrange(5)
        if way == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            changed[at : at + rng.choice([1, 2, 4])] = rng.randbytes(rng.choice([1, 2, 4]))
        elif way == 2:
            del changed[at : at + rng.choice([1, 16, len(changed)])]
        elif way == 3:
            changed[at:at] = changed[at : at + rng.randrange(200)]
        else:
            changed[at : at + 4] = rng.choice(SIZES).to_bytes(4, rng.choice(["big", "little"]))
    return bytes(changed)


def odd_images(rng: random.Random) -> Iterator[bytes]:
    """Valid images of every mode and kind that Pillow writes, in odd sizes, some with metadata."""
    for mode in MODES:
        for kind in KINDS:
            size = rng.choice([(1, 1), (1, 300), (300, 1), (17, 31), (64, 64)])
            pixels = Image.fromarray(np.frombuffer(rng.randbytes(3 * size[0] * size[1]), np.uint8).reshape(*size, 3))
            options = (
                {"exif": b"Exif\0\0" + rng.randbytes(40)} if kind in ("JPEG", "PNG") and rng.random() < 0.3 else {}
            )
            if kind == "JPEG" and rng.random() < 0.5:
                options["progressive"] = True
            file = io.BytesIO()
            try:
                pixels.convert("L" if mode == "I;16" else "RGB").convert(mode).save(file, kind, **options)
            except (OSError, ValueError, KeyError):  # this kind has no such mode
                continue
            yield file.getvalue()


def hostile_bytes(rng: random.Random, images: list[bytes]) -> bytes:
    """Random bytes, random bytes behind a true signature, or a mutated image."""
    way = rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.randrange(400))
    if way == 1:
        return rng.choice(MAGIC) + rng.randbytes(rng.randrange(400))
    return mutated(rng.choice(images), rng)
