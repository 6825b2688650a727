"""Confidence: calibrated probabilities, fitted on photos with people's captions, and an out-of-distribution score.

Plain arithmetic on what every runtime has, the words' probabilities and the encoder's pooled vector, with numbers from
a model folder's ``confidence.json``. What they mean and the file's format: docs/confidence.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sightline.errors import CheckpointError
from sightline.io.files import write_atomically
from sightline.io.model_files import read_json
from sightline.types import Caption, Word

FILE = "confidence.json"
HIGHEST = 1 - 1e-4  # a probability nearer to 0 or 1 counts as this one: its logit shall not decide alone
LARGEST_DIMENSION = 1 << 14


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Words(Part):
    """The probability that people also use a word, from the decoder's and from how often this very word was right."""

    intercept: float
    slope: float
    offsets: dict[str, float]
    function_words: frozenset[str]  # left out of a caption's mean: they describe nothing

    def probability(self, word: Word) -> float:
        return sigmoid(self.intercept + self.slope * logit(word.probability) + self.offsets.get(word.text, 0.0))

    def content(self, words: Sequence[Word]) -> float:
        """The mean probability of the content words; of all words, where none is a content word."""
        chosen = [word for word in words if word.text not in self.function_words] or words
        return sum(map(self.probability, chosen)) / len(chosen) if chosen else 0.0


class Captions(Part):
    """The probability that a caption is right, from the mean of its content words, its likelihood, and what the photo
    shows: a model is better at some subjects than at others, and people agree more about some."""

    intercept: float
    words: float
    log_probability: float
    photo: str | None = None  # weights of the pooled vector: (dimension,)
    unsure_below: float = Field(ge=0, le=1)

    def probability(self, content: float, log_probability: float, photo: float) -> float:
        return sigmoid(self.intercept + self.words * logit(content) + self.log_probability * log_probability + photo)

    @cached_property
    def _weights(self) -> np.ndarray | None:
        return None if self.photo is None else _halves(self.photo)

    def photo_terms(self, pooled: np.ndarray) -> np.ndarray:
        """(B, D) pooled vectors to (B,)."""
        return np.zeros(len(pooled)) if self._weights is None else pooled.astype(np.float32) @ self._weights


class Photos(Part):
    """The directions in which training photos vary least: how far another photo deviates along them."""

    dimension: int = Field(ge=1, le=LARGEST_DIMENSION)
    directions: int = Field(ge=1, le=LARGEST_DIMENSION)
    mean: str  # base64 of little-endian halves: (dimension,)
    matrix: str  # (directions, dimension), each row divided by the training photos' standard deviation along it
    limit: float = Field(gt=0)

    @model_validator(mode="after")
    def _whole(self) -> Photos:
        for name, count in (("mean", self.dimension), ("matrix", self.directions * self.dimension)):
            _check_count(name, getattr(self, name), count)
        return self

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        return _halves(self.mean), _halves(self.matrix).reshape(self.directions, self.dimension)

    def ood_score(self, pooled: np.ndarray) -> np.ndarray:
        """(B, D) pooled vectors to (B,): above 1 a photo is unlike those the model was trained on."""
        mean, matrix = self._statistics
        along = (pooled.astype(np.float32) - mean) @ matrix.T  # (B, directions), about 1 each for a training photo
        distances: np.ndarray = np.sqrt((along**2).mean(1))
        return distances / self.limit


class Confidence(Part):
    """What ``confidence.json`` holds; ``record`` says how it was fitted and how well it held on photos not used."""

    format: Literal["sightline-confidence-1"] = "sightline-confidence-1"
    words: Words
    captions: Captions
    photos: Photos
    record: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_dimension(self) -> Confidence:
        if self.captions.photo is not None:
            _check_count("captions.photo", self.captions.photo, self.photos.dimension)
        return self

    def judge(self, captions: Sequence[Caption], pooled: np.ndarray) -> list[Caption]:
        """Each photo's caption, and its other candidates, with calibrated probabilities and the photo's ood_score."""
        scores, terms = self.photos.ood_score(pooled).tolist(), self.captions.photo_terms(pooled).tolist()
        return [self._judged(*one) for one in zip(captions, scores, terms)]

    def _judged(self, caption: Caption, ood_score: float, photo: float) -> Caption:
        probability = self.captions.probability(self.words.content(caption.words), log_likelihood(caption), photo)
        words = tuple(replace(word, calibrated=self.words.probability(word)) for word in caption.words)
        others = tuple(self._judged(other, ood_score, photo) for other in caption.others)
        unsure = ood_score > 1 or probability < self.captions.unsure_below
        return _marked(replace(caption, words=words, calibrated=probability, others=others), ood_score, unsure)

    def save(self, folder: str | Path) -> None:
        write_atomically(Path(folder) / FILE, json.dumps(self.to_json(), ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path, dimension: int) -> Confidence | None:
        """A model folder's; None for a model that was not calibrated."""
        path = folder / FILE
        return cls.from_json(read_json(path), dimension) if path.is_file() else None

    def to_json(self) -> dict[str, Any]:
        plain = self.model_dump(mode="json", exclude_none=True)
        plain["words"]["function_words"] = sorted(self.words.function_words)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any], dimension: int | None = None) -> Confidence:
        """The file's content again; ``dimension`` is that of the encoder's pooled vector."""
        try:
            found = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise CheckpointError(
                f"confidence.json is damaged: {where or 'the file'}: {first['msg']}; "
                "copy it again, or delete it and run `sightline calibrate`"
            ) from None
        if dimension is not None and found.photos.dimension != dimension:
            raise CheckpointError(
                f"confidence.json is of a model with {found.photos.dimension} features, this one has {dimension}: "
                "delete it and run `sightline calibrate`"
            )
        return found


def mark_photos(captions: Sequence[Caption], ood_scores: np.ndarray) -> list[Caption]:
    """Each photo's ood_score and the mark that follows from it alone; probabilities stay uncalibrated."""
    marked = []
    for caption, ood_score in zip(captions, ood_scores.tolist()):
        best, *others = (_marked(one, ood_score, ood_score > 1) for one in (caption, *caption.others))
        marked.append(replace(best, others=tuple(others)))
    return marked


def _marked(caption: Caption, ood_score: float, unsure: bool) -> Caption:
    words = tuple(replace(word, unsure=unsure) for word in caption.words)
    return replace(caption, words=words, ood_score=ood_score, unsure=unsure)


def log_likelihood(caption: Caption) -> float:
    return math.log(max(caption.likelihood, 1e-30))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-min(max(value, -40.0), 40.0)))


def logit(probability: float) -> float:
    inside = min(max(probability, 1 - HIGHEST), HIGHEST)
    return math.log(inside / (1 - inside))


def _check_count(name: str, text: str, count: int) -> None:
    values = _halves(text)
    if len(values) != count or not np.isfinite(values).all():
        raise ValueError(f"{name} does not hold {count} numbers")


def encode_halves(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f2").tobytes()).decode("ascii")


def _halves(text: str) -> np.ndarray:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None
    return np.frombuffer(data[: len(data) // 2 * 2], dtype="<f2").astype(np.float32)
