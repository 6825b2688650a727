"""What computes a model: the `Backend` protocol, and the preprocessing that comes before any backend.

`TorchBackend` and `OnnxBackend` are its two implementations. `Captioner` works with either, or with several at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL.Image import Image

from sightline.decoding.hypotheses import StepDecoder
from sightline.io.files import FileSlice
from sightline.io.images import MAX_PIXELS, Box, ImageSource, Preprocess, open_image
from sightline.tokenizers import Tokenizer
from sightline.types import ImageFeatures


class Backend(StepDecoder, Protocol):
    """One model in one runtime: ``encode`` gives features, ``start`` and ``step`` decode them."""

    runtime: str  # for people: "torch" or "onnxruntime, int8"
    device: str
    preprocess: Preprocess
    tokenizer: Tokenizer
    decoding: dict[str, Any]  # the model's decoding options, where they differ from the defaults
    folder: Path | None  # None for a model that was never saved
    dimension: int  # of the pooled vector
    parameters: int
    batch_size: int  # photos that ``encode`` computes at once; larger batches gain nothing

    def signature(self) -> str:
        """A short name for exactly these weights in this runtime; empty for a model that was never saved."""
        ...

    def encode(self, pixels: np.ndarray) -> ImageFeatures:
        """Features of (B, 3, S, S) normalised pixels."""
        ...

    def with_threads(self, threads: int) -> Backend | None:
        """The same model, computed by so many threads per call; None where the runtime divides the cores by itself."""
        ...


@dataclass(frozen=True)
class PreparedImage:
    """A photo, opened and preprocessed: all that the later stages need of it, small enough to queue and to pickle."""

    source: str  # its path, or empty
    pixels: tuple[np.ndarray, ...] = field(repr=False)  # one (S, S, 3) of bytes for each model
    size: tuple[int, int]  # width and height of the upright photo
    frame: Box  # the part that the first model encodes: left, top, right, bottom as shares of width and height
    picture: Image | None = field(default=None, repr=False)  # that part, to be drawn on


def prepare_image(
    source: ImageSource,
    preprocesses: Sequence[Preprocess],
    *,
    picture_side: int = 0,
    max_pixels: int = MAX_PIXELS,
    name: str = "",
) -> PreparedImage:
    """Open a photo and preprocess it for each model; `ImageError` says what is wrong with it.

    Needs no model, so that worker processes can run it. Pixels stay bytes until they are encoded: floats would take
    four times as long to cross between processes. ``picture_side`` keeps a picture with sides of at most so many
    pixels, to be drawn on. ``name`` is what error messages call a photo that is given as bytes.
    """
    image = open_image(source, max_pixels=max_pixels, called=name)
    first = preprocesses[0]
    return PreparedImage(
        str(source) if isinstance(source, str | Path | FileSlice) else "",
        tuple(np.asarray(preprocess.visible(image)) for preprocess in preprocesses),
        image.size,
        first.frame(*image.size),
        first.crop(image, picture_side) if picture_side else None,
    )


def as_array(value: Any) -> np.ndarray:
    """A tensor of torch or an array, as an array of float32."""
    return value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
