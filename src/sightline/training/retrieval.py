"""Building a retrieval datastore of captioned photos, and choosing its weight on val photos."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from sightline.data import Dataset, load_dataset
from sightline.data.dataset import split_name
from sightline.engine.backend import as_array
from sightline.engine.captioner import Captioner, load
from sightline.engine.retrieval import Datastore
from sightline.evaluation.calibration import EncodedBatch, encoded
from sightline.evaluation.metrics import score
from sightline.io.files import counted

log = logging.getLogger(__name__)
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)  # tried on val photos
ENOUGH = 20  # val photos to choose a weight by


def build_datastore(
    model: Captioner | str | Path | None,
    data: Dataset | str | Path,
    split: str = "train",
    weight: float | None = None,
    format: str = "auto",
) -> tuple[Datastore, dict[float, float]]:
    """A datastore of a split (or of "all" photos), and the val CIDEr-D with each weight that was tried.

    Without a ``weight`` the best on the val photos is taken; 0 means that retrieval does not help there.
    """
    split = split_name(split, "all")
    dataset = data if isinstance(data, Dataset) else load_dataset(data, format)
    captioner = model if isinstance(model, Captioner) else load(*([model] if model else []))
    examples = dataset.examples("train" if split == "all" else split)
    datastore = datastore_of(captioner, encoded(captioner, examples, "encoding photos"))
    scores: dict[float, float] = {}
    if weight is None:
        scores = try_weights(captioner, datastore, encoded(captioner, dataset.examples("val"), "trying val photos"))
        weight = best_weight(scores)
    if split == "all":
        every = [*examples, *dataset.examples("val"), *dataset.examples("test")]
        datastore = datastore_of(captioner, encoded(captioner, every, "encoding all photos"))
    return datastore.with_weight(weight), scores


def datastore_of(captioner: Captioner, batches: Iterable[EncodedBatch]) -> Datastore:
    names, captions, vectors = [], [], []
    for batch, features in batches:
        vectors.append(as_array(features[0].pooled))
        names += [example.name for example in batch]
        captions += [example.captions for example in batch]
    return Datastore.of(captioner.backends[0].signature(), names, captions, np.concatenate(vectors))


def try_weights(captioner: Captioner, datastore: Datastore, batches: Iterable[EncodedBatch]) -> dict[float, float]:
    """CIDEr-D of these photos with each weight."""
    captioners = [Captioner(captioner.backends, datastore.with_weight(weight)) for weight in WEIGHTS]
    options = captioner.options(want_attention=False, candidates=1)
    predictions: list[list[str]] = [[] for _ in WEIGHTS]
    references = []
    for batch, features in batches:
        references += [example.captions for example in batch]
        for texts, each in zip(predictions, captioners):
            texts += [caption.text for caption in each.finish(each.decode(features, options), features)]
    if len(references) < ENOUGH:
        log.warning(
            "only %s: the weight of the datastore is a guess; --weight sets it", counted(len(references), "val photo")
        )
    return {weight: score(texts, references, ("cider",))["cider"] for weight, texts in zip(WEIGHTS, predictions)}


def best_weight(scores: Mapping[float, float]) -> float:
    """The weight with the highest score; of equal ones the smallest."""
    return max(scores, key=lambda each: (round(scores[each], 4), -each))
