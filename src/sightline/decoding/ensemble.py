"""Several decoders of one vocabulary acting as one: at every step their probabilities are averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.decoding.hypotheses import DecoderState, Features, StepDecoder, log_softmax
from sightline.errors import ConfigError
from sightline.types import ImageFeatures


class Ensemble(StepDecoder):
    """Has ``start`` and ``step`` like any decoder. Members may have different encoders."""

    def __init__(self, members: Sequence[StepDecoder]) -> None:
        if not members:
            raise ConfigError("an ensemble has no members; give at least one decoder")
        self.members = tuple(members)

    def start(self, features: Features) -> DecoderState:
        """``features``: one for all members, or one for each in their order."""
        each = [features] * len(self.members) if isinstance(features, ImageFeatures) else list(features)
        if len(each) != len(self.members):
            raise ConfigError(f"{len(self.members)} decoders but {len(each)} sets of features; give one or as many")
        if len({len(features) for features in each}) > 1:
            counts = [len(features) for features in each]
            raise ConfigError(f"the features are of {counts} photos; give all the same photos")
        return _join([member.start(features) for member, features in zip(self.members, each)])

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        """Logits are logarithms of the members' mean probabilities; extras are averaged where they agree in shape."""
        steps = [member.step(tokens, part) for member, part in zip(self.members, self._split(state))]
        sizes = [logits.shape[1] for logits, _, _ in steps]
        if len(set(sizes)) > 1:
            raise ConfigError(f"the ensemble's vocabularies have {sizes} tokens; use models trained with one tokenizer")
        stacked = np.stack([log_softmax(logits) for logits, _, _ in steps])  # (members, R, V)
        logits = np.logaddexp.reduce(stacked, axis=0) - math.log(len(steps))
        return logits, _join([part for _, part, _ in steps]), _mean_extras([extras for _, _, extras in steps])

    def _split(self, state: DecoderState) -> list[DecoderState]:
        return [
            DecoderState(_of_member(state.encoder_cache, number), _of_member(state.hypotheses, number))
            for number in range(len(self.members))
        ]


def _join(states: Sequence[DecoderState]) -> DecoderState:
    """One state whose names carry their member's number, so that reordering and dropping need not know of members."""
    return DecoderState(
        {
            f"{number}.{name}": value
            for number, state in enumerate(states)
            for name, value in state.encoder_cache.items()
        },
        {f"{number}.{name}": value for number, state in enumerate(states) for name, value in state.hypotheses.items()},
    )


def _of_member(values: dict[str, Any], number: int) -> dict[str, Any]:
    prefix = f"{number}."
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _mean_extras(extras: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Grids of different encoders do not lie over each other, so only values of one shape are averaged."""
    alike = [name for name in extras[0] if len({each[name].shape if name in each else None for each in extras}) == 1]
    return {name: np.stack([each[name] for each in extras]).mean(0) for name in alike}
