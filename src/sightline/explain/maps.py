"""From a map over the grid to light over a photo: scale, upsample, smooth, and one colour scale for every picture.

As in Show, Attend and Tell (section 5.4): upsampled to the photo's size and smoothed with a Gaussian.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SPREAD = 0.6  # the Gaussian's standard deviation, in places of the grid
HIGHEST = 2.5  # of a scaled map before smoothing: one place of the grid among dark ones keeps less than half its light
FAINT = 0.3  # maps weaker than this share of their caption's strongest stay dim: noise is not blown up to light
COLOUR = 2  # half the light is enough to see colours by
NIGHT, LAMP = (9, 12, 28), (255, 190, 92)


def scaled(grids: Sequence[np.ndarray]) -> np.ndarray:
    """The maps of one caption's words (W, h, w), so that once smoothed they are 0 at their mean and 1 at their peak.

    Unsmoothed, a single bright place may exceed 1, but never `HIGHEST`.
    """
    maps = np.stack(grids).astype(np.float64)
    maps = (maps - maps.mean((1, 2), keepdims=True)).clip(min=0)  # an even look lights nothing
    finer = (5 * maps.shape[2], 5 * maps.shape[1])  # enough to find the smoothed peak
    peaks = np.array([upsampled(own, finer).max() for own in maps])
    return maps / np.maximum(np.maximum(peaks, FAINT * peaks.max()), 1e-12)[:, None, None]


def upsampled(grid: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map (h, w) as (height, width) of a picture of ``size`` (width, height), smooth, its values kept in range."""
    across, down = (_weights(places, pixels) for places, pixels in zip(grid.shape[::-1], size))
    return down @ grid @ across.T


def _weights(places: int, pixels: int) -> np.ndarray:
    """(pixels, places): how much each place of the grid counts for each pixel; every row sums to 1."""
    position = (np.arange(pixels) + 0.5) * places / pixels - 0.5
    weights = np.exp(-0.5 * ((position[:, None] - np.arange(places)) / SPREAD) ** 2)
    return weights / weights.sum(1, keepdims=True)


def lit(photo: Image.Image, light: np.ndarray) -> Image.Image:
    """The photo at night, grey and dark, with a warm lamp where ``light`` (h, w), as `scaled` gives it, falls."""
    levels = np.rint(255 * upsampled(light, photo.size).clip(0, 1)).astype(np.uint8)
    colour = Image.fromarray(np.minimum(255, COLOUR * levels.astype(np.uint16)).astype(np.uint8))
    grey = photo.convert("L").convert("RGB")
    veil = Image.fromarray(SCALE[levels])  # (H, W, 4)
    return Image.alpha_composite(Image.composite(photo, grey, colour).convert("RGBA"), veil).convert("RGB")


def _scale() -> np.ndarray:
    """(256, 4): the colour laid over a pixel that got this much light. The page in the browser uses the same table."""
    light = np.linspace(0, 1, 256)
    night = 0.70 * (1 - light) ** 1.25  # opacity of the dark
    lamp = 0.22 * light**1.5  # opacity of the glow, which lies on top
    alpha = lamp + night * (1 - lamp)
    share = (lamp / np.maximum(alpha, 1e-9))[:, None]
    colour = share * np.array(LAMP) + (1 - share) * np.array(NIGHT)
    return np.rint(np.concatenate([colour, 255 * alpha[:, None]], 1)).astype(np.uint8)


SCALE = _scale()
