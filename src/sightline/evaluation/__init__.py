"""Scoring captions: metrics, whole models on a dataset, comparisons, reports, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.evaluation.scoring import evaluate, evaluate_people

__all__ = ["evaluate", "evaluate_people"]


def __getattr__(name: str) -> Any:
    """Whoever needs a metric alone does not load the engine."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sightline.evaluation import scoring

    return getattr(scoring, name)
