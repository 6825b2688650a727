"""Flickr8k (Hodosh et al., 2013): the original archives, ``Images/`` + ``captions.txt``, or Karpathy's JSON.

The original lies in two folders, ``Flicker8k_Dataset`` (so spelled) and ``Flickr8k_text``; any spelling and nesting
will do, for images are found by file name.
"""

from __future__ import annotations

import csv
from pathlib import Path

from sightline.data.builder import DatasetBuilder, add_karpathy_rows, add_token_rows, assign_lists
from sightline.data.dataset import Dataset
from sightline.data.reading import find_file, read_lines
from sightline.errors import DataError
from sightline.io.files import printable

TOKENS, KARPATHY, TABLE = "Flickr8k.token.txt", "dataset_flickr8k.json", "captions.txt"
LISTS = {
    split: (f"Flickr_8k.{name}Images.txt", f"Flickr8k.{name}Images.txt", f"Flicker_8k.{name}Images.txt")
    for split, name in (("train", "train"), ("val", "dev"), ("test", "test"))
}


def detect(path: Path) -> bool:
    return path.is_dir() and _captions_file(_root(path)) is not None


def load(path: Path, seed: int | None) -> Dataset:
    root = _root(path)
    file = _captions_file(root)
    if file is None:
        raise DataError(f"{printable(path)} is not Flickr8k: neither {TOKENS} nor {TABLE} (image,caption) lies there")
    builder = DatasetBuilder("flickr8k", root)
    if file.name == KARPATHY:
        add_karpathy_rows(builder, file)
    else:
        if file.name == TOKENS:
            add_token_rows(builder, file)
        else:
            _add_table(builder, file)
        assign_lists(builder, root, LISTS)
    return builder.finish(seed)


def _root(path: Path) -> Path:
    """The folder that holds both halves, also where a user names one of them."""
    halves = {"flickr8k_text", "flicker8k_text", "flickr8k_dataset", "flicker8k_dataset"}
    return path.parent if path.absolute().name.lower() in halves else path


def _captions_file(root: Path) -> Path | None:
    file = find_file(root, TOKENS, KARPATHY, TABLE)
    if file is not None and file.name == TABLE:
        first = next(read_lines(file), (1, ""))[1]
        if first.replace(" ", "").lower() != "image,caption":
            return None
    return file


def _add_table(builder: DatasetBuilder, path: Path) -> None:
    """``image,caption`` rows, one line each: a stray quotation mark must not swallow the lines after it."""
    for line_number, line in read_lines(path):
        if line_number == 1 or not line.strip():
            continue
        where = f"{path.name} line {line_number}"
        try:
            image, *parts = next(csv.reader([line]))
        except csv.Error:
            builder.report.add("unreadable_row", where)
            continue
        caption = ",".join(parts) if parts else None
        builder.add(image, caption, where=where, number=str(line_number))
