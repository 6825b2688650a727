"""Scoring captions as the COCO caption tools do, without Java. A metric is one file and one line here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sightline.errors import ConfigError, DataError, nearest
from sightline.evaluation.metrics.bleu import Bleu
from sightline.evaluation.metrics.cider import Cider
from sightline.evaluation.metrics.meteor import Meteor
from sightline.evaluation.metrics.metric import Metric, check_pairs
from sightline.evaluation.metrics.ptb import tokenize_all
from sightline.evaluation.metrics.rouge import Rouge

METRICS: dict[str, Callable[[], Metric]] = {"bleu": Bleu, "rouge": Rouge, "cider": Cider, "meteor": Meteor}

_log = logging.getLogger(__name__)


def score(
    captions: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = tuple(METRICS)
) -> dict[str, float]:
    """The scores of raw captions against raw references, one caption and some references per image, as fractions."""
    scorers = build(metrics)
    caption_tokens, reference_tokens = prepare(captions, references)
    scores: dict[str, float] = {}
    for scorer in scorers.values():
        scores.update(scorer.aggregate(scorer.statistics(caption_tokens, reference_tokens)))
    return scores


def build(names: Sequence[str] = tuple(METRICS)) -> dict[str, Metric]:
    """The metrics of these names. One whose data is not on this machine is left out with a warning."""
    scorers: dict[str, Metric] = {}
    for name in names:
        if name not in METRICS:
            raise ConfigError(f"no metric {name!r}{nearest(name, METRICS)}: choose from {', '.join(METRICS)}")
        try:
            scorers[name] = METRICS[name]()
        except DataError as error:
            _log.warning("%s is left out: %s", name, error)
    return scorers


def prepare(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Raw text to Penn Treebank tokens, both sides read in order as the COCO caption tools read them."""
    check_pairs(captions, references)
    words = iter(tokenize_all([text for texts in references for text in texts]))
    return tokenize_all(captions), [[next(words) for _ in texts] for texts in references]
