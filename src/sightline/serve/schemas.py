"""What goes in and out, as pydantic models: they check requests and are the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.errors import nearest
from sightline.io.files import printable

MOST_BEAMS = 10
EXAMPLE = (  # 8 x 8 pixels of orange
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFUlEQVR42mN8NM2IARtgYsABBqcEAFFDAboRVUzBAAAAAElFTkSuQmCC"
)


def _no_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)  # the model's own holds; None only marks "not given"


def _option(description: str, **bounds: Any) -> Any:
    return Field(default=None, description=description, json_schema_extra=_no_default, **bounds)


class Options(BaseModel):
    """How captions are searched for or drawn. What is not given is the model's own choice."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    beam: int = _option("Hypotheses kept at each step; 1 is greedy search.", ge=1, le=MOST_BEAMS)
    length_penalty: float = _option("Score is log-probability / length ** this; 0 favours short.", ge=0, le=10)
    max_length: int = _option("Longest caption in tokens, start and end counted.", ge=3, le=1000)
    min_length: int = _option("Shortest caption in tokens.", ge=0, le=1000)
    no_repeat_ngram: int = _option("No run of this many tokens occurs twice; 0 is off.", ge=0, le=100)
    candidates: int = _option("Captions of each photo, best first.", ge=1, le=MOST_BEAMS)
    sample: bool = _option("Draw captions instead of searching for the best.")
    temperature: float = _option("Sampling only: above 1 is bolder.", ge=0.01, le=100)
    top_k: int = _option("Sampling only: the k likeliest tokens; 0 is off.", ge=0, le=1_000_000)
    top_p: float = _option("Sampling only: the tokens that hold this share.", gt=0, le=1)
    seed: int = _option("Sampling only: the same number draws the same captions.", ge=0, le=2**53)


class ExplainOptions(Options):
    occlusion: bool = _option("Hide patches of the photo instead of asking the model's attention; slower.")


class CaptionBody(Options):
    """Photos as base64 (a ``data:`` address will do), and options beside them."""

    photos: list[str] = Field(min_length=1, description="Photos as base64, one string each.", examples=[[EXAMPLE]])


class ExplainBody(ExplainOptions, CaptionBody):
    """As for captions, and whether patches shall be hidden."""


class WordOut(BaseModel):
    text: str
    probability: float = Field(ge=0, le=1, description="The model's own.")
    confidence: float | None = Field(
        default=None, ge=0, le=1, description="The chance that people also use this word, if the model is calibrated."
    )


class CaptionOut(BaseModel):
    source: str = Field(description="The upload's file name, if it had one.")
    caption: str
    confidence: float = Field(
        ge=0,
        le=1,
        description="The chance that it is right, or else the geometric mean of the words' probabilities.",
    )
    calibrated: bool = Field(description="Which of the two the confidence is.")
    unsure: bool = Field(description="Not to be relied on: a photo unlike those learnt from, or a doubtful caption.")
    ood_score: float | None = Field(default=None, ge=0, description="Of the photo; above 1 it is marked unsure.")
    finished: bool = Field(description="False where the greatest length cut the caption.")
    words: list[WordOut]
    others: list[CaptionOut] | None = Field(default=None, description="Further candidates.")


class CaptionsOut(BaseModel):
    captions: list[CaptionOut] = Field(description="One for each photo, in the order sent.")


class ExplainedWordOut(WordOut):
    attention: list[list[float]] = Field(description="Where the model looked: rows of the grid, top to bottom.")
    heat_map: list[list[float]] = Field(description="The same, scaled to be drawn: smoothed, 1 is the brightest.")
    gate: float | None = Field(default=None, description="How much the photo, not the language, decided.")
    alternatives: list[WordOut] = Field(description="The other top-k tokens.")


class ExplanationOut(CaptionOut):
    words: list[ExplainedWordOut]  # type: ignore[assignment]
    sentence: str = Field(description="The caption for a person to read.")
    certainty: str = Field(description="A few words on how far to rely on it.")
    method: str = Field(description="How the maps were found: attention or occlusion.")
    frame: list[float] = Field(description="What the maps cover: left, top, right, bottom as shares of the photo.")


class ExplanationsOut(BaseModel):
    explanations: list[ExplanationOut] = Field(description="One for each photo, in the order sent.")


class LimitsOut(BaseModel):
    max_bytes: int
    max_pixels: int
    max_photos: int


class HealthOut(BaseModel):
    status: str
    model: str
    version: str
    token_required: bool
    limits: LimitsOut


class ErrorOut(BaseModel):
    error: str = Field(description="What happened, which value, what to do.")


def given(options: Options) -> dict[str, Any]:
    """The options a request gave."""
    return options.model_dump(exclude_unset=True, exclude={"photos"})


def fault_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Everything wrong with a request, as one line."""
    return "; ".join(dict.fromkeys(_fault(item, model) for item in error.errors(include_url=False)))


def _fault(item: Any, model: type[BaseModel]) -> str:
    place = printable(".".join(str(part) for part in item["loc"]))[:80]
    reason = item["msg"][:1].lower() + item["msg"][1:]
    if item["type"] == "json_invalid":
        return f"the body is not JSON: {reason.removeprefix('invalid JSON: ')}"
    if item["type"] == "extra_forbidden":
        return f"unknown field {place!r}{nearest(place, model.model_fields)}"
    if item["type"] == "missing":
        return f"{place} is missing"
    shown = repr(item["input"])
    return f"{place or 'the body'} is {shown if len(shown) < 60 else shown[:60] + '…'}: {reason}"
