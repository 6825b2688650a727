"""Random bytes and mutated images through `Captioner.prepare`: a photo or one `ImageError`, and nothing else."""

from __future__ import annotations

import random
import sys

import pytest
from corpus import ROUNDS, hostile_bytes, odd_images, report

from sightline.engine.captioner import prepare_image
from sightline.errors import ImageError
from sightline.io.preprocess import Preprocess


@pytest.mark.filterwarnings("ignore")  # Pillow's, about damaged metadata
def test_whatever_the_bytes_a_photo_or_one_line(photo_bytes: list[bytes], capfd) -> None:
    rng = random.Random(19)
    images = [*photo_bytes, *odd_images(rng)]
    assert len(images) > 40
    tried, refused = 400 * ROUNDS, 0
    for number in range(tried):
        data = images[number] if number < len(images) else hostile_bytes(rng, images)
        try:
            prepared = prepare_image(data, [Preprocess(size=32, resize=32)], max_pixels=4_000_000)
            assert prepared.pixels[0].shape == (32, 32, 3)
        except ImageError as error:
            assert number >= len(images), f"an intact image is refused: {error}"
            assert str(error).isprintable() and len(str(error)) < 500
            refused += 1
        except Exception as error:
            sys.stdout.write(f"{number}: {data[:4000].hex()}\n")
            raise AssertionError(f"input {number} (seed 19) raises {type(error).__name__}: {error}") from error
    assert refused
    report("images", tried, 0, 0)
