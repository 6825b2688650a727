"""Which inputs a bulk job has: folders, patterns, lists and shards become one list on disk, cut into parts.

The list is written once, when a job begins, and read as a stream: a job of a hundred million photos needs no more
memory than one of a thousand. Photos are grouped in order; a shard is a part of its own.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from sightline.bulk.extras import parquet
from sightline.data.tar import is_shard
from sightline.errors import ConfigError, DataError
from sightline.io.files import atomic_path, is_image_path, local_path, printable
from sightline.types import Failure

LISTS = (".txt", ".lst", ".csv", ".tsv", ".jsonl", ".parquet")
COLUMNS = ("source", "image", "path", "file", "filename", "file_name")  # of a list that is a table


@dataclass(frozen=True)
class Part:
    """What is done and kept together: some photos (or inputs known to be bad), or one shard."""

    number: int
    photos: tuple[str | Failure, ...] = ()
    shard: str = ""


@dataclass(frozen=True)
class Listing:
    """What was written to disk: how many inputs, and a digest of them all."""

    photos: int
    shards: int
    parts: int
    digest: str


def list_inputs(inputs: Sequence[str], target: Path, part_size: int, leave_out: Sequence[Path] = ()) -> Listing:
    """Write every input to ``target``, one JSON value per line, in a fixed order and each once."""
    photos = shards = 0
    digest = hashlib.sha256()
    with atomic_path(target) as temporary, temporary.open("w", encoding="ascii") as file:
        for entry in find(inputs, leave_out):
            if isinstance(entry, str) and is_shard(entry):
                shards += 1
            else:
                photos += 1
            line = json.dumps(entry if isinstance(entry, str) else [entry.source, entry.reason]) + "\n"
            digest.update(line.encode())
            file.write(line)
    if not photos and not shards:
        raise DataError(f"{printable(', '.join(inputs))}: no photo and no shard there; name another folder or pattern")
    parts = sum(1 for _ in read_parts(target, part_size))
    return Listing(photos, shards, parts, digest.hexdigest()[:16])


def read_parts(listing: Path, part_size: int) -> Iterator[Part]:
    """The parts of a job, in order, from its list on disk."""
    number = 0
    photos: list[str | Failure] = []
    try:
        with listing.open(encoding="ascii") as file:
            for line in file:
                value = json.loads(line)
                entry = value if isinstance(value, str) else Failure(*value)
                shard = entry if isinstance(entry, str) and is_shard(entry) else ""
                if photos and (shard or len(photos) == part_size):
                    yield Part(number, tuple(photos))
                    number, photos = number + 1, []
                if shard:
                    yield Part(number, shard=shard)
                    number += 1
                else:
                    photos.append(entry)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{listing} cannot be read ({error}): delete its folder and begin again with --overwrite"
        ) from None
    if photos:
        yield Part(number, tuple(photos))


def find(inputs: Sequence[str], leave_out: Sequence[Path] = ()) -> Iterator[str | Failure]:
    """Names of photos and shards; an entry of a list that is no file name comes as a failure.

    What the user named must be there: a long job does not begin with a mistyped folder.
    """
    found = (entry for source in inputs for entry in _expand(source, [path.resolve() for path in leave_out]))
    overlapping = len(inputs) > 1 or any(Path(source).suffix.lower() in LISTS for source in inputs)
    return _once(found) if overlapping else found


def roots(inputs: Sequence[str]) -> list[str]:
    """The folders that must stay where they are while a job runs."""
    folders = []
    for source in inputs:
        path = local_path(source)
        if path.is_dir():
            folders.append(path)
        elif path.suffix.lower() not in LISTS or _is_pattern(str(path)):
            fixed = takewhile(lambda part: not _is_pattern(part), path.parent.parts)
            folders.append(Path(*fixed))
    return list(dict.fromkeys(str(folder.absolute()) for folder in folders))


def _once(entries: Iterable[str | Failure]) -> Iterator[str | Failure]:
    """Each name once; eight bytes stand for a name, as names themselves would fill the memory."""
    seen: set[bytes] = set()
    for entry in entries:
        name = entry if isinstance(entry, str) else entry.source
        mark = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        if mark not in seen:
            seen.add(mark)
            yield entry


def _expand(source: str, leave_out: list[Path]) -> Iterator[str | Failure]:
    if source == "-":
        raise ConfigError("- is one photo on standard input: a bulk job takes folders, patterns, lists and shards")
    try:
        path = local_path(source)
        if path.is_dir():
            yield from _walk(str(path), leave_out)
        elif path.exists():
            yield from _read_list(path) if path.suffix.lower() in LISTS else [str(path)]
        elif _is_pattern(str(path)):
            yield from _expand_pattern(str(path), leave_out)
        else:
            raise DataError(f"{printable(source)} does not exist: check the path")
    except ValueError as error:
        raise DataError(f"{printable(source)} {error}") from None
    except OSError as error:
        raise DataError(f"{printable(source)} cannot be read: {error.strerror or error}") from None


def _walk(folder: str, leave_out: list[Path]) -> Iterator[str | Failure]:
    """Photos and shards under a folder, sorted, hidden names left out."""
    unreadable: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__MACOSX")) and not (leave_out and Path(parent, name).resolve() in leave_out)
        )
        names.sort()
        for name in names:
            if not name.startswith(".") and (is_image_path(name) or is_shard(name)):
                yield str(Path(parent, name))
    for error in unreadable:
        if error.filename == folder:
            raise error
        yield Failure(str(error.filename), f"cannot be listed: {error.strerror}")


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[") or re.search(r"\{\d+\.\.\d+\}", text) is not None


def _expand_pattern(pattern: str, leave_out: list[Path]) -> Iterator[str | Failure]:
    for one in _braces(pattern):
        empty = True
        names = sorted(glob.glob(one, recursive=True)) if glob.has_magic(one) else [one]  # noqa: PTH207
        for name in names:
            if Path(name).is_dir():
                found: Iterable[str | Failure] = _walk(name, leave_out)
            else:
                found = [name] if is_image_path(name) or is_shard(name) else []
            for entry in found:
                empty = False
                yield entry
        if empty:
            raise DataError(f"{printable(one)} matches no photo and no shard: check the pattern")


def _braces(pattern: str) -> Iterator[str]:
    """``shards/{000..099}.tar``, as WebDataset's users write it."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not found:
        yield pattern
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        yield from _braces(f"{pattern[: found.start()]}{number:0{len(first)}d}{pattern[found.end() :]}")


def _read_list(path: Path) -> Iterator[str | Failure]:
    """One name per line, or a table with a column of names: our own tables of errors are such lists."""
    for name in _names(path):
        try:
            yield str(local_path(name))
        except ValueError as error:
            yield Failure(name, str(error))


def _names(path: Path) -> Iterator[str]:
    kind = path.suffix.lower()
    if kind == ".parquet":
        table = parquet().ParquetFile(path)
        column = _column(table.schema_arrow.names, path)
        for batch in table.iter_batches(columns=[column]):
            yield from (name for name in batch.column(0).to_pylist() if name)
        return
    with path.open(
        encoding="utf-8", errors="surrogateescape", newline="" if kind in (".csv", ".tsv") else None
    ) as file:
        if kind in (".csv", ".tsv"):
            rows = csv.DictReader(file, delimiter="\t" if kind == ".tsv" else ",")
            column = _column(rows.fieldnames or (), path)
            yield from (row[column] for row in rows if row[column])
        elif kind == ".jsonl":
            yield from (_name_in(json.loads(line), path) for line in file if line.strip())
        else:
            yield from (name for line in file if (name := line.rstrip("\r\n")))


def _column(names: Sequence[str], path: Path) -> str:
    for column in COLUMNS:
        if column in names:
            return column
    raise DataError(f"{printable(path)} has none of the columns {', '.join(COLUMNS)}: name the photos in one of them")


def _name_in(value: Any, path: Path) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        name = value[_column(list(value), path)]
        if isinstance(name, str):
            return name
    raise DataError(f"{printable(path)} holds a line without a photo's name: one string or object with source per line")
