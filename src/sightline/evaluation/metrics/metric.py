"""What all metrics share: the protocol of a metric, n-gram counts, how varied captions are, and the bootstrap.

A metric gives numbers per image that sum up to a score, so that resampling images costs nothing. The bootstrap over
images (Efron 1979) says how sure a score is, its paired form compares two systems (Koehn 2004): images are drawn with
replacement as often as there are images, and a metric's rows make each draw a sum, not a new scoring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from sightline.errors import DataError

LONGEST = 4
_BOUNDS = (2.5, 97.5)  # percentiles of a 95 % interval


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


def interval(
    metric: Aggregate, statistics: np.ndarray, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each of the metric's scores."""
    draws = [metric.aggregate(statistics[rows]) for rows in _resamples(len(statistics), resamples, seed)]
    return {key: _bounds(np.array([draw[key] for draw in draws])) for key in metric.keys}


def paired(
    metric: Aggregate, first: np.ndarray, second: np.ndarray, resamples: int = 1000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """First system minus second on the same images: the difference, its 95 % interval and a two-sided p-value."""
    if len(first) != len(second):
        raise DataError(f"{len(first)} images against {len(second)}: score both systems on the same images")
    observed, other = metric.aggregate(first), metric.aggregate(second)
    draws = [
        (metric.aggregate(first[rows]), metric.aggregate(second[rows]))
        for rows in _resamples(len(first), resamples, seed)
    ]
    report = {}
    for key in metric.keys:
        differences = np.array([one[key] - two[key] for one, two in draws])
        low, high = _bounds(differences)
        # Counting the observed data as one more draw keeps the p-value above zero.
        crossings = min((differences <= 0).sum(), (differences >= 0).sum())
        p = min(1.0, 2 * (crossings + 1) / (resamples + 1))
        report[key] = {"difference": observed[key] - other[key], "low": low, "high": high, "p": float(p)}
    return report


def _resamples(images: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    if images == 0 or resamples < 1:
        raise DataError(f"{images} images and {resamples} resamples: a bootstrap needs at least one of each")
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield generator.integers(images, size=images)


def _bounds(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws, _BOUNDS)
    return float(low), float(high)
