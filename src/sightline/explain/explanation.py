"""A caption with all that explains it: a map for each word, its heads and top-k alternatives, and other captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.errors import ConfigError
from sightline.io.files import atomic_path, printable, write_atomically
from sightline.types import Caption

if TYPE_CHECKING:
    from PIL.Image import Image

    from sightline.decoding import DecodingOptions
    from sightline.engine.backend import PreparedImage
    from sightline.engine.captioner import Captioner
    from sightline.io.images import Box, ImageSource

SUFFIXES = (".png", ".html")
PICTURE_SIDE = 1024  # pixels of the photo's longer side on a page
ALTERNATIVES = 5
CANDIDATES = 5


@dataclass(frozen=True)
class Explanation:
    """``caption.words[i].attention`` is each word's map over the part ``frame`` of the photo, found by ``method``."""

    caption: Caption
    method: Literal["attention", "occlusion"]
    by_head: np.ndarray | None = field(default=None, repr=False, compare=False)  # (words, blocks, heads, h, w)
    frame: Box = (0.0, 0.0, 1.0, 1.0)  # left, top, right, bottom as shares of the photo

    def picture(self) -> Image:
        from sightline.explain.picture import ATTENTION, OCCLUSION, draw

        return draw(self.caption, ATTENTION if self.method == "attention" else OCCLUSION)

    def page(self) -> str:
        from sightline.explain.page import render

        return render(self)

    def save(self, path: str | Path) -> None:
        """A picture (.png) or a page (.html), whole or not at all."""
        if check_suffix(path) == ".html":
            write_atomically(path, self.page())
            return
        picture = self.picture()
        with atomic_path(path) as temporary:
            picture.save(temporary, "PNG", optimize=True)

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
    """Caption one photo and find where each word came from; ``options`` are `DecodingOptions`.

    The map is the model's attention; without one, or with ``occlusion``, it is found by hiding patches of the photo.
    """
    chosen = explain_options(captioner, **options)
    image = captioner.prepare(source, picture_side=PICTURE_SIDE)
    features = captioner.encode([image])
    (caption,) = captioner.finish(captioner.decode(features, chosen), features, [image])
    explanation = explain_caption(captioner, image, caption, occlusion)
    if explanation.method == "occlusion" or len(features) > 1:  # heads of different models cannot be compared
        return explanation
    from sightline.explain.attribution import attention_by_head

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
    from sightline.explain.attribution import occlusion_maps

    maps = occlusion_maps(captioner, image, caption.tokens, _positions(captioner, caption))
    words = tuple(replace(word, attention=attention) for word, attention in zip(caption.words, maps))
    return Explanation(replace(caption, words=words), "occlusion", frame=image.frame)


def _positions(captioner: Captioner, caption: Caption) -> list[list[int]]:
    """The positions in ``caption.tokens`` of each word."""
    return [positions for _, positions in captioner.tokenizer.words(caption.tokens)]


def _rounded(grid: np.ndarray) -> list[list[float]]:
    return [[round(float(value), 4) for value in row] for row in grid]


def check_suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{printable(path)} is neither a picture nor a page: name a file that ends in .png or .html")
    return suffix
