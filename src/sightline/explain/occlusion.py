"""Where a model without attention looked: hide a patch of the photo and see which words become less likely.

Occlusion sensitivity (Zeiler and Fergus, 2014, section 4.2) of a given caption: the words stay, teacher-forced, and
only their log-probabilities are asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.decoding import Ensemble
from sightline.explain.trace import replay
from sightline.io.progress import track

if TYPE_CHECKING:
    from PIL.Image import Image

    from sightline.engine.captioner import Captioner

PLACES = 8  # the map's side; the patch covers 2 x 2 places and slides by one: 7 x 7 patches
PATCH = 2
BATCH = 16


def occlusion_maps(
    captioner: Captioner, photo: Image, tokens: Sequence[int], words: Sequence[Sequence[int]]
) -> np.ndarray:
    """(words, 8, 8): by how much each word's log-probability falls where the photo is hidden; a gain counts as 0.

    Each place gets the mean over the patches that cover it.
    """
    pixels = [model.encoder.preprocess.pixels(photo) for model in captioner.models]
    decoder = captioner.steered(Ensemble([model.decoder for model in captioner.models]))
    steps = PLACES - PATCH + 1
    patches = [(top, left) for top in range(steps) for left in range(steps)]

    def scores(chosen: Sequence[tuple[int, int] | None]) -> np.ndarray:
        """(patches, words)"""
        features = [
            model.encoder.encode(np.stack([hide(own, patch) for patch in chosen]))
            for model, own in zip(captioner.models, pixels)
        ]
        log_probs = replay(decoder, features, tokens).log_probs  # (patches, T)
        return np.stack([log_probs[:, list(positions)].sum(1) for positions in words], 1)

    if not words:
        return np.zeros((0, PLACES, PLACES))
    whole = scores([None])
    batches = [patches[start : start + BATCH] for start in range(0, len(patches), BATCH)]
    fall = np.concatenate([whole - scores(batch) for batch in track(batches, "hiding patches")]).clip(min=0)
    total, covered = np.zeros((len(words), PLACES, PLACES)), np.zeros((PLACES, PLACES))
    for (top, left), falls in zip(patches, fall):
        where = np.s_[..., top : top + PATCH, left : left + PATCH]
        total[where] += falls[:, None, None]
        covered[where] += 1
    return total / covered


def hide(pixels: np.ndarray, patch: tuple[int, int] | None) -> np.ndarray:
    """The normalised photo (3, S, S) with one patch of the mean colour, which is zero; None hides nothing."""
    if patch is None:
        return pixels
    side = pixels.shape[-1]
    (top, bottom), (left, right) = (
        (round(start * side / PLACES), round((start + PATCH) * side / PLACES)) for start in patch
    )
    hidden = pixels.copy()
    hidden[:, top:bottom, left:right] = 0
    return hidden
