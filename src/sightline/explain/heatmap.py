"""From a map over the grid to a heat map over a photo: scale, upsample, smooth, and one colour map for every picture.

After Show, Attend and Tell (section 5.4): upsampled to the photo's size and smoothed with a Gaussian. Ours is narrower
than the paper's, keeps the photo's colours where a map is bright, and is comparable between the words of a caption.
`paper_overlay` draws a map as the paper's own figures do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SPREAD = 0.6  # the Gaussian's standard deviation, in grid cells
HIGHEST = 2.5  # of a scaled map before smoothing: a single bright cell keeps less than half its value when smoothed
PAPER_FACTOR, PAPER_SIGMA = 16, 20  # 14x14 cells become 224 pixels; the Gaussian's standard deviation in these pixels
PAPER_OPACITY = 0.8  # of the map over the photo
FAINT = 0.3  # maps weaker than this share of their caption's strongest stay dim: noise is not amplified
COLOUR = 2  # half the heat is enough for full colour
COLD, HOT = (9, 12, 28), (255, 190, 92)


def scaled(grids: Sequence[np.ndarray]) -> np.ndarray:
    """The maps of one caption's words (W, h, w), so that once smoothed they are 0 at their mean and 1 at their peak.

    Unsmoothed, a single bright cell may exceed 1, but never `HIGHEST`.
    """
    maps = np.stack(grids).astype(np.float64)
    maps = (maps - maps.mean((1, 2), keepdims=True)).clip(min=0)  # uniform attention gives no heat
    highest = peaks(maps)
    return maps / np.maximum(np.maximum(highest, FAINT * highest.max()), 1e-12)[:, None, None]


def peaks(maps: np.ndarray) -> np.ndarray:
    """The highest value of each map (W, h, w) once it is smoothed."""
    finer = (5 * maps.shape[2], 5 * maps.shape[1])  # enough to find it
    return np.array([upsampled(grid, finer).max() for grid in maps])


def upsampled(grid: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map (h, w) as (height, width) of a picture of ``size`` (width, height), smooth, its values kept in range."""
    across, down = (_weights(cells, pixels) for cells, pixels in zip(grid.shape[::-1], size))
    return down @ grid @ across.T


def _weights(cells: int, pixels: int, spread: float = SPREAD) -> np.ndarray:
    """(pixels, cells): how much each cell of the grid counts for each pixel; every row sums to 1."""
    position = (np.arange(pixels) + 0.5) * cells / pixels - 0.5
    weights = np.exp(-0.5 * ((position[:, None] - np.arange(cells)) / spread) ** 2)
    return weights / weights.sum(1, keepdims=True)


def paper_map(grid: np.ndarray) -> np.ndarray:
    """A map (h, w) as (16 h, 16 w): upsampled linearly by 16, then smoothed with a Gaussian of 20 pixels.

    The Gaussian stands for the large receptive fields of the upper layers. Its weights at the border sum to 1, too.
    """
    rows, columns = (cells * PAPER_FACTOR for cells in grid.shape)
    linear = Image.fromarray(grid.astype(np.float32)).resize((columns, rows), Image.Resampling.BILINEAR)
    across, down = (_weights(pixels, pixels, spread=PAPER_SIGMA) for pixels in (columns, rows))
    return down @ np.asarray(linear, dtype=np.float64) @ across.T


def paper_overlay(photo: Image.Image, grid: np.ndarray) -> Image.Image:
    """The photo under a grey map: white where attention (h, w) is highest, black where it is lowest."""
    smooth = paper_map(grid)
    levels = (smooth - smooth.min()) / max(float(np.ptp(smooth)), 1e-12)
    grey = Image.fromarray(np.rint(255 * levels).astype(np.uint8)).resize(photo.size, Image.Resampling.BILINEAR)
    return Image.blend(photo.convert("RGB"), grey.convert("RGB"), PAPER_OPACITY)


def overlay(photo: Image.Image, heat: np.ndarray) -> Image.Image:
    """The photo, grey and dark where ``heat`` (h, w), as `scaled` gives it, is 0, and in warm colours where it is 1."""
    levels = np.rint(255 * upsampled(heat, photo.size).clip(0, 1)).astype(np.uint8)
    colour = Image.fromarray(np.minimum(255, COLOUR * levels.astype(np.uint16)).astype(np.uint8))
    grey = photo.convert("L").convert("RGB")
    layer = Image.fromarray(COLOUR_MAP[levels])  # (H, W, 4)
    return Image.alpha_composite(Image.composite(photo, grey, colour).convert("RGBA"), layer).convert("RGB")


def _colour_map() -> np.ndarray:
    """(256, 4): the colour laid over a pixel of this heat. The page in the browser uses the same table."""
    heat = np.linspace(0, 1, 256)
    cold = 0.70 * (1 - heat) ** 1.25  # opacity of the dark colour
    hot = 0.22 * heat**1.5  # opacity of the warm colour, which lies on top
    alpha = hot + cold * (1 - hot)
    share = (hot / np.maximum(alpha, 1e-9))[:, None]
    colour = share * np.array(HOT) + (1 - share) * np.array(COLD)
    return np.rint(np.concatenate([colour, 255 * alpha[:, None]], 1)).astype(np.uint8)


COLOUR_MAP = _colour_map()
