"""The only way an image enters: open it safely, turn it upright, convert it to RGB.

One path for every caller, so that training, the command line and the server see the same pixels.
"""

from __future__ import annotations

import io
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TextIO

import numpy as np
from PIL import ExifTags, Image, JpegImagePlugin, UnidentifiedImageError

from sightline.errors import ImageError
from sightline.io.files import FileSlice, counted, local_path, printable

log = logging.getLogger(__name__)

ImageSource = str | os.PathLike[str] | FileSlice | bytes | Image.Image | np.ndarray

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 2**30 // 6  # 178 million, where Pillow itself draws the line; a guard against decompression bombs

MAX_DECODED = 2**29  # bytes of decoded pixels
LARGE_PIXELS = 2**25  # above, an image is reduced by a whole number: the encoder sees a few hundred pixels of each side
STRIP_PIXELS = 2**20
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation

# Named one by one: some of Pillow's other readers start programs (EPS) or fetch files.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
COMMON = SIGNATURES[:2]  # Pillow need not import its other readers, forty of them, for these
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def open_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES, called: str = ""
) -> Image.Image:
    """An upright RGB image from a path, ``file://`` URL, bytes, Pillow image or array (H×W, H×W×3 or ×4).

    Arrays are uint8, uint16 or floats between 0 and 1. Of an animation the first frame counts; what is transparent
    becomes white. Size limits are checked before anything is decoded; ``max_pixels`` is of the pixels that are decoded,
    which are fewer than a large JPEG's. Every fault is an `ImageError`, which calls bytes by the name ``called`` if
    there is one.
    """
    if isinstance(source, np.ndarray):
        name = f"array of shape {source.shape}"
        image = _from_array(source)
    elif isinstance(source, Image.Image):
        name = f"{source.mode} image of {source.width}×{source.height}"
        image = source
    elif isinstance(source, bytes | bytearray | memoryview):
        name = called or (f"input of {counted(len(source), 'byte')}" if len(source) else "the input")
        image = _identify(bytes(source), name, max_bytes)
    elif isinstance(source, FileSlice):
        name = printable(source)
        image = _identify(_read_slice(source, name, max_bytes), name, max_bytes)
    elif isinstance(source, str | os.PathLike):
        name = printable(os.fspath(source)) or "the empty path"
        image = _identify(_read(source, name, max_bytes), name, max_bytes)
    else:
        raise ImageError(f"a {type(source).__name__} is not an image: give a path, bytes, a Pillow image or an array")
    size = image.size
    needed = _draft(image)
    _check_size(size, image.size, name, max_pixels)
    try:
        return _upright_rgb(_load(image, name, needed), name)
    except MemoryError:
        raise ImageError(f"{name} is {size[0]}×{size[1]} and needs more memory than there is: shrink it") from None


def _read(source: str | os.PathLike[str], name: str, max_bytes: int) -> bytes:
    try:
        path = local_path(source)
        if path.is_dir():
            raise ImageError(f"{name} is a folder: name an image in it")
        if path.exists() and not path.is_file():
            raise ImageError(f"{name} is not a regular file: name an image file")
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist: check the path") from None
    except PermissionError:
        raise ImageError(f"{name} cannot be read: permission denied") from None
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:  # another URL, or a null character in the path
        raise ImageError(f"{name} {error}" if "://" in name else f"{name} is not a path: {error}") from None


def _read_slice(source: FileSlice, name: str, max_bytes: int) -> bytes:
    try:
        data = source.read(max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist: check the path") from None
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error.strerror}") from error
    if len(data) < min(source.size, max_bytes):
        raise ImageError(f"{name} is cut off, the end of its shard is missing: copy or download it again")
    return data


def _identify(data: bytes, name: str, max_bytes: int) -> Image.Image:
    """The header, read; no pixel is decoded yet."""
    if not data:
        raise ImageError(f"{name} is empty (0 bytes): copy or download it again")
    if len(data) > max_bytes:
        raise ImageError(f"{name} is larger than {max_bytes / 2**20:.0f} MB: shrink it first")
    is_heic = data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS
    if is_heic:
        _register_heic()
    Image.preinit() if data.startswith(COMMON) else Image.init()
    try:
        return Image.open(io.BytesIO(data), formats=[reader for reader in FORMATS if reader in Image.OPEN])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        if data.startswith(SIGNATURES[0]):  # `_draft` reduces it before it is decoded
            return JpegImagePlugin.jpeg_factory(io.BytesIO(data))
        found = re.search(r"\d+", str(error))
        pixels = f"{int(found[0]):,} pixels, more than {MAX_PIXELS:,}" if found else "too many pixels"
        raise ImageError(f"{name} has {pixels}: shrink it, or save it as JPEG") from None
    except UnidentifiedImageError:
        if is_heic and "HEIF" not in Image.OPEN:
            raise ImageError(f"{name} is a HEIC photo: run `pip install pillow-heif`, or save it as JPEG") from None
        if data.startswith(SIGNATURES) or is_heic:
            raise ImageError(f"{name} is cut off or damaged: copy or download it again") from None
        known = "JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP, TIFF or JPEG 2000"
        raise ImageError(f"{name} is not an image: use {known}") from None
    except Exception as error:  # a reader stumbling over a crafted header
        raise _damaged(name, error) from error


def _register_heic() -> None:
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


def _check_size(size: tuple[int, int], decoded: tuple[int, int], name: str, max_pixels: int) -> None:
    """``decoded`` is the size at which it is decoded."""
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"{name} has no pixels ({width}×{height}): give a picture")
    if decoded[0] * decoded[1] > max_pixels:
        raise ImageError(f"{name} is {width}×{height}, more than {max_pixels:,} pixels: shrink it first")


def _load(image: Image.Image, name: str, needed: int) -> Image.Image:
    """Decode an image that takes ``needed`` bytes; their number is limited."""
    try:
        if needed > MAX_DECODED:
            raise ImageError(
                f"{name} takes {needed / 2**20:.0f} MB when decoded, more than {MAX_DECODED >> 20}: shrink it first"
            )
        with _libtiff_messages(name) if image.format == "TIFF" else nullcontext():
            image.load()
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise OSError, SyntaxError, ValueError, struct.error and more
        raise _damaged(name, error) from error
    return image


@contextmanager
def _libtiff_messages(name: str) -> Iterator[None]:
    """Log what libtiff writes to standard error, of which it does not say the file: the first line, with its name.

    Standard error is the whole process', so that one TIFF is decoded at a time. In other threads than the main one it
    is redirected only if Python's own messages go elsewhere (`keep_stderr_apart`): they would be taken for libtiff's.
    """
    apart = sys.stderr is None or not _writes_to(sys.stderr, 2)
    if not hasattr(os, "set_blocking") or not (apart or threading.current_thread() is threading.main_thread()):
        yield
        return
    with _redirecting:
        try:
            before = os.dup(2)
        except OSError:  # it is closed: nobody reads it
            yield
            return
        reader, writer = os.pipe()
        for end in (reader, writer):  # a full pipe takes no more, and nothing waits for it
            os.set_blocking(end, False)
        try:
            os.dup2(writer, 2)
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(writer)
            said = b""
            with suppress(BlockingIOError):  # a process that was started meanwhile may still write
                said = os.read(reader, 2**16)
            lines = said.decode("utf-8", "replace").splitlines()
            os.close(reader)
            if lines:
                more = f" ({counted(len(lines) - 1, 'further message')})" if len(lines) > 1 else ""
                log.error("%s: %s%s", name, printable(lines[0].removeprefix("tempfile.tif: ")), more)


_redirecting = threading.Lock()


def keep_stderr_apart() -> None:
    """Have Python write its messages to a copy of standard error: file 2 is left to the libraries written in C."""
    if sys.stderr is not None and _writes_to(sys.stderr, 2):
        stream = sys.stderr
        sys.stderr = open(os.dup(2), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)  # noqa: SIM115, PTH123


def _writes_to(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):  # no file at all
        return False


def _draft(image: Image.Image) -> int:
    """Have a large JPEG decoded at a reduced size; returns how many bytes decoding an image takes.

    A progressive JPEG is kept as coefficients of two bytes at its full size before it is reduced.
    """
    coefficients = 0
    if image.info.get("progressive"):
        areas = [horizontal * vertical for _, horizontal, vertical, _ in getattr(image, "layer", ())]
        coefficients = 2 * image.width * image.height * sum(areas) // max(areas, default=1)
    factor = _reduction(image.size)
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    pixel = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;16") else 4
    return coefficients + image.width * image.height * pixel


def decoded_bytes(data: bytes) -> int:
    """How many bytes decoding an image takes, by its header; 0 for what is no image."""
    try:
        return _draft(_identify(data, "", len(data)))
    except ImageError:
        return 0


def _damaged(name: str, error: Exception) -> ImageError:
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return ImageError(f"{name} is cut off, the end of the file is missing: copy or download it again")
    reason = printable(" ".join(str(error).split())) or type(error).__name__
    return ImageError(f"{name} is damaged ({reason}): copy or download it again")


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Strip by strip: beside the decoded pixels only a small part is in memory, and a large image is reduced."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a broken EXIF block spoils no pixel: take the picture as stored
        orientation = 1
    width, height = image.size
    factor = _reduction(image.size)
    factors = (min(factor, width), min(factor, height))
    rows = factors[1] * max(1, STRIP_PIXELS // (width * factors[1]))
    tops = range(0, height, rows)
    upright = Image.new("RGB", (-(-width // factors[0]), -(-height // factors[1])))
    try:
        strips = (image.crop((0, top, width, min(height, top + rows))) for top in tops)
        limits = _limits(strips) if image.mode.startswith(("I", "F")) else None
        for top in tops:
            strip = _rgb(image.crop((0, top, width, min(height, top + rows))), limits)
            upright.paste(strip if factor == 1 else strip.reduce(factors), (0, top // factors[1]))
    except ValueError:
        raise ImageError(f"{name} has colours of kind {image.mode}: save it as RGB first") from None
    return upright.transpose(TRANSPOSE[orientation]) if orientation in TRANSPOSE else upright


def _reduction(size: tuple[int, int]) -> int:
    """By what whole number the sides of a large image are divided; 1 for any ordinary photo."""
    return math.ceil(math.sqrt(size[0] * size[1] / LARGE_PIXELS))


def _rgb(image: Image.Image, limits: tuple[float, float] | None) -> Image.Image:
    if limits is not None:
        image = Image.fromarray(_scale(_finite(image), *limits))
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _limits(strips: Iterable[Image.Image]) -> tuple[float, float]:
    """What becomes black and what white of grey values of 16 or 32 bits, or floats: scaled, never clipped."""
    low = high = 0.0
    mode = ""
    for strip in strips:
        values, mode = _finite(strip), strip.mode
        low, high = min(low, values.min()), max(high, values.max())
    if mode == "F":
        return low, max(high, 1.0 if high <= 1 else 255.0)
    return low, max(high, 255.0 if mode == "I" and high <= 255 else 65535.0)  # 32 bits may hold values of 8


def _finite(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)


def _scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values - low) * (255.0 / (high - low))).astype(np.uint8)


def _from_array(array: np.ndarray) -> Image.Image:
    """H×W, H×W×1, ×3 or ×4 as a Pillow image."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        advice = "channels come last, use .transpose(1, 2, 0)" if first else "give H×W, H×W×3 or H×W×4"
        raise ImageError(f"an array of shape {array.shape} is not an image: {advice}")
    if array.dtype == np.bool_:
        array = array.astype(np.float32)
    if np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ImageError("a float array must hold finite values from 0 to 1: divide by 255, or convert to uint8")
        array = _scale(array, 0, 1)
    elif array.dtype.kind == "u" and array.dtype.itemsize == 2:  # of either byte order
        array = _scale(array, 0, 65535)
    elif array.dtype != np.uint8:
        raise ImageError(f"an array of {array.dtype} is not an image: give uint8, uint16, or floats from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(array))
