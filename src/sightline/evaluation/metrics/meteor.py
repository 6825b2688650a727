"""METEOR 1.5 for English (Denkowski and Lavie, 2014): all four matchers, no Java.

Scores equal those of `java -jar meteor-1.5.jar - - -stdio -l en -norm`, which is how the COCO caption tools call it.
An image counts with its best reference; the corpus score is computed from summed counts, not from averaged scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.evaluation.metrics.meteor_align import Sentence, Word, align, count_chunks
from sightline.evaluation.metrics.meteor_data import MeteorData, load
from sightline.evaluation.metrics.metric import check_pairs

ALPHA = 0.85  # weight of recall against precision
BETA = 0.2  # shape of the penalty for fragments
GAMMA = 0.6  # its size
DELTA = 0.75  # weight of content words against function words
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # of exact, stem, synonym and paraphrase matches
COLUMNS = 6  # matched weight of caption and of reference, whole weight of each, words matched (mean), chunks


class Meteor:
    """The metric: `statistics` once, then `aggregate` and `per_image` from those."""

    version = "meteor-1.5"
    keys = ("meteor",)

    def __init__(self, data: MeteorData | None = None) -> None:
        self.data = data or load()

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        """Counts of each caption against its best reference (images, 6); both sides as PTB tokens."""
        check_pairs(captions, references)
        sentences = iter(self.data.sentences([*captions, *(text for texts in references for text in texts)]))
        candidates = [next(sentences) for _ in captions]
        rows = np.zeros((len(captions), COLUMNS))
        for row, caption, texts in zip(rows, candidates, references):
            compared = np.array([_compare(caption, next(sentences)) for _ in texts])
            row[:] = compared[np.argmax(_score(compared))]  # the first among equals, as in the jar
        return rows

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        """The corpus score of any selection of rows."""
        return {"meteor": float(_score(statistics.sum(axis=0)))}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        """Each image's own score (images,)."""
        return {"meteor": _score(statistics)}


def _compare(caption: Sentence, reference: Sentence) -> list[float]:
    """One row of statistics."""
    matches = align(caption, reference)
    caption_spans = [(match.caption_start, match.caption_length, match.matcher) for match in matches]
    reference_spans = [(match.start, match.length, match.matcher) for match in matches]
    caption_matched = sum(length for _, length, _ in caption_spans)
    reference_matched = sum(length for _, length, _ in reference_spans)
    chunks = count_chunks(matches)
    complete = caption_matched == len(caption.words) and reference_matched == len(reference.words)
    return [
        _matched_weight(caption.words, caption_spans),
        _matched_weight(reference.words, reference_spans),
        _weight(caption.words),
        _weight(reference.words),
        (caption_matched + reference_matched) / 2,
        0 if complete and chunks == 1 else chunks,  # a perfect caption is not penalised for being one chunk
    ]


def _matched_weight(words: list[Word], spans: list[tuple[int, int, int]]) -> float:
    """The weight of those words that lie in a match's (start, length, matcher)."""
    counts = [[0] * len(WEIGHTS), [0] * len(WEIGHTS)]  # content words, function words
    for start, length, matcher in spans:
        for word in words[start : start + length]:
            counts[word.function][matcher] += 1
    content, function = (sum(count * weight for count, weight in zip(kind, WEIGHTS)) for kind in counts)
    return DELTA * content + (1 - DELTA) * function


def _weight(words: list[Word]) -> float:
    """The weight of all words, were they matched exactly."""
    return sum(1 - DELTA if word.function else DELTA for word in words)


def _score(statistics: np.ndarray) -> np.ndarray:
    """Statistics (..., 6) to scores (...): weighted mean of precision and recall, less the penalty for fragments."""
    caption_matched, reference_matched, caption_weight, reference_weight, matched, chunks = np.moveaxis(
        statistics, -1, 0
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = caption_matched / caption_weight
        recall = reference_matched / reference_weight
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        penalty = GAMMA * (chunks / matched) ** BETA
        return np.nan_to_num(mean * (1 - penalty), nan=0.0)  # nothing matched: 0
