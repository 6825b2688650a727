"""Fitting confidence on val photos, and the out-of-distribution score on training photos.

A word is right if one of the people who captioned the photo used it too, in any form (METEOR's stems). A caption is
right if at least two thirds of its content words are. Both probabilities are logistic regressions with few parameters,
so that a thousand photos suffice; each is checked on photos it was not fitted to. That of captions also weighs the
photo's features, as many as they are, with so strong a prior that only what many photos agree on is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline import __version__
from sightline.data import Dataset, Example
from sightline.engine.backend import as_array
from sightline.engine.captioner import Captioner
from sightline.engine.confidence import Captions, Confidence, Photos, Words, encode_halves, log_likelihood, logit
from sightline.errors import ConfigError, DataError, ImageError
from sightline.evaluation.metrics.ptb import tokenize, tokenize_all
from sightline.evaluation.metrics.snowball import stem
from sightline.io.progress import track
from sightline.tokenizers.content_words import FUNCTION_WORDS
from sightline.types import Caption, ImageFeatures

log = logging.getLogger(__name__)
RIGHT = 2 / 3  # of a caption's content words
OOD, DOUBTFUL = 0.01, 0.08  # shares of val photos marked for their ood_score, and for their captions
DIRECTIONS = 0.2  # of the feature space: those in which training photos differ least
PHOTOS_PER_FEATURE = 5  # of the training split: fewer do not determine these directions
FEWEST = 20
BINS = 10
RIDGE = 2.0  # strength of the prior: how many occurrences pull a word's own offset to zero
PHOTO_RIDGE = 1000.0  # likewise of the weights of a photo's features, each with a standard deviation of 1

EncodedBatch = tuple[Sequence[Example], Sequence[ImageFeatures]]  # photos and each model's features of them


@dataclass(frozen=True)
class Observed:
    """A val photo: its pooled features, its caption, and which words people used too (None: a word of no letters)."""

    pooled: np.ndarray
    caption: Caption
    used: tuple[bool | None, ...]
    source: str = ""  # the dataset of a mixture it comes from

    @property
    def right(self) -> bool:
        content = [hit for word, hit in self._known() if word not in FUNCTION_WORDS]
        content = content or [hit for _, hit in self._known()]
        return bool(content) and sum(content) >= RIGHT * len(content) - 1e-9

    def _known(self) -> list[tuple[str, bool]]:
        return [(word.text, hit) for word, hit in zip(self.caption.words, self.used) if hit is not None]


def calibrate(
    captioner: Captioner,
    dataset: Dataset,
    photos: int | None = None,
    train_photos: int | None = None,
    batch_size: int = 16,
) -> Confidence:
    """Caption val photos and encode training photos, some or all of them; the record holds how well the fit does."""
    if len(captioner.backends) > 1:
        raise ConfigError("an ensemble cannot be calibrated: calibrate one model at a time")
    dimension = captioner.backends[0].dimension
    wanted = train_photos or PHOTOS_PER_FEATURE * dimension
    train = evenly(dataset.examples("train"), wanted)
    val = evenly(dataset.examples("val"), photos or len(dataset.examples("val")))
    _check_enough(dataset, train, val)
    batches = encoded(captioner, train, "encoding training photos", batch_size)
    vectors = np.concatenate([as_array(features[0].pooled) for _, features in batches])
    observed = observe(captioner, val, batch_size)
    _check_enough(dataset, vectors, observed)
    statistics = Statistics.of(vectors)
    record = {
        "sightline": __version__,
        "data": dataset.name,
        "val_photos": len(observed),
        "train_photos": len(vectors),
        "check": check(observed, statistics),
    }
    return fit(observed, statistics, record)


def _check_enough(dataset: Dataset, train: Sized, val: Sized) -> None:
    for name, found in (("train", train), ("val", val)):
        if len(found) < FEWEST:
            raise DataError(
                f"calibration needs {FEWEST} {name} photos at the least and some hundreds to be of use, "
                f"{dataset.name} gave {len(found)}"
            )


def evenly(examples: Sequence[Example], count: int) -> list[Example]:
    """``count`` examples of a split, evenly spaced."""
    if count >= len(examples):
        return list(examples)
    return [examples[index * len(examples) // count] for index in range(count)]


def encoded(
    captioner: Captioner, examples: Sequence[Example], label: str, batch_size: int = 16
) -> Iterator[EncodedBatch]:
    """Batches of photos that open, with their features."""
    opened = 0
    for start in track(range(0, len(examples), batch_size), label, -(-len(examples) // batch_size)):
        batch, images = [], []
        for example in examples[start : start + batch_size]:
            try:
                images.append(captioner.prepare(example.image))
                batch.append(example)
            except ImageError as error:
                log.warning("%s: left out", error)
        if images:
            opened += len(images)
            yield batch, captioner.encode(images)
    if not opened:
        raise DataError(f"no photo of {len(examples)} could be opened")


def observe(captioner: Captioner, examples: Sequence[Example], batch_size: int) -> list[Observed]:
    """The model's captions, compared with the references."""
    found = []
    options = captioner.options(want_attention=False, candidates=1)
    for batch, features in encoded(captioner, examples, "captioning photos", batch_size):
        captions = captioner.finish(captioner.decode(features, options), features)
        for example, vector, caption in zip(batch, as_array(features[0].pooled), captions):
            found.append(Observed(vector, caption, used(caption, example.captions), example.source))
    return found


def used(caption: Caption, references: Sequence[str]) -> tuple[bool | None, ...]:
    """Which words of a caption are in the references, in any form."""
    known = {stem(token) for tokens in tokenize_all(list(references)) for token in tokens}
    words = [tokenize(word.text) for word in caption.words]
    return tuple(all(stem(token) in known for token in tokens) if tokens else None for tokens in words)


@dataclass(frozen=True)
class Statistics:
    """Training photos' mean and deviation, and the directions of least variance, scaled to a deviation of 1."""

    mean: np.ndarray  # (D,)
    deviation: np.ndarray  # (D,)
    matrix: np.ndarray  # (directions, D)

    @classmethod
    def of(cls, vectors: np.ndarray) -> Statistics:
        mean = vectors.mean(0, dtype=np.float64)
        centred = vectors - mean
        variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))  # smallest first
        count = max(1, round(DIRECTIONS * len(variances)))
        floor = 1e-4 * max(float(variances.mean()), 1e-8)  # a constant feature must not dominate
        deviation = np.sqrt(np.maximum(centred.var(0), floor))
        return cls(mean, deviation, (axes[:, :count] / np.sqrt(np.maximum(variances[:count], floor))).T)

    def photos(self, observed: Sequence[Observed]) -> Photos:
        """With the limit that marks those of these photos with the highest ood_score."""
        count, dimension = self.matrix.shape
        parts = {"mean": encode_halves(self.mean), "matrix": encode_halves(self.matrix)}
        unit = Photos(dimension=dimension, directions=count, limit=1.0, **parts)
        ood_score = unit.ood_score(np.stack([one.pooled for one in observed]))
        return unit.model_copy(update={"limit": max(float(np.quantile(ood_score, 1 - OOD)), 1e-6)})


def fit(observed: Sequence[Observed], statistics: Statistics, record: dict[str, Any] | None = None) -> Confidence:
    """All three parts from these photos."""
    words = fit_words(observed)
    # A caption's probability is fitted to word probabilities of photos that these were not fitted to.
    halves = split(observed)
    pairs = [(fit_words(other), half) for half, other in (halves, halves[::-1])]
    rows, rights = [], []
    for fitted, group in pairs:
        for one in group:
            features = (one.pooled - statistics.mean) / statistics.deviation
            rows.append([1.0, logit(fitted.content(one.caption.words)), log_likelihood(one.caption), *features])
            rights.append(float(one.right))
    ridge = np.array([1e-3, 0.1, 0.1] + [PHOTO_RIDGE] * len(statistics.mean))
    weights = logistic(np.array(rows), np.array(rights), ridge)
    photo = weights[3:] / statistics.deviation
    captions = Captions(
        intercept=_short(weights[0] - photo @ statistics.mean),  # for features as they come, not less their mean
        words=_short(weights[1]),
        log_probability=_short(weights[2]),
        photo=encode_halves(photo),
        unsure_below=0,
    )
    whole = Confidence(words=words, captions=captions, photos=statistics.photos(observed), record=record or {})
    judged = whole.judge([one.caption for one in observed], np.stack([one.pooled for one in observed]))
    doubtful = float(np.quantile([caption.confidence for caption in judged], DOUBTFUL))
    return whole.model_copy(update={"captions": captions.model_copy(update={"unsure_below": doubtful})})


def split(observed: Sequence[Observed]) -> tuple[list[Observed], list[Observed]]:
    """Two random halves, always the same."""
    order = np.random.default_rng(0).permutation(len(observed))
    middle = len(observed) // 2
    return [observed[index] for index in order[:middle]], [observed[index] for index in order[middle:]]


def fit_words(observed: Sequence[Observed]) -> Words:
    """Logistic regression on a word's logit, with an offset of its own for each word, shrunk by `RIDGE`."""
    found = [
        (word.text, logit(word.probability), hit)
        for one in observed
        for word, hit in zip(one.caption.words, one.used)
        if hit is not None
    ]
    if not found:
        raise DataError("no caption has a word to calibrate: every caption is empty")
    names = list(dict.fromkeys(text for text, _, _ in found))
    index = {name: number for number, name in enumerate(names)}
    which = np.array([index[text] for text, _, _ in found])
    design = np.array([[1.0, value] for _, value, _ in found])
    weights, offsets = grouped_logistic(design, np.array([float(hit) for _, _, hit in found]), which, len(names))
    kept = {name: _short(value) for name, value in zip(names, offsets) if abs(value) >= 0.01}
    return Words(intercept=_short(weights[0]), slope=_short(weights[1]), offsets=kept, function_words=FUNCTION_WORDS)


def logistic(design: np.ndarray, hits: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """Weights of a ridge logistic regression, by Newton's method."""
    weights = np.zeros(design.shape[1])
    for _ in range(100):
        probabilities = 1 / (1 + np.exp(-(design @ weights)))
        gradient = design.T @ (probabilities - hits) + ridge * weights
        curvature = (design * (probabilities * (1 - probabilities))[:, None]).T @ design + np.diag(ridge + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        weights -= step * min(1.0, 4 / max(np.abs(step).max(), 1e-12))
        if np.abs(step).max() < 1e-9:
            break
    return weights


def grouped_logistic(
    design: np.ndarray, hits: np.ndarray, which: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same with an offset per group; each row has one, so their part of the curvature is a diagonal."""
    weights, offsets = np.zeros(design.shape[1]), np.zeros(groups)
    for _ in range(100):
        probabilities = 1 / (1 + np.exp(-(design @ weights + offsets[which])))
        spread = probabilities * (1 - probabilities)
        gradient = design.T @ (probabilities - hits) + 1e-3 * weights
        own_gradient = np.bincount(which, probabilities - hits, groups) + RIDGE * offsets
        diagonal = np.bincount(which, spread, groups) + RIDGE
        mixed = np.stack([np.bincount(which, spread * column, groups) for column in design.T])  # (columns, groups)
        curvature = (design * spread[:, None]).T @ design + np.eye(len(weights)) * 1e-3
        step = np.linalg.solve(curvature - mixed / diagonal @ mixed.T, gradient - mixed / diagonal @ own_gradient)
        own_step = (own_gradient - mixed.T @ step) / diagonal
        largest = max(np.abs(step).max(), np.abs(own_step).max())
        scale = min(1.0, 4 / max(largest, 1e-12))
        weights, offsets = weights - scale * step, offsets - scale * own_step
        if largest < 1e-9:
            break
    return weights, offsets


def check(observed: Sequence[Observed], statistics: Statistics) -> dict[str, Any]:
    """Each half judged by the fit to the other half: reliability before and after, and the share marked unsure.

    Where the photos are of a mixture, the reliability of the captions of each source, too.
    """
    before: dict[str, list[tuple[float, bool]]] = {"words": [], "content_words": [], "captions": []}
    after: dict[str, list[tuple[float, bool]]] = {name: [] for name in before}
    sources: dict[str, list[tuple[float, float, bool]]] = {one.source: [] for one in observed}
    marked = 0
    halves = split(observed)
    for fitted, new in (halves, halves[::-1]):
        confidence = fit(fitted, statistics)
        judged = confidence.judge([one.caption for one in new], np.stack([one.pooled for one in new]))
        for one, caption in zip(new, judged):
            marked += caption.unsure
            before["captions"].append((caption.likelihood, one.right))
            after["captions"].append((caption.confidence, one.right))
            sources[one.source].append((caption.likelihood, caption.confidence, one.right))
            for word, hit in zip(caption.words, one.used):
                if hit is not None:
                    for name in ("words", *(["content_words"] if word.text not in FUNCTION_WORDS else [])):
                        before[name].append((word.probability, hit))
                        after[name].append((word.confidence, hit))
    report: dict[str, Any] = {
        name: {"before": reliability(before[name]), "after": reliability(after[name])} for name in before
    }
    report["marked"] = round(marked / len(observed), 4)
    if len(sources) > 1:
        report["sources"] = {
            name: {
                "before": reliability([(likelihood, right) for likelihood, _, right in found]),
                "after": reliability([(confidence, right) for _, confidence, right in found]),
            }
            for name, found in sources.items()
        }
    return report


def reliability(pairs: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Expected calibration error over ten equal bins, the Brier score, and each bin's count, mean and true share."""
    if not pairs:
        return {"ece": 0.0, "brier": 0.0, "count": 0, "rate": 0.0, "bins": []}
    probabilities, hits = (np.array(values, dtype=float) for values in zip(*pairs))
    bin_index = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    bins = [
        [
            int((bin_index == number).sum()),
            *(_short(values[bin_index == number].mean()) for values in (probabilities, hits)),
        ]
        for number in range(BINS)
        if (bin_index == number).any()
    ]
    ece = sum(count * abs(mean - share) for count, mean, share in bins) / len(pairs)
    return {
        "ece": _short(ece), "brier": _short(((probabilities - hits) ** 2).mean()), "count": len(pairs),
        "rate": _short(hits.mean()), "bins": bins,
    }  # fmt: skip


def _short(value: float) -> float:
    return round(float(value), 4)
