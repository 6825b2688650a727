"""Scoring captions as the COCO caption tools do, without Java. A metric is one file and one line here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sightline.errors import ConfigError, DataError, nearest
from sightline.evaluation.metrics.bleu import Bleu
from sightline.evaluation.metrics.cider import Cider
from sightline.evaluation.metrics.meteor import Meteor
from sightline.evaluation.metrics.metric import Metric, check_pairs
from sightline.evaluation.metrics.ptb import tokenize_all
from sightline.evaluation.metrics.rouge import Rouge

METRICS: dict[str, Callable[[], Metric]] = {"bleu": Bleu, "rouge": Rouge, "cider": Cider, "meteor": Meteor}
LABELLED = ("chair",)  # metrics that compare captions with object labels, not with references

_log = logging.getLogger(__name__)


def score(
    captions: Sequence[str] | Mapping[Any, Sequence[str] | str],
    references: Sequence[Sequence[str]] | Mapping[Any, Sequence[str]],
    metrics: Sequence[str] = tuple(METRICS),
) -> dict[str, float]:
    """The scores of raw captions against raw references, one caption and some references per image, as fractions.

    Both are lists in the same order, or both dictionaries by image as the COCO caption tools take them:
    ``{image: [caption]}`` and ``{image: [reference, …]}``.
    """
    if not set(LABELLED).isdisjoint(metrics):
        raise ConfigError("the metric chair compares captions with object labels, not with references: use evaluate")
    scorers = build(metrics)
    caption_tokens, reference_tokens = prepare(*_in_order(captions, references))
    scores: dict[str, float] = {}
    for scorer in scorers.values():
        scores.update(scorer.aggregate(scorer.statistics(caption_tokens, reference_tokens)))
    return scores


def _in_order(captions: Any, references: Any) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Dictionaries as lists in one order; lists as they are."""
    if not isinstance(captions, Mapping) and not isinstance(references, Mapping):
        return captions, references
    if not (isinstance(captions, Mapping) and isinstance(references, Mapping)):
        raise DataError("captions and references are a dictionary and a list: give both by image, or both in order")
    if different := captions.keys() ^ references.keys():
        shown = ", ".join(sorted(map(repr, different))[:3])
        raise DataError(f"captions and references differ in {len(different)} images ({shown}): give the same images")
    single = []
    for image, texts in captions.items():
        texts = [texts] if isinstance(texts, str) else texts
        if len(texts) != 1:
            raise DataError(f"image {image!r} has {len(texts)} captions: give one, in a list")
        single.append(texts[0])
    return single, [references[image] for image in captions]


def build(names: Sequence[str] | None = None) -> dict[str, Metric]:
    """The metrics of these names that compare with references, all if none are given.

    A metric whose data is not on this machine is left out with a warning; where no other is asked for, that is an
    error. "chair" compares with labels: not built here.
    """
    scorers: dict[str, Metric] = {}
    alone = names is not None and len(set(names)) == 1
    for name in METRICS if names is None else names:
        if name in LABELLED:
            continue
        if name not in METRICS:
            known = (*METRICS, *LABELLED)
            raise ConfigError(f"no metric {name!r}{nearest(name, known)}: choose from {', '.join(known)}")
        try:
            scorers[name] = METRICS[name]()
        except DataError as error:
            if alone:
                raise
            _log.warning("%s is left out: %s", name, error)
    return scorers


def prepare(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Raw text to Penn Treebank tokens, both sides read in order as the COCO caption tools read them."""
    check_pairs(captions, references)
    words = iter(tokenize_all([text for texts in references for text in texts]))
    return tokenize_all(captions), [[next(words) for _ in texts] for texts in references]
