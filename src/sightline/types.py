"""What the parts hand to each other: features, decoder outputs, and the caption a user gets.

Shapes: B photos, K captions (or beams) of each photo, T tokens, N cells of the grid, D channels, V vocabulary.
The K captions of one photo are adjacent: row ``b * K + k`` of any (B*K, ...) tensor belongs to photo ``b``.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """An encoder's output: one vector for each cell of a grid (row by row), and one for the whole photo.

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
    attention: Tensor | None = None  # (B*K, T, N): the weights with which each predicted token attends to the grid
    extras: dict[str, Tensor] = field(default_factory=dict)  # e.g. gate (B*K, T), location_log_prob, location_entropy


# Words for a calibrated confidence, from the highest to the lowest, each with its smallest value; web/ reads it, too.
LEVELS: dict[str, float] = json.loads((Path(__file__).parent / "io" / "levels.json").read_text(encoding="utf-8"))


UNSURE = "unsure"  # the word before a caption that is not to be relied on


def level_of(calibrated: float | None) -> str:
    """``sure``, ``likely`` or ``doubtful``; empty where there is no calibrated confidence."""
    return "" if calibrated is None else next(name for name, least in LEVELS.items() if calibrated >= least)


@dataclass(frozen=True)
class Word:
    """One word of a caption: its probability, and the grid cells it attends to."""

    text: str
    probability: float
    attention: np.ndarray | None = field(default=None, repr=False, compare=False)  # (height, width), of the grid
    gate: float | None = None  # the soft-attention gate: how much the photo, not the language, decided
    alternatives: tuple[tuple[str, float], ...] = ()  # the other top-k tokens with their probabilities
    calibrated: float | None = None  # probability that people also use this word; None: the model is not calibrated
    unsure: bool = False  # the whole caption is

    @property
    def confidence(self) -> float:
        """The calibrated probability, or else the decoder's."""
        return self.probability if self.calibrated is None else self.calibrated

    @property
    def level(self) -> str:
        """The calibrated confidence as a word; ``unsure`` in an unsure caption, empty without a calibration."""
        return UNSURE if self.unsure else level_of(self.calibrated)

    def certainty(self) -> str:
        """For a person: the level with its number, but none in an unsure caption; empty without a calibration."""
        if self.unsure:
            return f"{UNSURE}, as the whole caption is"
        return f"{self.level}: {self.confidence:.0%} confidence" if self.level else ""

    def as_dict(self) -> dict[str, Any]:
        fields = {"text": self.text, "probability": round(self.probability, 4)}
        return fields if self.calibrated is None else {**fields, "confidence": round(self.calibrated, 4)}


@dataclass(frozen=True)
class Neighbour:
    """A photo of the retrieval datastore that is near the captioned one, with their cosine similarity."""

    name: str
    similarity: float
    captions: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "similarity": round(self.similarity, 3), "captions": list(self.captions)}


COLUMNS = ("source", "caption", "confidence", UNSURE, "ood_score", "finished")  # of any table of captions
RANK = "rank"  # of a candidate, 1 being the best: a column of CSV tables that have a row for each


@dataclass(frozen=True)
class Caption:
    """What a photo shows, in words, with each word's score; ``finished`` is False where the length limit cut it."""

    text: str
    words: tuple[Word, ...]
    score: float  # log-probability of the whole caption, end included
    finished: bool = True
    source: str = ""
    others: tuple[Caption, ...] = ()  # the rest of the n-best list
    photo: Image | None = field(default=None, repr=False, compare=False)  # the part of the photo that was encoded
    tokens: tuple[int, ...] = field(default=(), repr=False, compare=False)  # ids of the text, without start and end
    calibrated: float | None = None  # probability that it is right; None: the model is not calibrated
    ood_score: float | None = None  # of the photo: above 1 it is unlike those the model was trained on
    unsure: bool = False  # not to be relied on: an out-of-distribution photo, or a very low probability
    neighbours: tuple[Neighbour, ...] = ()  # with a retrieval datastore: its nearest photos, nearest first

    @property
    def likelihood(self) -> float:
        """Geometric mean of the words' probabilities, the end's included."""
        return math.exp(self.score / max(1, len(self.words) + int(self.finished)))

    @property
    def confidence(self) -> float:
        """Between 0 and 1: the calibrated probability that the caption is right, or else its likelihood."""
        return self.likelihood if self.calibrated is None else self.calibrated

    @property
    def level(self) -> str:
        """The calibrated confidence as a word; ``unsure`` where it is not to be relied on."""
        return UNSURE if self.unsure else level_of(self.calibrated)

    def sentence(self) -> str:
        """For a person to read: a capital letter and a full stop; or "unsure: …" where it is not to be relied on."""
        text = self.text.strip(" .")
        if not text:
            return ""
        return f"{UNSURE}: {text}." if self.unsure else f"{text[:1].upper()}{text[1:]}."

    def description(self) -> str:
        """What is written into files: the sentence as one line, without a mark where it is unsure."""
        return " ".join(replace(self, unsure=False).sentence().split())

    def is_reliable(self, min_confidence: float = 0.0, include_unsure: bool = False) -> bool:
        """Whether it may stand for the photo: in an alt text, in a sidecar, in the photo's metadata."""
        return (include_unsure or not self.unsure) and self.confidence >= min_confidence

    def alt(self, longest: int = 125, min_confidence: float = 0.0, include_unsure: bool = False) -> str:
        """For an HTML ``alt`` attribute, escaped; a long one is cut between words. Empty for an unsure caption."""
        if not self.is_reliable(min_confidence, include_unsure):
            return ""
        text = self.description()
        if len(text) > longest:
            text = text[: longest - 1].rpartition(" ")[0].rstrip(" ,") + "…"
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

    def certainty(self) -> str:
        """A few words for a person on how far to rely on it."""
        text = f"{self.confidence:.0%} confidence" + (", uncalibrated" if self.calibrated is None else "")
        if self.unsure and self.ood_score is not None and self.ood_score > 1:
            text = "unlike the photos it was trained on"
        text = f"{self.level}: {text}" if self.level else text
        return text if self.finished else f"{text}, cut at the greatest length"

    def overlay(self) -> Image:
        """One picture: the photo with the sentence, and for each word its attention as a heat map."""
        draw: Callable[[Caption], Image] = import_module("sightline.explain.picture").draw  # lower: imported by name
        return draw(self)

    def __repr__(self) -> str:
        return f"Caption({self.text!r}, {self.certainty()})"  # short: a list of captions can be read at a prompt

    def _repr_html_(self) -> str:
        """How a notebook shows it: the picture of `overlay`, or the sentence alone where it has no photo."""
        if self.photo is None:
            return f"<p>{escape(self.sentence())} <small>({escape(self.certainty())})</small></p>"
        jpeg_url: Callable[[Image], str] = import_module("sightline.io.html").jpeg_url
        return f'<img alt="{escape(self.sentence())}" style="max-width: 50rem" src="{jpeg_url(self.overlay())}">'

    def as_row(self) -> dict[str, Any]:
        """One row of a table, with what makes a caption unsure."""
        return {
            "source": self.source,
            "caption": self.text,
            "confidence": round(self.confidence, 4),
            UNSURE: self.unsure,
            "ood_score": None if self.ood_score is None else round(self.ood_score, 3),
            "finished": self.finished,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row of a table for each candidate, with its rank: this caption, then the others."""
        candidates = enumerate((self, *self.others), start=1)
        return [{**one.as_row(), "source": self.source, RANK: rank} for rank, one in candidates]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the attention maps."""
        return {
            "source": self.source,
            "caption": self.text,
            "confidence": round(self.confidence, 4),
            "calibrated": self.calibrated is not None,
            UNSURE: self.unsure,
            **({} if self.ood_score is None else {"ood_score": round(self.ood_score, 3)}),
            "finished": self.finished,
            "words": [word.as_dict() for word in self.words],
            **({"neighbours": [photo.as_dict() for photo in self.neighbours]} if self.neighbours else {}),
            **({"others": [other.as_dict() | {"source": self.source} for other in self.others]} if self.others else {}),
        }


METRIC_NAMES = {  # of scores, in the order in which papers give them
    **{f"bleu_{order}": f"BLEU-{order}" for order in (1, 2, 3, 4)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr-D",
    "chair_i": "CHAIR, objects",
    "chair_s": "CHAIR, captions",
    **{f"bleu_{order}_no_bp": f"BLEU-{order}, no brevity penalty" for order in (1, 2, 3, 4)},
}
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet takes such a cell for a formula


def cell(value: Any) -> Any:
    """A value in a CSV table. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    if isinstance(value, str):
        return f"'{value}" if _is_formula(value.lstrip("'")) else value
    return str(value).lower() if isinstance(value, bool) else value


def text_of_cell(text: str) -> str:
    """The text that `cell` wrote, without the apostrophe."""
    return text[1:] if text.startswith("'") and _is_formula(text.lstrip("'")) else text


def _is_formula(text: str) -> bool:
    return text.startswith(FORMULA_STARTS) and text != "-"  # which stands for standard input


def write_csv_row(file: TextIO, values: Iterable[Any]) -> None:
    """One row of a CSV table. A carriage return is quoted: the csv module would not, and readers end the row there."""
    row = [cell(value) for value in values]
    has_return = any(isinstance(value, str) and "\r" in value for value in row)
    quoting: Literal[0, 1] = csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL
    csv.writer(file, lineterminator="\n", quoting=quoting).writerow(row)


@dataclass(frozen=True)
class Failure:
    """An input that could not be captioned, and why."""

    source: str
    reason: str
