"""What a metric is: numbers per image that sum up to a score, so that resampling images costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sightline.errors import DataError


class Metric(Protocol):
    """A score of captions against their references, both as Penn Treebank tokens."""

    @property
    def version(self) -> str:
        """Which variant this is, for score signatures."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its scores."""

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        """One row per image, enough to compute the score of any selection of rows."""  # (images, k)

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        """The score over these rows as fractions; a row may stand there more than once."""

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        """The score of each image on its own."""  # each (images,)


def check_pairs(captions: Sequence[object], references: Sequence[Sequence[object]]) -> None:
    """Refuse what no metric can score."""
    if len(captions) != len(references):
        raise DataError(f"{len(captions)} captions but references for {len(references)} images: give one caption each")
    if not captions:
        raise DataError("no captions to score: give at least one")
    for image, texts in enumerate(references):
        if not texts:
            raise DataError(f"image {image} has no reference captions: leave it out or add one")
