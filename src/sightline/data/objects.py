"""Object labels of a dataset: which categories are known to be in each photo (``objects.json``, plain or gzipped).

``{"categories": [names], "photos": {photo name: [indices of categories]}}``
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from sightline.data.dataset import Dataset
from sightline.data.reading import find_file
from sightline.errors import DataError
from sightline.io.files import printable

FILES = ("objects.json", "objects.json.gz")


def find_objects(root: Path) -> Path | None:
    """The label file in a dataset's folder, if there is one."""
    return find_file(root, *FILES) if root.is_dir() else None


def read_objects(path: Path) -> dict[str, frozenset[str]]:
    """The categories of each photo, by the photo's name."""
    try:
        data = path.read_bytes()
        value: Any = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except OSError as error:
        raise DataError(f"cannot read {printable(path)}: {error.strerror or error}; check the file") from None
    except (ValueError, EOFError, zlib.error, RecursionError) as error:
        raise DataError(f"{printable(path)} is not a file of object labels ({error}): write it again") from None
    categories = value.get("categories") if isinstance(value, dict) else None
    photos = value.get("photos") if isinstance(value, dict) else None
    if not (isinstance(categories, list) and all(isinstance(name, str) for name in categories)):
        raise DataError(f'{printable(path)} has no list "categories" of names: it is not a file of object labels')
    if not isinstance(photos, dict):
        raise DataError(f'{printable(path)} has no "photos" with the categories of each: it is not of this format')
    labels = {}
    for name, numbers in photos.items():
        valid = isinstance(numbers, list) and all(type(n) is int and 0 <= n < len(categories) for n in numbers)
        if not valid:
            wrong = printable(json.dumps(numbers)[:60])
            raise DataError(
                f"{printable(path)}: photo {printable(name)} has the categories {wrong}; "
                f"give indices from 0 to {len(categories) - 1}"
            )
        labels[name] = frozenset(categories[n] for n in numbers)
    return labels


def with_objects(dataset: Dataset, path: Path) -> Dataset:
    """The dataset with each photo's objects, found as `label_of` does."""
    labels = read_objects(path)
    splits, found = {}, 0
    for split, examples in dataset.splits.items():
        labelled = []
        for example in examples:
            objects = label_of(example.name, labels)
            found += objects is not None
            labelled.append(example if objects is None else replace(example, objects=objects))
        splits[split] = labelled
    if not found:
        raise DataError(f"{printable(path)} labels none of the photos of {dataset.name}: it belongs to other photos")
    return replace(dataset, splits=splits)


def label_of(name: str, labels: dict[str, frozenset[str]]) -> frozenset[str] | None:
    """A photo's label: by its name, its file name or its stem, a number without leading zeros."""
    keys = (name, name.rsplit("/", 1)[-1], _number(name))
    return next((labels[key] for key in keys if key in labels), None)


def _number(name: str) -> str:
    """A file name's number without leading zeros, as COCO's: ``000000000042.jpg`` is photo 42."""
    stem = name.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return str(int(stem)) if stem.isdecimal() else stem
