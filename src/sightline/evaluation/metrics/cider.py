"""CIDEr-D: tf-idf similarity of a caption to its references (Vedantam et al. 2015), equal to the COCO caption tools.

`Cider` scores an evaluation; `CiderReward` scores samples against a training set fast, for self-critical training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from sightline.errors import DataError
from sightline.evaluation.metrics.metric import LONGEST, check_pairs, count_ngrams, split_blanks

_SIGMA = 6.0  # how fast a difference in length is punished
_ORDERS = range(1, LONGEST + 1)


class Cider:
    """The statistics are the scores themselves; document frequencies come from the references given with them."""

    version = "cider-d"
    keys = ("cider",)

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        check_pairs(captions, references)
        reward = CiderReward([[split_blanks(text) for text in texts] for texts in references])
        scores = reward.score(range(len(captions)), [split_blanks(caption) for caption in captions])
        return scores[:, None]  # (images, 1)

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        return {"cider": float(statistics.mean())}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        return {"cider": statistics[:, 0]}


class _Vector(NamedTuple):
    """A text as CIDEr compares it: for each order its n-grams' weights and their norm."""

    weights: list[dict[int, float]]  # n-gram index to tf-idf
    norms: list[float]
    length: int


class CiderReward:
    """CIDEr-D of any caption of a known image. Tokens are anything hashable: words, or the numbers of a vocabulary.

    To reward ending a caption, append the same end symbol to references and captions.
    """

    def __init__(self, references_by_image: Sequence[Sequence[Sequence[Hashable]]]) -> None:
        check_pairs(references_by_image, references_by_image)
        self._default_idf = math.log(len(references_by_image))  # of an n-gram that is in no reference
        frequencies: Counter[tuple[Hashable, ...]] = Counter()
        for texts in references_by_image:
            frequencies.update({ngram for text in texts for order in _ORDERS for ngram in count_ngrams(text, order)})
        self._indices = {ngram: index for index, ngram in enumerate(frequencies)}
        self._idf = [self._default_idf - math.log(images) for images in frequencies.values()]
        self._references = [[self._vector(text) for text in texts] for texts in references_by_image]

    def score(self, image_indices: Sequence[int], captions: Sequence[Sequence[Hashable]]) -> np.ndarray:
        """The CIDEr-D of each caption against the references of its image."""  # (captions,)
        if len(image_indices) != len(captions):
            raise DataError(f"{len(captions)} captions for {len(image_indices)} images: give one image index each")
        return np.array([self._score(image, caption) for image, caption in zip(image_indices, captions)])

    def _vector(self, tokens: Sequence[Hashable]) -> _Vector:
        weights, norms = [], []
        for order in _ORDERS:
            known: dict[int, float] = {}
            square = 0.0
            for ngram, count in count_ngrams(tokens, order).items():
                index = self._indices.get(ngram)
                weight = count * (self._default_idf if index is None else self._idf[index])
                square += weight * weight
                if index is not None:
                    known[index] = weight
            weights.append(known)
            norms.append(math.sqrt(square))
        # The COCO tools measure a text by its pairs of words; only a lone word or none makes a difference.
        return _Vector(weights, norms, max(0, len(tokens) - 1))

    def _score(self, image: int, tokens: Sequence[Hashable]) -> float:
        caption, references = self._vector(tokens), self._references[image]
        total = 0.0
        for reference in references:
            similarity = 0.0
            for weights, norm, reference_weights, reference_norm in zip(
                caption.weights, caption.norms, reference.weights, reference.norms
            ):
                if norm == 0 or reference_norm == 0:
                    continue
                product = 0.0
                for index, weight in weights.items():
                    other = reference_weights.get(index)
                    if other is not None:
                        product += min(weight, other) * other  # clipped: repeating a word earns nothing
                similarity += product / (norm * reference_norm)
            difference = caption.length - reference.length
            total += similarity * math.exp(-(difference**2) / (2 * _SIGMA**2))
        return 10 * total / (LONGEST * len(references))
