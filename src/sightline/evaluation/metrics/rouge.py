"""ROUGE-L, the longest common subsequence of caption and reference (Lin 2004), equal to the COCO caption tools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.evaluation.metrics.metric import check_pairs

_BETA = 1.2  # recall counts more than precision


class Rouge:
    """The statistics are the scores themselves; over a corpus, their mean."""

    version = "rouge-l"
    keys = ("rouge_l",)

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        check_pairs(captions, references)
        return np.array([[_score(caption, texts)] for caption, texts in zip(captions, references)])  # (images, 1)

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        return {"rouge_l": float(statistics.mean())}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        return {"rouge_l": statistics[:, 0]}


def _score(caption: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    caption = caption or [""]  # to the COCO tools an empty text is one empty word, and two of those match
    precision = recall = 0.0  # each the best over the references, not of one reference
    for reference in references:
        reference = reference or [""]
        common = longest_common_subsequence(caption, reference)
        precision = max(precision, common / len(caption))
        recall = max(recall, common / len(reference))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """How many tokens the two share in the same order, gaps allowed."""
    lengths = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if token == other else max(above, lengths[column - 1])
            diagonal = above
    return lengths[-1]
