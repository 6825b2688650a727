"""How sure a caption is: chances fitted on photos with people's captions, and a mark for photos unlike the training's.

Plain arithmetic on what every runtime has, the words' probabilities and the encoder's pooled vector, with numbers from
a model folder's ``confidence.json``. What they mean and the file's format: docs/confidence.md.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sightline.errors import CheckpointError
from sightline.types import Caption, Word

SUREST = 1 - 1e-4  # a probability nearer to 0 or 1 counts as this one: its logit shall not decide alone
LARGEST_DIMENSION = 1 << 14


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Words(Part):
    """The chance that people also use a word: its probability, and how often this very word was right."""

    intercept: float
    slope: float
    offsets: dict[str, float]
    function_words: frozenset[str]  # those that say nothing of the photo, left out of a caption's mean

    def chance(self, word: Word) -> float:
        return sigmoid(self.intercept + self.slope * logit(word.probability) + self.offsets.get(word.text, 0.0))

    def content(self, words: Sequence[Word]) -> float:
        """The mean chance of the words that say something of the photo; of all, where none does."""
        chosen = [word for word in words if word.text not in self.function_words] or words
        return sum(map(self.chance, chosen)) / len(chosen) if chosen else 0.0


class Captions(Part):
    """The chance that a caption is right: its content words' mean chance, and their probabilities as a whole."""

    intercept: float
    words: float
    log_probability: float
    unsure_below: float = Field(ge=0, le=1)

    def chance(self, content: float, log_probability: float) -> float:
        return sigmoid(self.intercept + self.words * logit(content) + self.log_probability * log_probability)


class Photos(Part):
    """Where training photos hardly differ from each other: how far another one is off in these directions."""

    dimension: int = Field(ge=1, le=LARGEST_DIMENSION)
    directions: int = Field(ge=1, le=LARGEST_DIMENSION)
    mean: str  # base64 of little-endian halves: (dimension,)
    matrix: str  # (directions, dimension), each row divided by the training photos' deviation along it
    limit: float = Field(gt=0)

    @model_validator(mode="after")
    def _whole(self) -> Photos:
        for name, count in (("mean", self.dimension), ("matrix", self.directions * self.dimension)):
            values = _halves(getattr(self, name))
            if len(values) != count or not np.isfinite(values).all():
                raise ValueError(f"{name} does not hold {count} numbers")
        return self

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        return _halves(self.mean), _halves(self.matrix).reshape(self.directions, self.dimension)

    def ood_score(self, pooled: np.ndarray) -> np.ndarray:
        """(B, D) pooled vectors to (B,): above 1 a photo is unlike those the model learnt from."""
        mean, matrix = self._statistics
        along = (pooled.astype(np.float32) - mean) @ matrix.T  # (B, directions), about 1 each for a training photo
        return np.sqrt((along**2).mean(1)) / self.limit


class Confidence(Part):
    """What ``confidence.json`` holds; ``record`` says how it was fitted and how well it held on photos not used."""

    format: Literal["sightline-confidence-1"] = "sightline-confidence-1"
    words: Words
    captions: Captions
    photos: Photos
    record: dict[str, Any] = Field(default_factory=dict)

    def judge(self, captions: Sequence[Caption], pooled: np.ndarray) -> list[Caption]:
        """Each photo's caption, and its other candidates, with their chances and the mark."""
        return [self._judged(caption, float(own)) for caption, own in zip(captions, self.photos.ood_score(pooled))]

    def _judged(self, caption: Caption, ood_score: float) -> Caption:
        words = tuple(replace(word, calibrated=self.words.chance(word)) for word in caption.words)
        chance = self.captions.chance(self.words.content(words), log_likelihood(caption))
        return replace(
            caption,
            words=words,
            calibrated=chance,
            ood_score=ood_score,
            unsure=ood_score > 1 or chance < self.captions.unsure_below,
            others=tuple(self._judged(other, ood_score) for other in caption.others),
        )

    def to_json(self) -> dict[str, Any]:
        plain = self.model_dump(mode="json")
        plain["words"]["function_words"] = sorted(self.words.function_words)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any], dimension: int | None = None) -> Confidence:
        """The file's content again; ``dimension`` is that of the encoder's pooled vector."""
        try:
            found = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise CheckpointError(
                f"confidence.json is damaged: {place or 'the file'}: {first['msg']}; "
                "copy it again, or delete it and run `sightline calibrate`"
            ) from None
        if dimension is not None and found.photos.dimension != dimension:
            raise CheckpointError(
                f"confidence.json is of a model with {found.photos.dimension} features, this one has {dimension}: "
                "delete it and run `sightline calibrate`"
            )
        return found


def log_likelihood(caption: Caption) -> float:
    return math.log(max(caption.likelihood, 1e-30))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-min(max(value, -40.0), 40.0)))


def logit(chance: float) -> float:
    inside = min(max(chance, 1 - SUREST), SUREST)
    return math.log(inside / (1 - inside))


def encode_halves(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f2").tobytes()).decode("ascii")


def _halves(text: str) -> np.ndarray:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None
    return np.frombuffer(data[: len(data) // 2 * 2], dtype="<f2").astype(np.float32)
