"""From an RGB image to the pixels that an encoder takes: resized, cropped, normalised, for training also augmented."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import printable
from sightline.io.images import open_image

if TYPE_CHECKING:  # imported where tensors are made: captioning with onnxruntime needs no torch
    import torch
    from torch import Tensor

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels of the photo
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocess:
    """From an RGB image to the square the encoder was trained on; belongs to its weights and travels with them.

    ``crop``: the shorter side becomes ``resize``, then the central ``size`` × ``size`` is cut out.
    ``squash``: the whole photo becomes ``size`` × ``size``.
    """

    size: int = 224
    mean: Triple = (0.485, 0.456, 0.406)  # ImageNet's
    std: Triple = (0.229, 0.224, 0.225)
    resize: int = 256
    fit: Literal["crop", "squash"] = "crop"
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"

    def __post_init__(self) -> None:
        for field, valid, wanted in (
            ("size", _is_side(self.size), "a whole number from 1 to 4096"),
            ("mean", _is_triple(self.mean), "three numbers"),
            ("std", _is_triple(self.std) and min(self.std) > 0, "three numbers above 0"),
            ("resize", _is_side(self.resize), "a whole number from 1 to 4096"),
            ("fit", self.fit in ("crop", "squash"), "crop or squash"),
            ("interpolation", self.interpolation in ("bilinear", "bicubic"), "bilinear or bicubic"),
        ):
            if not valid:
                raise ConfigError(f"preprocess.{field} is {printable(repr(getattr(self, field)))}: it must be {wanted}")
        if self.fit == "crop" and self.resize < self.size:
            raise ConfigError(f"preprocess.resize is {self.resize}: it must be at least preprocess.size, {self.size}")

    def __call__(self, image: Image.Image) -> Tensor:
        """(3, size, size), float32, normalised."""
        import torch

        return torch.from_numpy(self.pixels(image))

    def pixels(self, image: Image.Image) -> np.ndarray:
        """The same as an array."""
        return self.normalise(np.asarray(self.visible(image))[None])[0]

    def normalise(self, squares: np.ndarray) -> np.ndarray:
        """(B, size, size, 3) bytes, the arrays of `visible`, to the encoder's input: (B, 3, size, size), float32."""
        pixels = np.ascontiguousarray(squares.transpose(0, 3, 1, 2), np.float32)
        pixels /= 255
        pixels -= _channels(self.mean)  # in place: a batch is 10 MB, and fresh memory costs more than the arithmetic
        pixels /= _channels(self.std)
        return pixels

    def visible(self, image: Image.Image) -> Image.Image:
        """The exact square that is encoded, as a picture."""
        return self._resize(image, self._box(image.width, image.height))

    def crop(self, image: Image.Image, longest: int = 640) -> Image.Image:
        """The part of the photo that is encoded, undistorted: for people to look at.

        Not the encoder's pixels: no side is longer than ``longest``, and none is enlarged or squashed.
        """
        left, top, right, bottom = self._box(image.width, image.height)
        box = (left, top, min(right, image.width), min(bottom, image.height))
        width, height = box[2] - box[0], box[3] - box[1]
        scale = min(1.0, longest / max(width, height))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        return image.resize(size, Image.Resampling.LANCZOS, box, reducing_gap=3.0)

    def frame(self, width: int, height: int) -> Box:
        """The part of a photo of this size that is encoded, as shares of its width and height."""
        left, top, right, bottom = self._box(width, height)
        return (left / width, top / height, min(1.0, right / width), min(1.0, bottom / height))

    def augmented(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """As ``__call__``, after a mild random crop, flip, rotation, brightness and contrast drawn from ``generator``.

        The four augmentations of the CNN + LSTM recipe; its source gives no strengths, these are ours. The corners
        a rotation uncovers take the mean colour, which is zero once normalised.
        """
        import torch

        area, ratio, across, down, flip, turn, brightness, contrast = torch.rand(8, generator=generator).tolist()
        square = min(image.size)
        width, height = image.size if self.fit == "squash" else (square, square)
        area, stretch = 0.7 + 0.3 * area, (4 / 3) ** (ratio - 0.5)
        width = min(image.width, width * math.sqrt(area) * stretch)
        height = min(image.height, height * math.sqrt(area) / stretch)
        left, top = across * (image.width - width), down * (image.height - height)
        picture = self._resize(image, (left, top, left + width, top + height))
        if flip < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        background = tuple(round(255 * min(1.0, max(0.0, value))) for value in self.mean)
        picture = picture.rotate(16 * turn - 8, Image.Resampling.BILINEAR, fillcolor=background)  # within ±8 degrees
        pixels = _to_array(picture) * (0.8 + 0.4 * brightness)
        grey = pixels.mean()
        return torch.from_numpy(self._standardise(((pixels - grey) * (0.8 + 0.4 * contrast) + grey).clip(0, 1)))

    def unnormalise(self, pixels: Tensor) -> Image.Image:
        """The picture a (3, size, size) tensor of ours shows."""
        shown = pixels.detach().cpu().float().numpy() * _channels(self.std) + _channels(self.mean)
        return Image.fromarray(np.rint(255 * shown.clip(0, 1)).astype(np.uint8).transpose(1, 2, 0))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocess:
        """Every field must be there, and nothing else; `CheckpointError` names the one at fault."""
        if not isinstance(values, Mapping):
            raise CheckpointError("preprocess is not a JSON object: the model's config.json is damaged")
        names = {field.name for field in fields(cls)}
        if names != set(values):
            wrong = printable(min(map(str, names ^ set(values))))
            problem = "is missing from" if wrong in names else "is unknown in"
            raise CheckpointError(f"preprocess.{wrong} {problem} the model's config.json: the file is damaged")
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        try:
            return cls(**arguments)
        except ConfigError as error:
            raise CheckpointError(f"{error}; the model's config.json is damaged") from None

    def _box(self, width: int, height: int) -> Box:
        """What part of the photo is encoded.

        The rounding is that of "resize, then centre crop", without ever building the resized whole: a strip of
        1 × 10,000 pixels costs no more than any other photo.
        """
        if self.fit == "squash":
            return (0, 0, width, height)
        scale = self.resize / min(width, height)
        sides = []
        for length in (width, height):
            resized = max(self.resize, int(length * scale))
            start = round((resized - self.size) / 2)
            sides.append((start * length / resized, (start + self.size) * length / resized))
        (left, right), (top, bottom) = sides
        return (left, top, right, bottom)

    def _resize(self, image: Image.Image, box: Box) -> Image.Image:
        image = image if image.mode == "RGB" else open_image(image)
        filter_ = Image.Resampling.BICUBIC if self.interpolation == "bicubic" else Image.Resampling.BILINEAR
        left, top, right, bottom = box
        inside = (left, top, min(right, image.width), min(bottom, image.height))  # rounding may step out by a hair
        return image.resize((self.size, self.size), filter_, box=inside)

    def _standardise(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels - _channels(self.mean)) / _channels(self.std)


def _to_array(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image).transpose(2, 0, 1)  # (3, H, W)
    return np.ascontiguousarray(pixels, np.float32) / 255


def _channels(values: Triple) -> np.ndarray:
    return np.array(values, np.float32).reshape(3, 1, 1)


def _is_side(value: object) -> bool:
    return type(value) is int and 1 <= value <= 4096


def _is_triple(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 3
        and all(type(part) in (int, float) and math.isfinite(part) for part in value)
    )
