"""What a worker process runs in tests where one photo crashes the library that reads it."""

from __future__ import annotations

import os

from sightline.bulk.reading import read_photos


def read_or_die(photos: list[str]) -> list:
    if any(name.endswith("0002.jpg") for name in photos):
        os._exit(1)
    return read_photos(photos)
