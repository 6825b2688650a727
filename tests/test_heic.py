"""HEIC and AVIF photos open with what `pip install .` brings, upright."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from commands import Command
from default_model import CAPTION
from PIL import Image, ImageOps

from sightline.engine.captioner import load
from sightline.io.images import open_image

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"
ORIENTATION = 0x0112  # the EXIF tag


def quarters() -> Image.Image:
    """Four quarters of different colours: every turn and every mirror image of it is another picture."""
    image = Image.new("RGB", (96, 64), "white")
    image.paste("red", (0, 0, 48, 32))
    image.paste("green", (48, 0, 96, 32))
    image.paste("blue", (0, 32, 48, 64))
    return image


def photo(format: str, orientation: int | None = None) -> bytes:
    return saved(quarters(), format, orientation)


def saved(image: Image.Image, format: str, orientation: int | None = None, **options: Any) -> bytes:
    """As a phone writes it: the sensor's pixels, and the orientation in the EXIF block and the container."""
    if format == "HEIF":
        pillow_heif.register_heif_opener()
    file = io.BytesIO()
    if orientation is not None:
        image.getexif()[ORIENTATION] = orientation
        options["exif"] = image.info["exif"] = image.getexif().tobytes()
    image.save(file, format, quality=95, **options)
    return file.getvalue()


def upright(orientation: int | None) -> Image.Image:
    image = quarters()
    if orientation is not None:
        image.getexif()[ORIENTATION] = orientation
    return ImageOps.exif_transpose(image)


@pytest.mark.parametrize("format", ["HEIF", "AVIF"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_a_photo_opens_upright(format: str, orientation: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = photo(format, orientation)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)  # as in a process that has opened no HEIC yet
    opened, expected = open_image(data), upright(orientation)
    assert data[4:8] == b"ftyp"
    assert (opened.mode, opened.size) == ("RGB", expected.size)
    difference = np.abs(np.asarray(opened, int) - np.asarray(expected, int))
    assert np.mean(difference) < 8  # lossy


def test_the_orientation_of_a_heic_file_is_the_containers_alone() -> None:
    """The HEIF standard counts the EXIF tag for nothing: readers that obeyed both would turn phone photos twice."""
    pillow_heif.register_heif_opener()
    file, exif = io.BytesIO(), Image.Exif()
    exif[ORIENTATION] = 6
    quarters().save(file, "HEIF", exif=exif)
    assert b"irot" not in file.getvalue()
    assert open_image(file.getvalue()).size == (96, 64)


def test_a_photo_in_a_phone_s_layout_gets_the_caption_of_its_jpeg() -> None:
    """A grid of tiles, taken with the phone held upright: the files of iPhones."""
    with Image.open(DOG) as dog:
        data = saved(dog.transpose(Image.Transpose.ROTATE_90), "HEIF", orientation=6, tile_size=512)
    assert b"grid" in data and b"irot" in data
    assert load().caption(data).text == CAPTION


def test_the_command_captions_heic_files_of_a_folder(command: Command, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "IMG_0001.HEIC").write_bytes(photo("HEIF", 6))
    (tmp_path / "b.avif").write_bytes(photo("AVIF"))
    (tmp_path / "cut.heic").write_bytes(photo("HEIF")[:300])
    outcome = command("caption", tmp_path, "--model", tiny_model)
    assert outcome.code == 1
    assert len(outcome.out.splitlines()) == 2
    assert [line for line in outcome.complaints if "cut.heic is cut off or damaged" in line]
