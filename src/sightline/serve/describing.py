"""What the server asks of a `Captioner`: photos opened ahead in other threads, captions in batches, maps for words.

The same functions in the same order as `Captioner.caption` and `sightline.explain.explain`, cut where threads change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.engine.captioner import Captioner
from sightline.explain.maps import scaled
from sightline.explain.occlusion import occlusion_maps
from sightline.io.images import Box, open_image
from sightline.onnx import Exported
from sightline.onnx.session import all_threads
from sightline.types import Caption, ImageFeatures

if TYPE_CHECKING:
    from sightline.decoding import DecodingOptions

THREADS = 4  # that compute, at most, each with its share of the cores
MOST = 1000  # photos: as many as there are
RUNNERS_UP = 5
OTHERS = 5


@dataclass(frozen=True)
class Question:
    """How photos are to be described; those with equal questions go together."""

    options: DecodingOptions
    maps: bool = False
    occlusion: bool = False

    @property
    def alone(self) -> bool:
        return self.occlusion  # some fifty times the work


@dataclass(frozen=True)
class Photo:
    """A photo as the encoders want it, so that what waits is small; its file only where it is needed once more."""

    pixels: tuple[np.ndarray, ...]  # one (3, S, S) for each model
    seen: Box
    data: bytes | None


@dataclass(frozen=True)
class Seen:
    """What the encoders made of a photo."""

    features: tuple[ImageFeatures, ...]  # of one photo, one for each model
    photo: Photo


@dataclass(frozen=True)
class Description:
    caption: Caption
    method: str  # attention or occlusion
    seen: Box


class Describer:
    """Each thread has a photo of its own and its share of the cores, a lone photo, too.

    Cores that share a photo wait for each other at every layer of the network: on two cores a lone photo would be told
    of in 51 ms instead of 64, for a quarter more processor time, and would hold up whoever comes next.
    """

    def __init__(self, captioner: Captioner, max_pixels: int):
        self.threads, self.at_once, self.captioner = divided(captioner)
        self.max_pixels = max_pixels
        self.attends = True  # until shown otherwise

    def question(self, given: dict[str, Any], maps: bool) -> Question:
        """The model's own options with those given; `ConfigError` where they contradict each other."""
        given = dict(given)
        occlusion = bool(given.pop("occlusion", False)) or (maps and not self.attends)
        own = self.captioner.options
        if "candidates" in given and "beam" not in given and not given.get("sample"):
            given["beam"] = max(own.beam, given["candidates"])
        given |= {"alternatives": RUNNERS_UP} if maps else {"want_attention": False}
        options = self.captioner.decoding(**given)
        if maps and "candidates" not in given:
            options = replace(options, candidates=OTHERS if options.sample else min(OTHERS, options.beam))
        return Question(options, maps, occlusion)

    def prepare(self, data: bytes, maps: bool, name: str = "") -> Photo:
        """Open and preprocess; `ImageError` if that cannot be done. May run in any thread."""
        image = open_image(data, max_pixels=self.max_pixels, called=name)
        steps = [model.encoder.preprocess for model in self.captioner.models]
        pixels = tuple(step.pixels(image) for step in steps)
        return Photo(pixels, steps[0].frame(*image.size), data if maps else None)

    def encode(self, photos: Sequence[Photo]) -> list[Seen]:
        every = zip(self.captioner.models, zip(*(photo.pixels for photo in photos)))
        features = [model.encoder.encode(np.stack(pixels)) for model, pixels in every]
        return [
            Seen(tuple(own[place : place + 1] for own in features), replace(photo, pixels=()))
            for place, photo in enumerate(photos)
        ]

    def tell(self, seen: Sequence[Seen], question: Question) -> list[Description]:
        features = [ImageFeatures.joined(own) for own in zip(*(one.features for one in seen))]
        captions = self.captioner.decode(features, question.options)
        return [self._description(question, caption, one.photo) for caption, one in zip(captions, seen)]

    def _description(self, question: Question, caption: Caption, photo: Photo) -> Description:
        hidden = question.occlusion or any(word.attention is None for word in caption.words)
        if not question.maps or photo.data is None or not hidden:
            return Description(caption, "attention", photo.seen)
        words = [positions for _, positions in self.captioner.tokenizer.words(caption.tokens)]
        image = open_image(photo.data, max_pixels=self.max_pixels)
        maps = occlusion_maps(self.captioner, image, caption.tokens, words)
        found = tuple(replace(word, attention=own) for word, own in zip(caption.words, maps))
        return Description(replace(caption, words=found), "occlusion", photo.seen)


def divided(captioner: Captioner) -> tuple[int, int, Captioner]:
    """How many threads may caption side by side, how many photos each looks at together, and what it does so with."""
    models = [model for model in captioner.checkpoints if isinstance(model, Exported)]
    if len(models) < len(captioner.checkpoints):
        return 1, MOST, captioner  # torch, which divides a batch among the cores by itself
    threads = min(THREADS, all_threads())
    if threads > 1:
        memory = captioner.recall.memory if captioner.recall else None
        captioner = Captioner([model.with_threads(all_threads() // threads) for model in models], memory=memory)
    return threads, min(model.encoder.at_once for model in captioner.models), captioner


def as_explanation(description: Description) -> dict[str, Any]:
    """`Caption.as_dict` with, for each word, its map, the same as light to be drawn, and its runners-up."""
    caption = description.caption
    maps = [word.attention for word in caption.words if word.attention is not None]
    lights: Sequence[Any] = list(scaled(maps)) if maps else []
    answer = caption.as_dict()
    for told, word, own, light in zip(answer["words"], caption.words, maps, lights):
        told["attention"] = _rounded(own)
        told["light"] = _rounded(light)
        if word.gate is not None:
            told["gate"] = round(word.gate, 4)
        told["alternatives"] = [
            {"text": text, "probability": round(chance, 4)} for text, chance in word.alternatives
        ]  # fmt: skip
    return answer | {
        "sentence": caption.sentence(),
        "certainty": caption.certainty(),
        "method": description.method,
        "seen": [round(share, 6) for share in description.seen],
    }


def _rounded(grid: Any) -> list[list[float]]:
    return [[round(float(value), 4) for value in row] for row in grid]
