"""BLEU-1 to BLEU-4 over a corpus (Papineni et al. 2002), equal to the COCO caption tools.

The reference length of an image is the one closest to its caption. Each score also comes without brevity penalty, as
the captioning papers of 2015 report it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from sightline.evaluation.metrics.metric import LONGEST, check_pairs, count_ngrams, split_blanks

# The COCO tools add these so that nothing divides by zero; without them the scores would differ in the tenth digit.
_SMALL, _TINY = 1e-9, 1e-15


class Bleu:
    """Columns of the statistics: matches of order 1 to 4, n-grams of order 1 to 4, caption length, reference length."""

    version = "bleu"
    keys = tuple(f"bleu_{order}{kind}" for kind in ("", "_no_bp") for order in range(1, LONGEST + 1))

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        check_pairs(captions, references)
        rows = [
            _row(split_blanks(caption), [split_blanks(text) for text in texts])
            for caption, texts in zip(captions, references)
        ]
        return np.array(rows, dtype=np.float64)  # (images, 10)

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        scores = self.per_image(statistics.sum(axis=0, keepdims=True))
        return {key: float(values[0]) for key, values in scores.items()}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        matches, totals = statistics[:, :LONGEST], statistics[:, LONGEST : 2 * LONGEST]
        caption_length, reference_length = statistics[:, -2], statistics[:, -1]
        precisions = (matches + _TINY) / (totals + _SMALL)  # (images, 4)
        plain = np.cumprod(precisions, axis=1) ** (1 / np.arange(1, LONGEST + 1))
        ratio = (caption_length + _TINY) / (reference_length + _SMALL)
        penalty = np.exp(np.minimum(0.0, 1 - 1 / ratio))
        columns = np.concatenate([plain * penalty[:, None], plain], axis=1)  # (images, 8)
        return dict(zip(self.keys, columns.T))

    def smoothed(self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        """BLEU-4 of each caption by itself, with one more match and one more n-gram of every order above the first."""
        statistics = self.statistics(captions, references)
        statistics[:, 1:LONGEST] += 1
        statistics[:, LONGEST + 1 : 2 * LONGEST] += 1
        return self.per_image(statistics)[f"bleu_{LONGEST}"]


def _row(caption: list[str], references: list[list[str]]) -> list[int]:
    matches, totals = [], []
    for order in range(1, LONGEST + 1):
        counts = count_ngrams(caption, order)
        most: Counter[tuple[Hashable, ...]] = Counter()
        for reference in references:
            most |= count_ngrams(reference, order)
        matches.append((counts & most).total())
        totals.append(max(0, len(caption) - order + 1))
    closest = min((abs(len(reference) - len(caption)), len(reference)) for reference in references)[1]
    return [*matches, *totals, len(caption), closest]
