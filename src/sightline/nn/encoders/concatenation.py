"""Several encoders side by side: a grid cell has the features of all of them, one after another.

``encoder.name="clip-vit-b16+dinov2-vits14"``. All see the same pixels, each normalised as its own weights expect, and
their grids are pooled to one size (``encoder.grid``). ``encoder.weights`` names a file for each, joined by "+" as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.errors import ConfigError
from sightline.io.preprocess import Preprocess
from sightline.nn.encoders.base import Encoder
from sightline.recipes.config import PLUS


class Concatenation(Encoder):
    def __init__(
        self,
        build: Callable[..., Encoder],  # makes each part from its name and options
        name: str,
        weights: str = "random",
        image_size: int | None = None,
        grid: int | None = None,
        fit: Literal["crop", "squash"] = "crop",
        options: dict[str, Any] | None = None,
        preprocess: Preprocess | None = None,
        shape: tuple[int, int, int] | None = None,
    ):
        super().__init__()
        self.name, self.grid = name, grid
        names = name.split(PLUS)
        files = [weights] * len(names) if weights in ("library", "random") else weights.split(PLUS)
        saved = (options or {}).get("parts") or [{} for _ in names]
        for what, found in (("weights", files), ("options.parts", saved)):
            if len(found) != len(names):
                raise ConfigError(
                    f"encoder.{what} has {len(found)} of {len(names)}: name one for each of {PLUS.join(names)}"
                )
        size = preprocess.size if preprocess else image_size
        parts = [
            build(part, weights=file, image_size=size, grid=grid, fit=fit, options=own.get("options"))
            for part, file, own in zip(names, files, saved)
        ]
        _check_alike(parts)
        self.parts = nn.ModuleList(parts)
        self.preprocess = preprocess or parts[0].preprocess
        self.options: dict[str, Any] = {
            "parts": [
                {
                    "options": part.options,
                    "mean": list(own.get("mean", part.preprocess.mean)),
                    "std": list(own.get("std", part.preprocess.std)),
                }
                for part, own in zip(parts, saved)
            ]
        }
        for index, own in enumerate(self.options["parts"]):  # from this encoder's normalised pixels to the part's
            scale = torch.tensor(self.preprocess.std) / torch.tensor(own["std"])
            shift = (torch.tensor(self.preprocess.mean) - torch.tensor(own["mean"])) / torch.tensor(own["std"])
            self.register_buffer(f"scale_{index}", scale[:, None, None], persistent=False)
            self.register_buffer(f"shift_{index}", shift[:, None, None], persistent=False)
        self.measure(shape)

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = [
            part.maps(images * self.get_buffer(f"scale_{index}") + self.get_buffer(f"shift_{index}"))  # type: ignore
            for index, part in enumerate(self.parts)
        ]
        return torch.cat([maps for maps, _ in found], 1), torch.cat([pooled for _, pooled in found], 1)


def _check_alike(parts: list[Encoder]) -> None:
    """One size of pixels for all, and one grid."""
    for setting, sizes in (
        ("encoder.image_size", [part.preprocess.size for part in parts]),
        ("encoder.grid", [part.height for part in parts]),
    ):
        if len(set(sizes)) > 1:
            each = ", ".join(f"{part.name} {size}" for part, size in zip(parts, sizes))
            raise ConfigError(f"{setting} differs ({each}): set one for all, such as {setting}={min(sizes)}")
