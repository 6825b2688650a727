"""Whatever a user hands in becomes an upright RGB image, or one clear line says why not."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sightline.errors import ImageError
from sightline.io.images import open_image
from sightline.io.preprocess import Preprocess


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def error_message(source, **options) -> str:
    with pytest.raises(ImageError) as caught:
        open_image(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What opens


def test_every_way_in_gives_the_same_pixels(tmp_path: Path) -> None:
    picture = noise()
    path = tmp_path / "a photo, 100%.png"
    path.write_bytes(encoded(picture))
    expected = np.asarray(picture)
    for source in (path, str(path), path.as_uri(), path.read_bytes(), picture, expected, expected / 255.0):
        image = open_image(source)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), expected)


def test_the_callers_image_is_left_alone() -> None:
    picture = noise()
    before = np.array(picture)
    open_image(picture).paste((0, 0, 0), (0, 0, 64, 48))
    assert np.array_equal(np.asarray(picture), before)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = Image.new("RGB", (40, 24), "white")
    upright.paste("red", (0, 0, 8, 8))  # the mark belongs to the upper left
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transposes that store it the wrong way round
    stored = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = open_image(encoded(stored, exif=exif))
    assert image.size == (40, 24)
    assert image.getpixel((2, 2)) == (255, 0, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_broken_exif_block_does_not_spoil_the_picture() -> None:
    data = encoded(noise(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7fgarbage")
    assert open_image(data).size == (64, 48)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(format: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    red, _, blue = open_image(data).getpixel((8, 8))
    assert red > 240 and blue < 15


def test_cmyk_becomes_rgb() -> None:
    image = open_image(encoded(Image.new("RGB", (16, 16), "red").convert("CMYK"), "JPEG", quality=95))
    red, green, blue = image.getpixel((8, 8))
    assert red > 240 and green < 15 and blue < 15


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    for source in (encoded(Image.fromarray(ramp)), encoded(Image.fromarray(ramp), "TIFF"), ramp):
        assert np.array_equal(np.asarray(open_image(source))[0, :, 0], np.arange(256))


def test_a_dark_sixteen_bit_picture_stays_dark() -> None:
    assert np.asarray(open_image(Image.fromarray(np.ones((4, 4), np.uint16)))).max() == 0


def test_float_tiffs_are_scaled() -> None:
    ramp = np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(4, 0)
    assert np.array_equal(np.asarray(open_image(encoded(Image.fromarray(ramp), "TIFF")))[0, :, 0], np.arange(256))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_what_is_transparent_becomes_white(mode: str) -> None:
    if mode in ("RGBA", "LA"):
        data = encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert(mode))
    else:
        data = encoded(Image.new(mode, (8, 8), 0), transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert open_image(data).getpixel((4, 4)) == (255, 255, 255)


def test_half_transparent_mixes_with_white() -> None:
    assert open_image(np.full((2, 2, 4), (0, 0, 0, 128), np.uint8)).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16", "La", "RGBa"]
)
def test_pillow_images_of_every_kind(mode: str) -> None:
    assert open_image(Image.new(mode, (5, 3))).mode == "RGB"


def test_one_pixel_is_a_picture() -> None:
    image = open_image(encoded(Image.new("RGB", (1, 1), "red")))
    assert Preprocess()(image).shape == (3, 224, 224)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64, np.float16, np.bool_])
def test_arrays_of_every_shape_and_kind(shape: tuple[int, ...], kind: type) -> None:
    white = np.full(shape, np.iinfo(kind).max if np.issubdtype(kind, np.integer) else 1, kind)
    image = open_image(white)
    assert image.size == (6, 4) and image.getpixel((0, 0)) == (255, 255, 255)


# What does not open, each with its line


def test_missing_file(tmp_path: Path) -> None:
    assert "does not exist" in error_message(tmp_path / "no.jpg")


def test_directory(tmp_path: Path) -> None:
    assert "is a folder" in error_message(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    assert "is empty (0 bytes)" in error_message(tmp_path / "a.jpg")
    assert "is empty" in error_message(b"")


def test_not_an_image(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("<html>Not found</html>")
    assert "a.jpg is not an image: use JPEG" in error_message(tmp_path / "a.jpg")
    assert "is not an image" in error_message(np.random.default_rng(0).bytes(5000))


def test_vector_graphics_are_not_run() -> None:
    assert "is not an image" in error_message(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.6, 0.02])
def test_cut_off_file(format: str, share: float) -> None:
    data = encoded(noise(200, 200), format)
    message = error_message(data[: max(12, int(len(data) * share))])
    assert "cut off" in message or "damaged" in message


def test_cut_off_jpeg_is_called_so(tmp_path: Path) -> None:
    data = encoded(noise(200, 200), "JPEG")
    (tmp_path / "photo.jpg").write_bytes(data[: len(data) // 2])
    message = error_message(tmp_path / "photo.jpg")
    assert message.endswith("photo.jpg is cut off, the end of the file is missing: copy or download it again")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow grumbles about what it skips
def test_flipped_bytes_never_escape_as_other_errors() -> None:
    random = np.random.default_rng(1)
    for format in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        data = encoded(noise(), format)
        for _ in range(60):
            broken = np.frombuffer(data, np.uint8).copy()
            broken[random.integers(0, min(len(broken), 400), 4)] = random.integers(0, 256, 4)
            try:
                open_image(broken.tobytes(), max_pixels=1_000_000)
            except ImageError as error:
                assert "\n" not in str(error)


def test_bombs_are_refused_from_the_header() -> None:
    message = error_message(png_header(30_000, 30_000))
    assert message.endswith("has 900,000,000 pixels, more than 178,956,970: shrink it, or save it as JPEG")
    assert "5000×4000, more than 10,000,000 pixels" in error_message(png_header(5000, 4000), max_pixels=10_000_000)


def test_a_jpeg_counts_with_the_pixels_that_are_decoded() -> None:
    for colour, mode, size in ((90, "L", (16320, 12240)), ("red", "RGB", (8160, 6144))):  # 200 and 50.1 million
        image = open_image(encoded(Image.new(mode, size, colour), "JPEG"), max_pixels=50_000_000)
        assert image.width < 8160
        assert image.getpixel((9, 9)) == pytest.approx((90, 90, 90) if colour == 90 else (254, 0, 0), abs=2)
    assert "16320×12240, more than 10,000,000 pixels" in error_message(
        encoded(Image.new("L", (16320, 12240)), "JPEG"), max_pixels=10_000_000
    )


def test_pixel_limit_holds_for_arrays_and_pillow_images() -> None:
    assert "more than 100 pixels" in error_message(np.zeros((20, 20)), max_pixels=100)
    assert "20×20" in error_message(Image.new("L", (20, 20)), max_pixels=100)


def test_file_size_limit(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(noise()))
    assert "is larger than" in error_message(tmp_path / "a.png", max_bytes=1000)


def test_heic_without_plugin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    assert "pip install pillow-heif" in error_message(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0" * 64)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch(mode=0)
    assert "permission denied" in error_message(tmp_path / "a.jpg")


def test_unreadable_file_as_the_system_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.jpg").touch()
    monkeypatch.setattr(Path, "open", refuse)
    assert "a.jpg cannot be read: permission denied" in error_message(tmp_path / "a.jpg")


def test_what_libtiff_says_names_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(encoded(noise().convert("1"), "TIFF", compression="group4"))
    data[100:400] = b"\x55" * 300
    (tmp_path / "scan.tif").write_bytes(data)
    with contextlib.suppress(ImageError):
        open_image(tmp_path / "scan.tif")
    name = str(tmp_path / "scan.tif")
    raw = [line for line in capfd.readouterr().err.splitlines() if not line.startswith(name)]  # others may log there
    assert not raw
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}/scan.tif: Fax4Decode: Bad code word")
    caplog.clear()
    good = encoded(noise(), "TIFF", compression="tiff_lzw")
    assert open_image(good).size == noise().size and not caplog.records


@pytest.mark.parametrize("source", ["https://example.org/a.jpg", "s3://bucket/a.jpg", "file://elsewhere/a.jpg"])
def test_addresses_are_not_fetched(source: str) -> None:
    message = error_message(source)
    assert source in message and "name" in message


@pytest.mark.parametrize("source", ["a\0b.jpg", "line\nbreak.jpg", "x" * 5000, ""])
def test_strange_paths(source: str) -> None:
    error_message(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "not a regular file" in error_message(tmp_path / "pipe.jpg")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (None, "a NoneType is not an image"),
        (np.zeros((3, 8, 9)), "channels come last"),
        (np.zeros((8, 9, 2)), "give H×W"),
        (np.zeros((0, 4, 3)), "shape (0, 4, 3)"),
        (np.zeros(7), "shape (7,)"),
        (np.zeros((4, 4), np.int64), "an array of int64"),
        (np.full((4, 4), 2.0), "from 0 to 1"),
        (np.full((4, 4), np.nan), "finite"),
        (np.array([["a"]]), "is not an image"),
        (Image.new("RGB", (0, 4)), "has no pixels"),
    ],
)
def test_wrong_objects(source: object, part: str) -> None:
    assert part in error_message(source)


# Large images and unusual depths


def test_large_images_are_reduced_and_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.io import images

    pixels = np.random.default_rng(0).integers(0, 65536, (90, 70), dtype=np.uint16)
    for image in (Image.fromarray(pixels), Image.fromarray((pixels >> 8).astype(np.uint8)).convert("P")):
        whole = open_image(image)
        monkeypatch.setattr(images, "STRIP_PIXELS", 500)
        assert open_image(image).tobytes() == whole.tobytes()
        monkeypatch.setattr(images, "LARGE_PIXELS", 1000)  # 6300 pixels: a third of each side
        reduced = open_image(image)
        assert reduced.size == (24, 30)
        assert reduced.tobytes() == whole.reduce(3).tobytes()
        monkeypatch.undo()


def test_too_many_bytes_and_too_little_memory_are_the_photos_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.io import images

    photo = Image.new("RGB", (20, 20))
    monkeypatch.setattr(images, "MAX_DECODED", 1000)
    with pytest.raises(ImageError, match="MB when decoded"):
        open_image(photo)
    monkeypatch.undo()

    def full(*_: object) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(images, "_rgb", full)
    with pytest.raises(ImageError, match="more memory than there is"):
        open_image(photo)


def test_images_of_32_bits_that_hold_8_are_not_black() -> None:
    image = Image.fromarray(np.full((4, 4), 200, np.int32))
    assert image.mode == "I"
    assert open_image(image).getpixel((0, 0)) == (200, 200, 200)


def test_arrays_of_either_byte_order() -> None:
    values = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    assert open_image(values.astype(">u2")).tobytes() == open_image(values).tobytes()
