"""Tables of captions: rows of CSV, TSV, JSON, JSONL and Parquet files, and which photo of a dataset each one is of."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from sightline.data.dataset import Example
from sightline.data.folder import CAPTION, IMAGE
from sightline.data.reading import read_json, text_encoding
from sightline.errors import DataError, MissingExtraError, install_command
from sightline.io.files import printable
from sightline.types import text_of_cell

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
SOURCE = ("source", "image", "path", "file", "filename", "file_name")  # columns of photos, in order of preference


def is_part(path: Path) -> bool:
    """Whether a file is a bulk job's part: a person's copies, such as ``part-000000 (copy).csv``, are none."""
    return path.stem.removeprefix("part-").isdecimal()


def read_captions(table: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A photo's name, its caption and the whole row, for every caption of a table; rows without one are left out.

    The folder of a bulk job is read as the table of all its parts.
    """
    if table.is_dir():
        parts = sorted(part for part in table.glob("part-*") if part.suffix in TABLES and is_part(part))
        if not parts:
            raise DataError(f"{printable(table)} holds no table of captions: name a Parquet, JSONL or CSV job")
        for part in parts:
            yield from read_captions(part)
        return
    columns: tuple[str, str] | None = None
    for row in read_rows(table):
        if not columns and row.get("error") and not any(name in row for name in CAPTION):
            continue  # JSON names no columns that a photo has no values of: one that failed has no caption
        columns = columns or _columns(row, table)
        source, texts = row.get(columns[0]), row.get(columns[1])
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(source, str) and isinstance(text, str) and text.strip():
                yield source, text, row


def _columns(row: dict[str, Any], table: Path) -> tuple[str, str]:
    """The names of the columns of photos and of captions, by the first row with a caption."""
    source = next((name for name in (*SOURCE, *IMAGE) if name in row), "")
    caption = next((name for name in CAPTION if name in row), "")
    if not (source and caption):
        raise DataError(
            f"{printable(table)} has no columns of photos and captions: name them source and caption, in the first row"
        )
    return source, caption


def captions_of_examples(table: Path, examples: Sequence[Example]) -> tuple[dict[str, str], int]:
    """Captions by example name, the first of each photo, and how many photos of the table are none of the examples."""
    example_of = _example_finder(examples)
    captions: dict[str, str] = {}
    taken: dict[str, str] = {}
    others = set[str]()
    for source, text, _ in read_captions(table):
        name = example_of(source)
        if name is None:
            others.add(source)
        elif taken.setdefault(name, source) != source:
            raise DataError(
                f"{printable(table)} has two photos, {printable(taken[name])} and {printable(source)}, for the "
                f"reference {printable(name)}: keep one of them"
            )
        else:
            captions.setdefault(name, text)
    return captions, len(others)


def errors_table(captions: Path, format: str, is_folder: bool) -> Path:
    """The table of errors of a bulk job, by its table of captions or its folder."""
    name = f"errors.{format}"
    return captions / f"_{name}" if is_folder else captions.with_suffix(f".{name}")


def errors_of_examples(table: Path, examples: Sequence[Example]) -> dict[str, str]:
    """Why photos could not be captioned, by example name: from the table's column ``error`` or from the table of errors
    of the bulk job that wrote it."""
    formats = TABLES if table.is_dir() else [table.suffix.lower()]
    of_job = [errors_table(table, format.removeprefix("."), table.is_dir()) for format in formats]
    example_of = _example_finder(examples)
    errors: dict[str, str] = {}
    for path, column in ((table, "error"), *((path, "reason") for path in of_job)):
        for row in read_rows(path) if path.is_file() else ():
            source, error = row.get("source"), row.get(column)
            if isinstance(source, str) and isinstance(error, str) and error and (name := example_of(source)):
                errors[name] = error
    return errors


def _example_finder(examples: Sequence[Example]) -> Callable[[str], str | None]:
    """Gives the example of a photo in a table, by its name or path, else by its file name, else by the number that
    ends it, as in COCO."""
    exact = {key: example.name for example in examples for key in (example.name, str(example.image))}
    by_file: dict[str, str | None] = {}
    for example in examples:
        for file in {PurePath(example.name).name, PurePath(str(example.image)).name}:
            by_file[file] = None if file in by_file else example.name  # None: two photos are called so

    def find(source: str) -> str | None:
        file = PurePath(source.rpartition("::")[2]).name
        number = re.search(r"\d+$", PurePath(file).stem)
        return (
            exact.get(source)
            or exact.get(os.path.abspath(source))  # noqa: PTH100
            or by_file.get(file)
            or (exact.get(str(int(number[0]))) if number else None)
        )

    return find


def read_rows(table: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, by the names of its columns."""
    kind = table.suffix.lower()
    try:
        if kind == ".parquet":
            for batch in import_parquet().ParquetFile(table).iter_batches():
                yield from batch.to_pylist()
        elif kind == ".json":
            rows = read_json(table)
            yield from _objects(rows if isinstance(rows, list) else [])
        else:
            with table.open(encoding=text_encoding(table), errors="surrogateescape", newline="") as file:
                yield from _json_rows(file) if kind == ".jsonl" else _csv_rows(file, "\t" if kind == ".tsv" else ",")
    except OSError as error:
        raise DataError(f"{printable(table)} cannot be read: {error.strerror or error}; check the path") from None
    except (csv.Error, ValueError, RecursionError) as error:  # pyarrow's are ValueErrors
        raise DataError(f"{printable(table)} cannot be read: {error}") from None


def _csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[dict[str, Any]]:
    for row in csv.DictReader(lines, delimiter=delimiter):
        yield {name: text_of_cell(value) for name, value in row.items() if isinstance(value, str)}


def _json_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return _objects(json.loads(line) for line in lines if line.strip())


def _objects(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict))


def import_parquet(to_write: bool = False) -> Any:
    """``pyarrow.parquet``, or one line that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        instead = ", or write .jsonl or .csv instead" if to_write else ""
        raise MissingExtraError(f"Parquet needs pyarrow: {install_command('bulk')}{instead}") from None
    return pyarrow.parquet
