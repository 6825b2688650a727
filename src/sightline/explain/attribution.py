"""Where each word of a caption came from: attention by head, and occlusion sensitivity for models without attention.

Both feed a finished caption through the decoder again, teacher-forced, so that the search itself carries nothing that
only an explanation needs. Occlusion sensitivity (Zeiler and Fergus, 2014, section 4.2) hides a patch of the photo and
asks how much less likely each word becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sightline.decoding.hypotheses import Features, StepDecoder, log_softmax
from sightline.io.progress import track
from sightline.tokenizers.base import Tokenizer
from sightline.types import ImageFeatures

if TYPE_CHECKING:
    from sightline.engine.backend import PreparedImage
    from sightline.engine.captioner import Captioner

CELLS = 8  # the occlusion map's side; the patch covers 2 x 2 cells and slides by one: 7 x 7 patches
PATCH = 2
BATCH = 16


@dataclass(frozen=True)
class ForcedOutput:
    """What a decoder gives for T fixed tokens on each of B photos."""

    log_probs: np.ndarray  # (B, T): of each token, given those before it
    extras: dict[str, np.ndarray]  # each (B, T, ...), e.g. attention, gate, attention_by_head


def teacher_forced(decoder: StepDecoder, features: Features, tokens: Sequence[int]) -> ForcedOutput:
    """``tokens`` are a caption's, without start and end; all photos get the same ones."""
    batch = len(features if isinstance(features, ImageFeatures) else features[0])
    state = decoder.start(features)
    outputs = []
    for previous in [Tokenizer.start, *tokens][:-1]:
        logits, state, extras = decoder.step(np.full(batch, previous), state)
        outputs.append((logits, extras))
    if not outputs:
        return ForcedOutput(np.zeros((batch, 0)), {})
    log_probs = log_softmax(np.concatenate([logits for logits, _ in outputs]))  # (T * B, V)
    chosen = log_probs[np.arange(len(log_probs)), np.repeat(tokens, batch)].reshape(-1, batch).T  # (B, T)
    names = outputs[0][1]
    return ForcedOutput(chosen, {name: np.stack([extras[name] for _, extras in outputs], 1) for name in names})


def attention_by_head(
    decoder: StepDecoder, features: ImageFeatures, tokens: Sequence[int], words: Sequence[Sequence[int]]
) -> np.ndarray | None:
    """(words, blocks, heads, height, width) for one photo, or None where the decoder has no heads.

    ``words`` are the positions in ``tokens`` of each displayed word; a word of several tokens gets their mean.
    """
    by_head = teacher_forced(decoder, features, tokens).extras.get("attention_by_head")  # (1, T, blocks, heads, N)
    if by_head is None or not words:
        return None
    found = np.stack([by_head[0, list(positions)].mean(0) for positions in words])
    return found.reshape(*found.shape[:3], features.height, features.width)


def occlusion_maps(
    captioner: Captioner, image: PreparedImage, tokens: Sequence[int], words: Sequence[Sequence[int]]
) -> np.ndarray:
    """(words, 8, 8): by how much each word's log-probability falls where the photo is hidden; a rise counts as 0.

    Each cell gets the mean over the patches that cover it.
    """
    if not words:
        return np.zeros((0, CELLS, CELLS))
    backends = captioner.backends
    pixels = [
        backend.preprocess.normalise(square[None])[0]  # (3, S, S)
        for backend, square in zip(backends, image.pixels)
    ]
    steps = CELLS - PATCH + 1
    patches = [(top, left) for top in range(steps) for left in range(steps)]

    def scores(chosen: Sequence[tuple[int, int] | None]) -> np.ndarray:
        """(patches, words)"""
        features = [
            backend.encode(np.stack([hide(square, patch) for patch in chosen]))
            for backend, square in zip(backends, pixels)
        ]
        given = features[0] if len(features) == 1 else features
        log_probs = teacher_forced(captioner.decoder, given, tokens).log_probs  # (patches, T)
        return np.stack([log_probs[:, list(positions)].sum(1) for positions in words], 1)

    whole = scores([None])
    batches = [patches[start : start + BATCH] for start in range(0, len(patches), BATCH)]
    falls = np.concatenate([whole - scores(batch) for batch in track(batches, "hiding patches")]).clip(min=0)
    total, covered = np.zeros((len(words), CELLS, CELLS)), np.zeros((CELLS, CELLS))
    for (top, left), fall in zip(patches, falls):
        where = np.s_[..., top : top + PATCH, left : left + PATCH]
        total[where] += fall[:, None, None]
        covered[where] += 1
    return total / covered


def hide(pixels: np.ndarray, patch: tuple[int, int] | None) -> np.ndarray:
    """The normalised photo (3, S, S) with one patch of the mean colour, which is zero; None hides nothing."""
    if patch is None:
        return pixels
    side = pixels.shape[-1]
    (top, bottom), (left, right) = (
        (round(start * side / CELLS), round((start + PATCH) * side / CELLS)) for start in patch
    )
    hidden = pixels.copy()
    hidden[:, top:bottom, left:right] = 0
    return hidden
