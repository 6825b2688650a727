"""What all metrics share: the protocol of a metric, n-gram counts, and how varied captions are.

A metric gives numbers per image that sum up to a score, so that resampling images costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from sightline.errors import DataError

LONGEST = 4


def count_ngrams(tokens: Sequence[Hashable], length: int) -> Counter[tuple[Hashable, ...]]:
    """How often each run of `length` tokens occurs."""
    return Counter(zip(*(tokens[start:] for start in range(length))))


def split_blanks(tokens: Sequence[str]) -> list[str]:
    """The tokens as the COCO tools' BLEU and CIDEr see them: "1 1/2", one token with a hard space, counts as two."""
    return " ".join(tokens).split()


class Aggregate(Protocol):
    """Scores from one row of statistics per image."""

    @property
    def version(self) -> str:
        """Which variant this is, for score signatures."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its scores."""

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        """The score over these rows as fractions; a row may occur more than once."""

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        """The score of each image on its own."""  # each (images,)


class Metric(Aggregate, Protocol):
    """A score of captions against their references, both as Penn Treebank tokens."""

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        """One row per image, enough to compute the score of any selection of rows."""  # (images, k)


def check_pairs(captions: Sequence[object], references: Sequence[Sequence[object]]) -> None:
    """Refuse what no metric can score."""
    if len(captions) != len(references):
        raise DataError(f"{len(captions)} captions but references for {len(references)} images: give one caption each")
    if not captions:
        raise DataError("no captions to score: give at least one")
    for image, texts in enumerate(references):
        if not texts:
            raise DataError(f"image {image} has no reference captions: leave it out or add one")


def diversity(
    captions: Sequence[Sequence[str]], training: Iterable[Sequence[str]] | None = None
) -> dict[str, float | str]:
    """Distinct words and word pairs, vocabulary, length, the most repeated caption; what is novel if given `training`.

    `distinct_1` and `distinct_2` are the share of words and of word pairs that are different ones.
    """
    if not captions:
        raise DataError("no captions to measure: give at least one")
    words: Counter = Counter()
    pairs: Counter = Counter()
    for caption in captions:
        words.update(count_ngrams(caption, 1))
        pairs.update(count_ngrams(caption, 2))
    repeated, times = Counter(tuple(caption) for caption in captions).most_common(1)[0]
    report: dict[str, float | str] = {
        "distinct_1": len(words) / max(1, words.total()),
        "distinct_2": len(pairs) / max(1, pairs.total()),
        "vocabulary": len(words),
        "mean_length": words.total() / len(captions),
        "most_repeated": " ".join(repeated),
        "most_repeated_count": times,
    }
    if training is not None:
        known = {tuple(caption) for caption in training}
        report["novel"] = sum(tuple(caption) not in known for caption in captions) / len(captions)
    return report
