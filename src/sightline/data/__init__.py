"""Datasets: one format per file, each a module with ``detect(path)`` and ``load(path, seed)``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sightline.data import coco, flickr8k, flickr30k, folder, shards
from sightline.data.dataset import (
    SPLITS,
    Dataset,
    Example,
    Report,
    check_sources,
    first_of_each_source,
    mix,
    verify_images,
)
from sightline.data.huggingface import is_hub_name
from sightline.data.huggingface import load as load_from_hub
from sightline.data.objects import find_objects, read_objects, with_objects
from sightline.data.reading import read_references, read_results, read_text, write_results
from sightline.errors import ConfigError, DataError, nearest
from sightline.io.files import local_path, printable

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "Example",
    "Report",
    "check_sources",
    "find_format",
    "find_objects",
    "first_of_each_source",
    "load_dataset",
    "load_datasets",
    "mix",
    "read_objects",
    "read_references",
    "read_results",
    "read_text",
    "verify_images",
    "with_objects",
    "write_results",
]


class Format(Protocol):
    def detect(self, path: Path) -> bool: ...

    def load(self, path: Path, seed: int | None) -> Dataset: ...


# In the order they are tried: the folder format takes whatever has a table of captions.
DATASETS: dict[str, Format] = {
    "flickr8k": flickr8k,
    "flickr30k": flickr30k,
    "coco": coco,
    "folder": folder,
    "shards": shards,
}


def load_dataset(path: str | Path, format: str = "auto", seed: int | None = 0) -> Dataset:
    """A dataset from its folder, captions table or ``hf:owner/name``, checked; `Dataset.report` lists what is wrong.

    ``seed`` draws the splits where none are published; `DataError` if one would be empty. With None, no split is drawn
    and any may be empty: for those who read `Dataset.all_examples` only.
    """
    if format != "auto" and format not in DATASETS:
        names = ", ".join(DATASETS)
        raise ConfigError(f"there is no dataset format {format!r}{nearest(format, DATASETS)}: choose auto, {names}")
    if is_hub_name(path):
        if format != "auto":
            raise ConfigError(f"{path} is a dataset of the hub: leave out --format {format}")
        return load_from_hub(str(path), seed)
    try:
        root = _root(path)
        if format == "auto":
            format = _detect(root)
        dataset = DATASETS[format].load(root, seed)
        labels = find_objects(root)
        return with_objects(dataset, labels) if labels else dataset
    except OSError as error:
        raise DataError(f"{printable(path)} cannot be read: {error.strerror}") from error


def find_format(path: str | Path) -> str:
    """The format of the dataset in a folder."""
    return _detect(_root(path))


def _root(path: str | Path) -> Path:
    try:
        root = local_path(path)
    except ValueError as error:
        raise DataError(f"{printable(path)} {error}") from None
    if not root.exists():
        raise DataError(f"{printable(path)} does not exist: check the path of the dataset")
    return root


def _detect(root: Path) -> str:
    found = next((name for name, known in DATASETS.items() if known.detect(root)), None)
    if found is None:
        tables = folder.table_files(root) if root.is_dir() else []
        advice = "add a captions.csv (or .tsv, .jsonl) with the columns image,caption beside the images"
        raise DataError(
            f"{printable(root)} holds no known dataset ({', '.join(DATASETS)}): "
            f"{folder.missing_columns(tables[0]) if tables else advice}"
        )
    return found


def load_datasets(paths: Sequence[str | Path], format: str = "auto", seed: int | None = 0) -> Dataset:
    """One dataset, or several as a mixture; ``seed`` as in `load_dataset`."""
    loaded = [load_dataset(path, format, seed) for path in paths]
    return loaded[0] if len(loaded) == 1 else mix(loaded, to_train=seed is not None)
