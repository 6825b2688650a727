"""Any folder of images with captions: a CSV, TSV or JSONL table, or a ``.txt`` beside each image.

A table names its columns in plain words (see `IMAGE`, `CAPTION`); several captions of an image are several rows, or a
list in JSONL. A ``split`` column, tables called ``train.csv`` and ``val.csv``, or folders ``train/`` and ``val/`` with
a table each give the splits.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from sightline.data.builder import DatasetBuilder
from sightline.data.dataset import SPLIT_NAMES, Dataset
from sightline.data.generated import ADVICE, COLUMNS, Sidecar, generated_sidecars, is_generated
from sightline.data.reading import json_object, read_lines, text_encoding
from sightline.errors import DataError
from sightline.io.files import counted, printable, sidecar_of, walk_images
from sightline.types import text_of_cell

IMAGE = ("image", "file", "file_name", "filename", "path", "image_path", "image_name", "image_file", "photo")
CAPTION = ("caption", "captions", "text", "description", "comment", "sentence", "sentences")
SPLIT = ("split", "subset", "set")
SUFFIXES = (".csv", ".tsv", ".jsonl")
PREFERRED = ("captions", "metadata")


class Table(NamedTuple):
    """A captions table: where its images start from, which split it is, and how its columns are called."""

    path: Path
    base: str
    split: str
    image: str
    caption: str
    split_column: str
    names: list[str]  # of all columns
    header: int  # the line that names them
    delimiter: str  # empty for JSONL
    generated: bool  # it has the columns of a table that Sightline wrote


def detect(path: Path) -> bool:
    if path.is_file():
        return path.suffix.lower() in SUFFIXES
    return bool(_tables(path)) or any(_sidecar(image).is_file() for image in walk_images(path))


def load(path: Path, seed: int | None) -> Dataset:
    root = path.parent if path.is_file() else path
    tables = _tables(path)
    builder = DatasetBuilder(_dataset_name(path), root)
    for table in tables:
        rows = _json_rows(table, builder) if not table.delimiter else _text_rows(table, builder)
        for where, image, captions, split in rows:
            image = str(PurePosixPath(table.base, image.strip())) if image.strip() else ""
            for caption in captions if isinstance(captions, list) and captions else [captions]:
                builder.add(image, caption, where=where, split=table.split or split)
    if written := [printable(table.path.name) for table in tables if table.generated]:
        builder.note(
            f"{', '.join(written)} has the columns {', '.join(COLUMNS)}, so Sightline wrote its captions: {ADVICE}, or "
            "delete these columns where people corrected the captions"
        )
    if not tables:
        _add_sidecars(builder)
    return builder.finish(seed)


def _dataset_name(path: Path) -> str:
    """The table's or the folder's name, of letters and digits: it stands in signatures, options and other names."""
    full = Path(os.path.abspath(path))  # noqa: PTH100 -- a link keeps its name
    return re.sub(r"[^\w-]+", "-", full.stem if path.is_file() else full.name).strip("-") or "folder"


def _tables(path: Path) -> list[Table]:
    if path.is_file():
        table = _table(path)
        if table is None:
            raise DataError(missing_columns(path))
        return [table]
    tables = [table for file in table_files(path) if (table := _table(file))]
    splits = [table._replace(split=table.path.stem) for table in tables if table.path.stem.lower() in SPLIT_NAMES]
    preferred = [table for table in tables if table.path.stem.lower() in PREFERRED]
    if splits:
        return splits
    if len(tables) > 1 and len(preferred) != 1:
        names = ", ".join(printable(table.path.name) for table in tables)
        raise DataError(f"{printable(path)} holds several caption tables ({names}): name the one to use")
    if tables:
        return preferred or tables
    return [
        table._replace(base=folder.name, split=folder.name)
        for folder in sorted(path.iterdir())
        if folder.is_dir() and folder.name.lower() in SPLIT_NAMES
        for file in table_files(folder)[:1]
        if (table := _table(file))
    ]


def table_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != ".")


def _table(path: Path) -> Table | None:
    """The table's columns from its first line; None where it has no image or no caption column."""
    header, line = _header(path)
    for delimiter in _delimiters(path):
        names = _columns(line, delimiter)
        image, caption, split = (_named(names, known) for known in (IMAGE, CAPTION, SPLIT))
        if image and caption:
            return Table(path, "", "", image, caption, split, names, header, delimiter, is_generated(names))
    return None


def _delimiters(path: Path) -> list[str]:
    return {".jsonl": [""], ".tsv": ["\t"]}.get(path.suffix.lower(), [*",;\t|"])


def _header(path: Path) -> tuple[int, str]:
    """The first line that is not empty, and its number; ``sep=;`` before it is for Excel."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip() and not line.startswith("sep="))
    return next(lines, (0, ""))


def _columns(line: str, delimiter: str) -> list[str]:
    if not delimiter:
        return list(json_object(line))
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a cell too long for a column's name
        return []


def missing_columns(path: Path) -> str:
    """Why a file is no table of captions, and what to do."""
    line = _header(path)[1]
    names = max((_columns(line, delimiter) for delimiter in _delimiters(path)), key=len)
    missing = [kind for kind, known in (("image", IMAGE), ("caption", CAPTION)) if not _named(names, known)]
    found = printable(", ".join(names) or "none")[:200]
    return (
        f"{printable(path)} has no {' and no '.join(missing)} column, its columns are {found}: "
        "name them image and caption in the first line"
    )


def _named(names: list[str], known: tuple[str, ...]) -> str:
    plain = {name.strip().lower(): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), "")


def _text_rows(table: Table, builder: DatasetBuilder) -> Iterator[tuple[str, str, Any, str]]:
    names = table.names
    image, caption = names.index(table.image), names.index(table.caption)
    split = names.index(table.split_column) if table.split_column else None
    with table.path.open(encoding=text_encoding(table.path), errors="replace", newline="") as file:
        for _ in range(table.header):
            next(file)
        reader = csv.reader(file, delimiter=table.delimiter)
        while True:
            where = f"{table.path.name} line {table.header + reader.line_num + 1}"
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                builder.report.add("unreadable_row", where)
                continue
            if len(row) > len(names) and caption == len(names) - 1:  # commas of the caption, not quoted
                row[caption:] = [table.delimiter.join(row[caption:])]
                builder.report.add("unquoted_separator", where)
            if row and len(row) != len(names):
                builder.report.add("unreadable_row", where)
            elif row:
                if "\n" in row[caption].strip():
                    builder.report.add("several_lines", where)
                yield (
                    where,
                    text_of_cell(row[image]),
                    text_of_cell(row[caption]),
                    row[split] if split is not None else "",
                )


def _json_rows(table: Table, builder: DatasetBuilder) -> Iterator[tuple[str, str, Any, str]]:
    for line_number, line in read_lines(table.path):
        if line.strip():
            row = json_object(line)
            image, split = row.get(table.image), row.get(table.split_column)
            where = f"{table.path.name} line {line_number}"
            yield where, image if isinstance(image, str) else "", row.get(table.caption), str(split or "")


def _sidecar(image: Path) -> Path:
    """``dog.jpg.txt`` if there is one, else ``dog.txt``."""
    full = image.with_name(f"{image.name}.txt")
    return full if full.is_file() else sidecar_of(image)


def _add_sidecars(builder: DatasetBuilder) -> None:
    sidecars = []
    for name, image in builder.images.by_path.items():
        text = _sidecar(image)
        if text.is_file():
            lines = [line for _, line in read_lines(text) if line.strip()]
            for caption in lines or [""]:
                builder.add(name, caption, where=text.name)
            sidecars += [Sidecar(image, text, line.strip()) for line in lines]
    count, where = generated_sidecars(builder.root, sidecars)
    if count:
        builder.note(f"Sightline wrote {count:,} of {counted(len(sidecars), 'sidecar')} (see {where}): {ADVICE}")
