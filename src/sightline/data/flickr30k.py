"""Flickr30k (Young et al., 2014): public splits (``dataset_flickr30k.json``), the token file, or ``results.csv``."""

from __future__ import annotations

import re
from pathlib import Path

from sightline.data.builder import DatasetBuilder, add_karpathy_rows, add_token_rows, assign_lists
from sightline.data.dataset import Dataset
from sightline.data.reading import find_file, read_lines
from sightline.errors import DataError
from sightline.io.files import printable

KARPATHY, TOKENS, TABLE = "dataset_flickr30k.json", "results_20130124.token", "results.csv"
LISTS = {
    "train": ("flickr30k_train.txt", "train.txt"),
    "val": ("flickr30k_val.txt", "val.txt"),
    "test": ("flickr30k_test.txt", "test.txt"),
}


def detect(path: Path) -> bool:
    return path.is_dir() and _captions_file(path) is not None


def load(path: Path, seed: int | None) -> Dataset:
    file = _captions_file(path)
    if file is None:
        raise DataError(f"{printable(path)} is not Flickr30k: none of {KARPATHY}, {TOKENS} and {TABLE} lies there")
    builder = DatasetBuilder("flickr30k", path, held_out=1 / 31)  # about the public 1,014 and 1,000 of 31,783
    if file.name == KARPATHY:
        add_karpathy_rows(builder, file)
    else:
        if file.name == TOKENS:
            add_token_rows(builder, file)
        else:
            _add_table(builder, file)
        assign_lists(builder, path, LISTS)
    return builder.finish(seed)


def _captions_file(root: Path) -> Path | None:
    file = find_file(root, KARPATHY, TOKENS, TABLE)
    if file is not None and file.name == TABLE:
        first = next(read_lines(file), (1, ""))[1]
        if [column.strip() for column in first.lower().split("|")] != ["image_name", "comment_number", "comment"]:
            return None
    return file


def _add_table(builder: DatasetBuilder, path: Path) -> None:
    """``image| number| caption`` rows; one of the published file lacks its second bar and is repaired."""
    for line_number, line in read_lines(path):
        if line_number == 1 or not line.strip():
            continue
        where = f"{path.name} line {line_number}"
        image, *parts = line.split("|", 2)
        if len(parts) == 1 and (broken := re.fullmatch(r"\s*(\d+)\s+(.+)", parts[0])):
            parts = list(broken.groups())
            builder.report.add("repaired_row", where)
        number, caption = parts if len(parts) == 2 else ("", None)
        builder.add(image, caption, where=where, number=number.strip())
