"""What the parts hand to each other: features, decoder outputs and states, and the caption a user gets.

Shapes: B photos, K captions (or beams) of each photo, T tokens, N places of the grid, D channels, V vocabulary.
The K captions of one photo are neighbours: row ``b * K + k`` of any (B*K, ...) tensor belongs to photo ``b``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """What an encoder sees: vectors at places of a grid (row by row), and one vector for the whole photo.

    Tensors are torch's, here and in `DecoderState`, or numpy arrays where onnxruntime computes.
    """

    grid: Tensor  # (B, N, D); N may be 0 where only the pooled vector was kept
    pooled: Tensor  # (B, D)
    height: int
    width: int

    def __len__(self) -> int:
        return self.pooled.shape[0]

    def to(self, *args: Any, **kwargs: Any) -> ImageFeatures:
        return replace(self, grid=self.grid.to(*args, **kwargs), pooled=self.pooled.to(*args, **kwargs))

    def __getitem__(self, index: slice | Tensor) -> ImageFeatures:
        return replace(self, grid=self.grid[index], pooled=self.pooled[index])

    @classmethod
    def joined(cls, parts: Sequence[ImageFeatures]) -> ImageFeatures:
        """Those of several batches as one."""
        join = import_module("torch" if hasattr(parts[0].pooled, "index_select") else "numpy").concatenate
        grid, pooled = join([part.grid for part in parts]), join([part.pooled for part in parts])
        return replace(parts[0], grid=grid, pooled=pooled)


@dataclass(frozen=True)
class DecoderOutput:
    """Teacher-forced outputs: ``logits[:, t]`` predicts the token after ``tokens[:, t]``."""

    logits: Tensor  # (B*K, T, V)
    attention: Tensor | None = None  # (B*K, T, N): where each predicted token looked
    extras: dict[str, Tensor] = field(default_factory=dict)  # e.g. gate (B*K, T), place_log_prob, place_entropy


@dataclass(frozen=True)
class DecoderState:
    """Where a decoder stands between two steps.

    ``photo`` holds what was computed once per photo (B rows: projected features, cross-attention keys and values);
    beams never leave their photo, so it is neither copied nor reordered. ``beam`` holds one row per hypothesis.
    """

    photo: dict[str, Tensor]  # each (B, ...)
    beam: dict[str, Tensor]  # each (B*K, ...)

    def repeat(self, times: int) -> DecoderState:
        """Each hypothesis ``times`` times, neighbours staying together."""
        return replace(self, beam={name: value.repeat_interleave(times, 0) for name, value in self.beam.items()})

    def reorder(self, rows: np.ndarray | Tensor) -> DecoderState:
        """Hypothesis i becomes what hypothesis ``rows[i]`` was."""
        return replace(self, beam={name: _rows_of(value, rows) for name, value in self.beam.items()})

    def keep(self, photos: np.ndarray | Tensor, rows: np.ndarray | Tensor) -> DecoderState:
        """Only these photos, with these hypotheses: finished photos cost nothing more."""
        return DecoderState(
            {name: _rows_of(value, photos) for name, value in self.photo.items()},
            {name: _rows_of(value, rows) for name, value in self.beam.items()},
        )


def _rows_of(value: Any, rows: np.ndarray | Tensor) -> Any:
    """These rows of a tensor or an array."""
    if not hasattr(value, "index_select"):
        return value[rows]
    from torch import as_tensor  # by its own row numbers: indexing with an array takes thirty times as long

    return value.index_select(0, as_tensor(rows, device=value.device))


@dataclass(frozen=True)
class Word:
    """One word of a caption: how sure the model was, and where it looked."""

    text: str
    probability: float
    attention: np.ndarray | None = field(default=None, repr=False, compare=False)  # (height, width), of the grid
    gate: float | None = None  # the soft-attention gate: how much the photo, not the language, decided
    alternatives: tuple[tuple[str, float], ...] = ()  # runners-up with their probabilities
    calibrated: float | None = None  # the chance that people also use this word; None: nobody calibrated the model

    @property
    def confidence(self) -> float:
        """The calibrated chance, or else the model's own probability."""
        return self.probability if self.calibrated is None else self.calibrated

    def as_dict(self) -> dict[str, Any]:
        told = {"text": self.text, "probability": round(self.probability, 4)}
        return told if self.calibrated is None else {**told, "confidence": round(self.calibrated, 4)}


@dataclass(frozen=True)
class Recalled:
    """One of the user's own photos that steered a caption, and how like the new one it is (cosine)."""

    name: str
    similarity: float
    captions: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "similarity": round(self.similarity, 3), "captions": list(self.captions)}


COLUMNS = ("source", "caption", "confidence", "unsure", "ood_score", "finished")  # of any table of captions


@dataclass(frozen=True)
class Caption:
    """What a photo shows, in words, with each word's score; ``finished`` is False where the length limit cut it."""

    text: str
    words: tuple[Word, ...]
    score: float  # log-probability of the whole caption, end included
    finished: bool = True
    source: str = ""
    others: tuple[Caption, ...] = ()  # the rest of the n-best list
    photo: Image | None = field(default=None, repr=False, compare=False)  # what the model saw of the photo
    tokens: tuple[int, ...] = field(default=(), repr=False, compare=False)  # ids of the text, without start and end
    calibrated: float | None = None  # the chance that it is right; None: nobody calibrated the model
    ood_score: float | None = None  # of the photo: above 1 it is unlike those the model learnt from
    unsure: bool = False  # not to be relied on: a strange photo, or a chance lower than nearly all
    recalled: tuple[Recalled, ...] = ()  # with a memory: the user's own photos that steered it, nearest first

    @property
    def likelihood(self) -> float:
        """Geometric mean of the words' probabilities, the end's included."""
        return math.exp(self.score / max(1, len(self.words) + int(self.finished)))

    @property
    def confidence(self) -> float:
        """Between 0 and 1: the calibrated chance that the caption is right, or else its likelihood."""
        return self.likelihood if self.calibrated is None else self.calibrated

    def sentence(self) -> str:
        """For a person to read: a capital letter and a full stop; or "unsure: …" where it is not to be relied on."""
        text = self.text.strip(" .")
        if not text:
            return ""
        return f"unsure: {text}." if self.unsure else f"{text[:1].upper()}{text[1:]}."

    def alt(self, longest: int = 125) -> str:
        """For an HTML ``alt`` attribute, escaped; cut between words where readers would grow impatient."""
        text = " ".join(self.sentence().split())
        if len(text) > longest:
            text = text[: longest - 1].rpartition(" ")[0].rstrip(" ,") + "…"
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

    def certainty(self) -> str:
        """A few words for a person on how far to rely on it."""
        told = f"{self.confidence:.0%} confidence" + (", uncalibrated" if self.calibrated is None else "")
        if self.unsure:
            strange = self.ood_score is not None and self.ood_score > 1
            told = "unsure: unlike the photos it learnt from" if strange else f"unsure: {told}"
        return told + ("" if self.finished else ", cut at the greatest length")

    def overlay(self) -> Image:
        """One picture: the photo with the sentence, and for each word where the model looked."""
        return import_module("sightline.explain.picture").draw(self)  # by name: only drawing needs what lies below

    def as_row(self) -> dict[str, Any]:
        """For a table: why a caption is unsure is to be seen there, too."""
        return {
            "source": self.source,
            "caption": self.text,
            "confidence": round(self.confidence, 4),
            "unsure": self.unsure,
            "ood_score": None if self.ood_score is None else round(self.ood_score, 3),
            "finished": self.finished,
        }

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the attention maps."""
        return {
            "source": self.source,
            "caption": self.text,
            "confidence": round(self.confidence, 4),
            "calibrated": self.calibrated is not None,
            "unsure": self.unsure,
            **({} if self.ood_score is None else {"ood_score": round(self.ood_score, 3)}),
            "finished": self.finished,
            "words": [word.as_dict() for word in self.words],
            **({"recalled": [photo.as_dict() for photo in self.recalled]} if self.recalled else {}),
            **({"others": [other.as_dict() for other in self.others]} if self.others else {}),
        }


def cell(value: Any) -> Any:
    """A value in a CSV table."""
    return str(value).lower() if isinstance(value, bool) else value


@dataclass(frozen=True)
class Failure:
    """An input that could not be captioned, and why."""

    source: str
    reason: str
