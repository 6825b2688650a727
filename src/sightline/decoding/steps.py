"""What decoding asks of a decoder: arrays in, arrays out, whatever library computes in between.

The search itself is a few thousand numbers a step, and numpy does. So captions need torch only where the network does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.types import DecoderState, ImageFeatures

Features = ImageFeatures | Sequence[ImageFeatures]  # one for each member of an ensemble


class StepDecoder(ABC):
    """Numpy at the door: an exported decoder is one, an ensemble is one, and `TorchSteps` makes one of a network."""

    @abstractmethod
    def start(self, features: Any) -> DecoderState:
        """What is computed once per photo, and one fresh hypothesis for each."""

    @abstractmethod
    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        """One word more for each of R hypotheses: logits (R, V), the new state, and attention (R, N) or gate (R,)."""


def as_steps(decoder: Any) -> StepDecoder:
    """A decoder as the search wants it; one that computes in torch is wrapped."""
    if isinstance(decoder, StepDecoder):
        return decoder
    from sightline.decoding.torch_steps import TorchSteps  # torch takes a second to import

    return TorchSteps(decoder)


def photos_in(features: Features) -> int:
    return len(features if isinstance(features, ImageFeatures) else features[0])
