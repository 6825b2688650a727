"""Making a memory of captioned photos, and finding out how much to listen to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data import Dataset, Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.engine.retrieval import Memory, make_memory
from sightline.errors import DataError, ImageError
from sightline.evaluation.metrics import score
from sightline.io.files import counted
from sightline.io.images import open_image
from sightline.io.progress import track
from sightline.types import ImageFeatures

log = logging.getLogger(__name__)
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)  # tried on dev photos
ENOUGH = 20  # dev photos to choose a weight by
BATCH = 16

Seen = tuple[Sequence[Example], Sequence[ImageFeatures]]  # photos and each model's features of them


def remember(
    model: Captioner | str | Path | None,
    data: Dataset | str | Path,
    split: str = "train",
    weight: float | None = None,
    format: str = "auto",
) -> tuple[Memory, dict[float, float]]:
    """A memory of a split (or of "all" photos), and the dev CIDEr-D with each weight that was tried.

    Without a ``weight`` the best on the dev photos is taken; 0 says that the memory does not help there.
    """
    dataset = data if isinstance(data, Dataset) else load_dataset(data, format)
    captioner = model if isinstance(model, Captioner) else load(*([model] if model else []))
    known = dataset.examples("train" if split == "all" else split)
    memory = memory_of(captioner, seen(captioner, known, "looking at photos to remember"))
    tried: dict[float, float] = {}
    if weight is None:
        tried = try_weights(captioner, memory, seen(captioner, dataset.examples("dev"), "trying it on dev photos"))
        weight = best_weight(tried)
    if split == "all":
        every = [*known, *dataset.examples("dev"), *dataset.examples("test")]
        memory = memory_of(captioner, seen(captioner, every, "looking at all photos"))
    return memory.weighing(weight), tried


def memory_of(captioner: Captioner, batches: Iterable[Seen]) -> Memory:
    names, captions, vectors = [], [], []
    for batch, features in batches:
        pooled: Any = features[0].pooled
        vectors.append(pooled if isinstance(pooled, np.ndarray) else pooled.float().cpu().numpy())
        names += [example.name for example in batch]
        captions += [example.captions for example in batch]
    return make_memory(captioner.checkpoints[0].signature(), names, captions, np.concatenate(vectors))


def try_weights(captioner: Captioner, memory: Memory, batches: Iterable[Seen]) -> dict[float, float]:
    """CIDEr-D of these photos with each weight."""
    steered = [Captioner(captioner.checkpoints, captioner.device, memory.weighing(weight)) for weight in WEIGHTS]
    options = captioner.decoding(want_attention=False, candidates=1)
    texts: list[list[str]] = [[] for _ in WEIGHTS]
    references = []
    for batch, features in batches:
        references += [example.captions for example in batch]
        for own, each in zip(texts, steered):
            own += [caption.text for caption in each.decode(features, options)]
    if len(references) < ENOUGH:
        log.warning(
            "only %s: how much to listen to the memory is a guess; --weight sets it",
            counted(len(references), "dev photo"),
        )
    return {weight: score(own, references, ("cider",))["cider"] for weight, own in zip(WEIGHTS, texts)}


def best_weight(tried: Mapping[float, float]) -> float:
    """Of equal ones the smallest."""
    return max(tried, key=lambda each: (round(tried[each], 4), -each))


def seen(captioner: Captioner, examples: Sequence[Example], label: str) -> Iterator[Seen]:
    """Batches of photos that open, with their features."""
    opened = 0
    for start in track(range(0, len(examples), BATCH), label, -(-len(examples) // BATCH)):
        batch, photos = [], []
        for example in examples[start : start + BATCH]:
            try:
                photos.append(open_image(example.image))
                batch.append(example)
            except ImageError as error:
                log.warning("%s: left out", error)
        if photos:
            opened += len(photos)
            yield batch, captioner.encode(photos)
    if not opened:
        raise DataError(f"no photo of {len(examples)} could be opened")
