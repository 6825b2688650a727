"""The tiny dataset in other layouts, and what the tests ask of a dataset."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from drawings import DRAWINGS, EVERY

from sightline.data import load_dataset
from sightline.data.dataset import Dataset
from sightline.errors import SightlineError

SIZES = {"train": 8, "val": 2, "test": 2}
KARPATHY = {"train": "train", "val": "val", "test": "test"}


def sizes(dataset: Dataset) -> dict[str, int]:
    return {split: len(examples) for split, examples in dataset.splits.items()}


def names(dataset: Dataset, split: str) -> set[str]:
    return {example.image.name for example in dataset.splits[split]}


def error_message(kind: type[SightlineError], *arguments, **options) -> str:
    with pytest.raises(kind) as caught:
        load_dataset(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def draw_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in EVERY:
        drawing.draw().save(folder / drawing.name)


def write_csv(path: Path, rows: list[list[str]], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def caption_rows() -> list[list[str]]:
    return [[drawing.name, caption] for drawing in EVERY for caption in drawing.captions]


def karpathy(extra: dict | None = None) -> dict:
    images = []
    for split, drawings in DRAWINGS.items():
        for drawing in drawings:
            sentences = [{"raw": caption, "tokens": caption.split()} for caption in drawing.captions]
            images.append({"filename": drawing.name, "split": KARPATHY[split], "sentences": sentences} | (extra or {}))
    return {"images": images}


def coco_annotations(drawings, first: int) -> dict:
    images = [{"id": first + i, "file_name": drawing.name} for i, drawing in enumerate(drawings)]
    rows = [
        {"image_id": first + i, "id": 100 * (first + i) + number, "caption": caption}
        for i, drawing in enumerate(drawings)
        for number, caption in enumerate(drawing.captions)
    ]
    return {"images": images, "annotations": rows}
