"""How sure a score is: the bootstrap over images (Efron 1979), and its paired form for two systems (Koehn 2004).

Images are drawn with replacement as often as there are images; a metric's rows make each draw a sum, not a new scoring.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sightline.errors import DataError
from sightline.evaluation.metrics.metric import Aggregate

_BOUNDS = (2.5, 97.5)  # percentiles of a 95 % interval


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
