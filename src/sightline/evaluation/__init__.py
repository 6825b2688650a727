"""Scoring captions: metrics, whole models on a dataset, comparisons, reports, calibration."""

from __future__ import annotations

from sightline.evaluation.scoring import evaluate

__all__ = ["evaluate"]
