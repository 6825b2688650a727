"""A caption with all there is to say about it: each word's map, its heads, its runners-up, and the other captions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.decoding import as_steps
from sightline.errors import ConfigError
from sightline.io.files import atomic_path, printable, write_atomically
from sightline.io.images import ImageSource, open_image
from sightline.types import Caption

if TYPE_CHECKING:
    from PIL.Image import Image

    from sightline.engine.captioner import Captioner

SUFFIXES = (".png", ".html")
LONGEST = 1024  # pixels of the photo's longer side on a page
OTHERS = 5


@dataclass(frozen=True)
class Explanation:
    """``caption.words[i].attention`` is each word's map, found by ``method``."""

    caption: Caption
    method: Literal["attention", "occlusion"]
    by_head: np.ndarray | None = field(default=None, repr=False, compare=False)  # (words, blocks, heads, h, w)

    def picture(self) -> Image:
        from sightline.explain.picture import HIDDEN, LOOKED, draw

        return draw(self.caption, LOOKED if self.method == "attention" else HIDDEN)

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


def explain(captioner: Captioner, source: ImageSource, occlusion: bool = False, **options: Any) -> Explanation:
    """Caption one photo and find out where each word came from; ``options`` are `DecodingOptions`.

    The map is the model's attention; without one, or with ``occlusion``, it is found by hiding patches of the photo.
    """
    from sightline.explain.occlusion import occlusion_maps
    from sightline.explain.trace import attention_by_head

    options = {"alternatives": 5, **options}
    if "candidates" not in options:
        chosen = captioner.decoding(**options)
        options["candidates"] = OTHERS if chosen.sample else min(OTHERS, chosen.beam)
    chosen = captioner.decoding(**options)
    photo = open_image(source)
    features = captioner.encode([photo])
    caption = captioner.decode(features, chosen)[0]
    name = str(source) if isinstance(source, str | Path) else ""
    visible = captioner.models[0].encoder.preprocess.seen(photo, LONGEST)
    caption = replace(caption, source=name, photo=visible)
    words = [positions for _, positions in captioner.tokenizer.words(caption.tokens)]
    if occlusion or any(word.attention is None for word in caption.words):
        maps = occlusion_maps(captioner, photo, caption.tokens, words)
        found = tuple(replace(word, attention=own) for word, own in zip(caption.words, maps))
        return Explanation(replace(caption, words=found), "occlusion")
    by_head = None
    if len(captioner.models) == 1:  # heads of different models have nothing to do with each other
        decoder = captioner.steered(as_steps(captioner.models[0].decoder))
        by_head = attention_by_head(decoder, features[0], caption.tokens, words)
    if by_head is not None:
        by_head = by_head.reshape(*by_head.shape[:3], features[0].height, features[0].width)
    return Explanation(caption, "attention", by_head)


def check_suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{printable(path)} is neither a picture nor a page: name a file that ends in .png or .html")
    return suffix
