"""A caption with all that explains it: a map for each word, its heads and top-k alternatives, and other captions.

Maps are attention by head, or occlusion sensitivity for models without attention. Both feed a finished caption through
the decoder again, teacher-forced, so that the search itself carries nothing that only an explanation needs. Occlusion
sensitivity (Zeiler and Fergus, 2014, section 4.2) hides a patch of the photo and asks how much less likely each word
becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.decoding.hypotheses import Features, StepDecoder, log_softmax
from sightline.errors import ConfigError
from sightline.io.files import atomic_path, printable, write_atomically
from sightline.io.progress import track
from sightline.tokenizers.base import Tokenizer
from sightline.types import Caption, ImageFeatures

if TYPE_CHECKING:
    from PIL.Image import Image

    from sightline.decoding import DecodingOptions
    from sightline.engine.captioner import Captioner, PreparedImage
    from sightline.io.images import ImageSource
    from sightline.io.preprocess import Box


SUFFIXES = (".png", ".html")
PICTURE_SIDE = 1024  # pixels of the photo's longer side on a page
ALTERNATIVES = 5
CANDIDATES = 5
NO_CHANGE = 0.02  # fall of a log-probability: hiding no part makes the word even 2 % less likely
DARK = 0.25  # of full brightness: an occlusion map that stays below it looks black
# Why it does: the label below it in a picture, the sentence on a page, and the command's.
UNNEEDED, LITTLE, ALIKE = "no part needed", "changes little", "all parts alike"
REASONS = {
    UNNEEDED: (
        "Hiding no part of the photo makes this word less likely.",
        "hiding no part of the photo makes {} less likely, as the rest of it and the words before are enough",
    ),
    LITTLE: (
        "Hiding parts of the photo changes this word little, compared with the others.",
        "hiding parts of the photo changes {} little, compared with the other words",
    ),
    ALIKE: ("Hiding any part of the photo changes this word alike.", "hiding any part of the photo changes {} alike"),
}
CELLS = 8  # the occlusion map's side; the patch covers 2 x 2 cells and slides by one: 7 x 7 patches
PATCH = 2
BATCH = 16


@dataclass(frozen=True)
class Explanation:
    """``caption.words[i].attention`` is each word's map over the part ``frame`` of the photo, found by ``method``."""

    caption: Caption
    method: Literal["attention", "occlusion"]
    by_head: np.ndarray | None = field(default=None, repr=False, compare=False)  # (words, blocks, heads, h, w)
    frame: Box = (0.0, 0.0, 1.0, 1.0)  # left, top, right, bottom as shares of the photo

    def picture(self, paper: bool = False) -> Image:
        """``paper``: the maps as in the figures of Show, Attend and Tell."""
        from sightline.explain.picture import ATTENTION, OCCLUSION, draw

        return draw(self.caption, ATTENTION if self.method == "attention" else OCCLUSION, paper, self.dark)

    def page(self) -> str:
        from sightline.explain.page import render

        return render(self)

    def _repr_html_(self) -> str:
        """How a notebook shows it: the page in a frame of its own."""
        return f'<iframe style="width: 100%; height: 44rem; border: 0" srcdoc="{escape(self.page())}"></iframe>'

    def save(self, path: str | Path, paper: bool = False) -> None:
        """A picture (.png) or a page (.html), whole or not at all; ``paper`` as `picture` has it."""
        if check_suffix(path, paper) == ".html":
            write_atomically(path, self.page())
            return
        picture = self.picture(paper)
        with atomic_path(path) as temporary:
            picture.save(temporary, "PNG", optimize=True)

    @property
    def dark(self) -> tuple[str, ...]:
        """Of each word: why its occlusion map looks black, one of `REASONS`; empty where it does not."""
        from sightline.explain.heatmap import FAINT, peaks, scaled

        maps = [word.attention for word in self.caption.words if word.attention is not None]
        if self.method != "occlusion" or not maps or len(maps) < len(self.caption.words):
            return ("",) * len(self.caption.words)
        falls = [float(np.max(grid)) for grid in maps]
        little = FAINT * max(falls)
        return tuple(
            UNNEEDED if fall < NO_CHANGE else "" if brightest >= DARK else LITTLE if fall < little else ALIKE
            for fall, brightest in zip(falls, peaks(scaled(maps)))
        )

    def note(self) -> str:
        """Why some maps look black; empty where none does."""
        found = []
        for reason, (_, text) in REASONS.items():
            words = dict.fromkeys(word.text for word, dark in zip(self.caption.words, self.dark) if dark == reason)
            if words:
                have, them = ("has a dark map", "it") if len(words) == 1 else ("have dark maps", "them")
                found.append(f"{', '.join(f'“{word}”' for word in words)} {have}: {text.format(them)}")
        return "; ".join(found)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: `Caption.as_dict` with each word's map, its heat map to be drawn, and its alternatives."""
        from sightline.explain.heatmap import scaled

        words = self.caption.words
        maps = [word.attention for word in words if word.attention is not None]
        heat_maps: Sequence[Any] = list(scaled(maps)) if maps else []
        fields = self.caption.as_dict()
        for entry, word, attention, heat_map in zip(fields["words"], words, maps, heat_maps):
            entry["attention"] = _rounded(attention)
            entry["heat_map"] = _rounded(heat_map)
            if word.gate is not None:
                entry["gate"] = round(word.gate, 4)
            entry["alternatives"] = [
                {"text": text, "probability": round(probability, 4)} for text, probability in word.alternatives
            ]
        return fields | {
            "sentence": self.caption.sentence(),
            "certainty": self.caption.certainty(),
            "method": self.method,
            "frame": [round(share, 6) for share in self.frame],
        }


def explain(captioner: Captioner, source: ImageSource, occlusion: bool = False, **options: Any) -> Explanation:
    """Caption one photo and find what the model attended to for each word; ``options`` are `DecodingOptions`.

    The map is the model's attention; without one, or with ``occlusion``, it is found by hiding patches of the photo.
    """
    chosen = explain_options(captioner, **options)
    image = captioner.prepare(source, picture_side=PICTURE_SIDE)
    features = captioner.encode([image])
    (caption,) = captioner.finish(captioner.decode(features, chosen), features, [image])
    explanation = explain_caption(captioner, image, caption, occlusion)
    if explanation.method == "occlusion" or len(features) > 1:  # heads of different models cannot be compared
        return explanation

    by_head = attention_by_head(captioner.decoder, features[0], caption.tokens, _positions(captioner, caption))
    return replace(explanation, by_head=by_head)


def explain_options(captioner: Captioner, **options: Any) -> DecodingOptions:
    """`Captioner.options` with what an explanation shows: alternatives of each word, and other candidates."""
    options = {"alternatives": ALTERNATIVES, **options}
    chosen = captioner.options(**options)
    if "candidates" in options:
        return chosen
    return replace(chosen, candidates=CANDIDATES if chosen.sample else min(CANDIDATES, chosen.beam))


def explain_caption(
    captioner: Captioner, image: PreparedImage, caption: Caption, occlusion: bool = False
) -> Explanation:
    """A finished caption with a map for each word, without heads."""
    if not occlusion and all(word.attention is not None for word in caption.words):
        return Explanation(caption, "attention", frame=image.frame)

    maps = occlusion_maps(captioner, image, caption.tokens, _positions(captioner, caption))
    words = tuple(replace(word, attention=attention) for word, attention in zip(caption.words, maps))
    return Explanation(replace(caption, words=words), "occlusion", frame=image.frame)


def _positions(captioner: Captioner, caption: Caption) -> list[list[int]]:
    """The positions in ``caption.tokens`` of each word."""
    return [positions for _, positions in captioner.tokenizer.words(caption.tokens)]


def _rounded(grid: np.ndarray) -> list[list[float]]:
    return [[round(float(value), 4) for value in row] for row in grid]


def check_suffix(path: str | Path, paper: bool = False) -> str:
    suffix = Path(path).suffix.lower()
    if paper and suffix != ".png":
        raise ConfigError(f"{printable(path)}: only a picture can have the paper's maps: name a file that ends in .png")
    if suffix not in SUFFIXES:
        raise ConfigError(f"{printable(path)} is neither a picture nor a page: name a file that ends in .png or .html")
    return suffix


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
