"""How captions are searched for or sampled: the one declaration of every decoding option.

The command line, the HTTP schema and the recipe section take names, help texts and bounds from `user_options`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, ConfigError
from sightline.tokenizers.base import Tokenizer

LIMIT = 1000  # beams, samples or alternatives: a larger number is a typing error


def _option(default: Any, help: str, user: bool = True, **bounds: float) -> Any:
    """A field of `DecodingOptions`; ``bounds`` are ``ge``, ``gt``, ``le`` and ``lt``, as in pydantic."""
    return field(default=default, metadata={"help": help, "user": user, "bounds": bounds})


@dataclass(frozen=True)
class DecodingOptions:
    """Lengths count tokens: ``max_length`` with start and end, as tokenizers do; ``min_length`` without either."""

    beam: int = _option(3, "Hypotheses kept at each step; 1 is greedy search.", ge=1, le=LIMIT)
    length_penalty: float = _option(0.7, "Score is log-probability / length ** this; 0 favours short.", ge=0)
    max_length: int = _option(22, "Longest caption in tokens, start and end counted.", ge=3)
    min_length: int = _option(0, "Shortest caption in tokens.", ge=0)
    no_repeat_ngram: int = _option(0, "No run of this many tokens occurs twice; 0 is off.", ge=0)
    no_repeat_words: bool = _option(
        False, "No content word occurs twice, singular or plural; colours, numbers, sizes and ages may."
    )
    allow_unknown: bool = _option(False, "Whether captions may contain the unknown token.", user=False)
    candidates: int = _option(1, "Captions of each photo, best first.", ge=1, le=LIMIT)
    sample: bool = _option(False, "Sample captions instead of searching for the best.")
    temperature: float = _option(1.0, "Sampling only: above 1 is more varied.", gt=0)
    top_k: int = _option(0, "Sampling only: from the k likeliest tokens; 0 is off.", ge=0)
    top_p: float = _option(1.0, "Sampling only: from the fewest tokens with this probability; 1 is off.", gt=0, le=1)
    seed: int = _option(0, "Sampling only: the same number gives the same captions.", gt=-(2**63), lt=2**63)
    want_attention: bool = _option(True, "Return attention and gate where the decoder has them.", user=False)
    alternatives: int = _option(0, "Other top-k tokens returned with each token.", user=False, ge=0, le=LIMIT)

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise ConfigError(f"decoding options: {'; '.join(problems)}")

    def _problems(self) -> list[str]:
        """Everything wrong with these options, as phrases that say what to do."""
        kinds: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,)}
        wrong = [
            f"{entry.name} is {getattr(self, entry.name)!r}, give {type(entry.default).__name__}"
            for entry in fields(self)
            if type(getattr(self, entry.name)) not in kinds[type(entry.default)]
        ]
        if wrong:
            return wrong
        out_of_range = [
            f"{entry.name} is {getattr(self, entry.name)}, give {_wanted(entry.metadata['bounds'])}"
            for entry in fields(self)
            if not _within(getattr(self, entry.name), entry.metadata["bounds"])
        ]
        conflicts = [
            (
                self.max_length >= 3 and self.min_length > self.max_length - 2,
                f"min_length is {self.min_length} but max_length {self.max_length} leaves room for "
                f"{self.max_length - 2}, as it counts start and end",
            ),
            (
                not self.sample and self.candidates > max(1, self.beam),
                f"candidates is {self.candidates} but beam is {self.beam}, widen the beam or ask for fewer",
            ),
            (
                not self.sample and (self.temperature, self.top_k, self.top_p) != (1, 0, 1),
                "temperature, top_k and top_p act on sampling only, give sample=True with them",
            ),
        ]
        return [*out_of_range, *(problem for is_conflict, problem in conflicts if is_conflict)]


def _within(value: float, bounds: Mapping[str, float]) -> bool:
    return (isinstance(value, int) or math.isfinite(value)) and (
        bounds.get("ge", value) <= value <= bounds.get("le", value)
        and bounds.get("gt", -math.inf) < value < bounds.get("lt", math.inf)
    )


def _wanted(bounds: Mapping[str, float]) -> str:
    """Bounds in words: "1 to 1000", "0 or more", "more than 0"."""
    least = f"{bounds['ge']}" if "ge" in bounds else f"more than {bounds['gt']}" if "gt" in bounds else ""
    if "le" in bounds:
        return f"{least} to {bounds['le']}" if "ge" in bounds else f"{least}, up to {bounds['le']}"
    if "lt" in bounds:
        return f"{least} and less than {bounds['lt']}"
    return f"{least} or more" if "ge" in bounds else least


@dataclass(frozen=True)
class UserOption:
    """One decoding option that users may set."""

    name: str
    type: type
    default: bool | int | float
    help: str
    bounds: dict[str, float]  # ge, gt, le, lt: keyword arguments of pydantic's Field


def user_options() -> tuple[UserOption, ...]:
    """Every option that users may set, in the order of `DecodingOptions`."""
    listed = [(entry.name, entry.default, entry.metadata) for entry in fields(DecodingOptions)]
    return tuple(
        UserOption(name, type(default), default, about["help"], about["bounds"])  # type: ignore[arg-type]
        for name, default, about in listed
        if about["user"]
    )


def check_decoding(options: Any, tokenizer: Tokenizer, where: Path) -> None:
    """Hold a folder's decoding options to the rules, and to the length its tokenizer allows."""
    try:
        chosen = DecodingOptions(**{"max_length": tokenizer.max_length, **options})
    except (TypeError, ConfigError) as error:
        raise CheckpointError(f"{where}: 'decoding' does not fit: {error}") from None
    if fault := misfit(chosen, tokenizer):
        raise CheckpointError(f"{where}: 'decoding' does not fit: {fault}")


def misfit(options: DecodingOptions, tokenizer: Tokenizer) -> str:
    """Why these options cannot be had with a model's tokenizer, or nothing."""
    if options.max_length > tokenizer.max_length:
        return f"max_length is {options.max_length}, this model's captions have at most {tokenizer.max_length}"
    if options.no_repeat_words and tokenizer.name != "word":
        return (
            f"no_repeat_words needs tokens that are words, this model's tokenizer is {tokenizer.name!r}: leave it out"
        )
    return ""
