"""How captions are searched for or drawn: one frozen object, its conflicts checked in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, ConfigError
from sightline.tokenizers.base import Tokenizer

MOST = 1000  # beams, samples or runners-up: beyond that a typing error, not a wish


@dataclass(frozen=True)
class DecodingOptions:
    """Lengths count tokens: ``max_length`` with start and end, as tokenizers do; ``min_length`` without either."""

    beam: int = 3  # hypotheses kept at each step; 1 is greedy search; unused when sampling
    length_penalty: float = 0.7  # score = log-probability / length ** length_penalty, the end counted; 0 is none
    max_length: int = 22
    min_length: int = 0
    no_repeat_ngram: int = 0  # no run of this many tokens occurs twice; 0 is off
    allow_unknown: bool = False
    candidates: int = 1  # captions returned of each photo, best first
    sample: bool = False  # draw captions instead of searching for the best
    temperature: float = 1.0  # sampling only, as the next three
    top_k: int = 0  # draw from the k most likely tokens; 0 is off
    top_p: float = 1.0  # draw from the fewest tokens that hold this much probability; 1 is off
    seed: int = 0
    want_attention: bool = True  # return attention and gate where the decoder gives them
    alternatives: int = 0  # runners-up returned of each token

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise ConfigError(f"decoding options: {'; '.join(problems)}")

    def _problems(self) -> list[str]:
        """Everything wrong with these options, as phrases that say what to do."""
        kinds: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,)}
        wrong = [
            f"{field.name} is {getattr(self, field.name)!r}, give {type(field.default).__name__}"
            for field in fields(self)
            if type(getattr(self, field.name)) not in kinds[type(field.default)]
        ]
        if wrong:
            return wrong
        checks = [
            (1 <= self.beam <= MOST, f"beam is {self.beam}, give 1 to {MOST}"),
            (0 <= self.length_penalty < math.inf, f"length_penalty is {self.length_penalty}, give 0 or more"),
            (self.max_length >= 3, f"max_length is {self.max_length}, give 3 or more, as it counts start and end"),
            (self.min_length >= 0, f"min_length is {self.min_length}, give 0 or more"),
            (
                self.max_length < 3 or self.min_length <= self.max_length - 2,
                f"min_length is {self.min_length} but max_length {self.max_length} leaves room for "
                f"{self.max_length - 2}, as it counts start and end",
            ),
            (self.no_repeat_ngram >= 0, f"no_repeat_ngram is {self.no_repeat_ngram}, give 0 (off) or more"),
            (1 <= self.candidates <= MOST, f"candidates is {self.candidates}, give 1 to {MOST}"),
            (
                self.sample or self.candidates <= max(1, self.beam),
                f"candidates is {self.candidates} but beam is {self.beam}, widen the beam or ask for fewer",
            ),
            (
                0 < self.temperature < math.inf,
                f"temperature is {self.temperature}, give more than 0 (or sample=False for the most likely caption)",
            ),
            (self.top_k >= 0, f"top_k is {self.top_k}, give 0 (off) or more"),
            (0 < self.top_p <= 1, f"top_p is {self.top_p}, give more than 0 up to 1 (off)"),
            (
                self.sample or (self.temperature, self.top_k, self.top_p) == (1, 0, 1),
                "temperature, top_k and top_p act on sampling only, give sample=True with them",
            ),
            (abs(self.seed) < 2**63, f"seed is {self.seed}, give a number of at most 63 bits"),
            (0 <= self.alternatives <= MOST, f"alternatives is {self.alternatives}, give 0 to {MOST}"),
        ]
        return [problem for fine, problem in checks if not fine]


def check_decoding(options: Any, tokenizer: Tokenizer, where: Path) -> None:
    """Hold a folder's decoding options to the rules, and to the length its tokenizer allows."""
    try:
        chosen = DecodingOptions(**{"max_length": tokenizer.max_length, **options})
    except (TypeError, ConfigError) as error:
        raise CheckpointError(f"{where}: 'decoding' does not fit: {error}") from None
    if chosen.max_length > tokenizer.max_length:
        raise CheckpointError(
            f"{where}: decoding.max_length is {chosen.max_length}, more than the model's {tokenizer.max_length}"
        )
