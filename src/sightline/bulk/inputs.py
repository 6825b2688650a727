"""Which inputs a bulk job has: folders, patterns, lists and shards become one list on disk, cut into parts.

The list is written once, when a job begins, and read as a stream: a job of a hundred million photos needs no more
memory than one of a thousand. Photos are grouped in order; each shard is one part.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from sightline.data.shards import SHARD_SUFFIX
from sightline.data.tables import SOURCE, import_parquet, text_encoding
from sightline.errors import ConfigError, DataError
from sightline.io.files import (
    IMAGE_SUFFIXES,
    SkippedFiles,
    atomic_path,
    local_path,
    path_in_table,
    printable,
    walk_files,
)
from sightline.types import Caption, Failure, text_of_cell

log = logging.getLogger("sightline.bulk")
MOST_NAMES = 10_000_000  # of a pattern with ranges in braces
INPUT_SUFFIXES = IMAGE_SUFFIXES | {SHARD_SUFFIX}
LISTS = (".txt", ".lst", ".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class JobPart:
    """What is captioned and saved together: some photos (or inputs known to be bad), or one shard."""

    number: int
    photos: tuple[str | Failure, ...] = ()
    shard: str = ""


@dataclass(frozen=True)
class FinishedPart:
    """A part with its captions and failures, each in the order of its inputs."""

    part: JobPart
    captions: list[Caption]
    positions: list[int]  # of each caption among the part's photos: two photos of a shard may have one name
    failures: list[Failure]


@dataclass(frozen=True)
class Listing:
    """What the list on disk holds: how many inputs, and a digest of them all."""

    photos: int
    shards: int
    parts: int
    digest: str


def list_inputs(
    inputs: Sequence[str],
    target: Path,
    part_size: int,
    leave_out: Sequence[Path] = (),
    skipped: SkippedFiles | None = None,
) -> Listing:
    """Write every input to ``target``, in a fixed order and each once."""
    listing = write_list(find_inputs(inputs, leave_out, skipped), target, part_size)
    if not listing.parts:
        raise DataError(f"{printable(', '.join(inputs))}: no photo and no shard there; name another folder or pattern")
    return listing


def write_list(entries: Iterable[str | Failure], target: Path, part_size: int) -> Listing:
    """Write inputs to ``target``, one JSON value per line."""
    photos = shards = 0
    digest = hashlib.sha256()
    with atomic_path(target) as temporary, temporary.open("w", encoding="ascii") as file:
        for entry in entries:
            if _is_shard(entry):
                shards += 1
            else:
                photos += 1
            line = json.dumps(entry if isinstance(entry, str) else [entry.source, entry.reason]) + "\n"
            digest.update(line.encode())
            file.write(line)
    parts = sum(1 for _ in read_parts(target, part_size))
    return Listing(photos, shards, parts, digest.hexdigest()[:16])


def read_list(listing: Path) -> Iterator[str | Failure]:
    """The inputs that `write_list` wrote."""
    try:
        with listing.open(encoding="ascii") as file:
            for line in file:
                value = json.loads(line)
                yield value if isinstance(value, str) else Failure(*value)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{listing} cannot be read ({error}): delete its folder and begin again with --overwrite"
        ) from None


def read_parts(listing: Path, part_size: int) -> Iterator[JobPart]:
    """The parts of a job, in order, from its list on disk."""
    number = 0
    photos: list[str | Failure] = []
    for entry in read_list(listing):
        is_shard = _is_shard(entry)
        if photos and (is_shard or len(photos) == part_size):
            yield JobPart(number, tuple(photos))
            number, photos = number + 1, []
        if is_shard:
            yield JobPart(number, shard=str(entry))
            number += 1
        else:
            photos.append(entry)
    if photos:
        yield JobPart(number, tuple(photos))


def find_inputs(
    inputs: Sequence[str], leave_out: Sequence[Path] = (), skipped: SkippedFiles | None = None
) -> Iterator[str | Failure]:
    """Names of photos and shards; an entry of a list that is no file name comes as a failure.

    What the user named must exist: a long job does not begin with a mistyped folder. Other files in the folders are
    counted in ``skipped``.
    """
    walker = _Walker([path.resolve() for path in leave_out], skipped)
    found = (entry for source in inputs for entry in walker.expand(source))
    overlapping = len(inputs) > 1 or any(Path(source).suffix.lower() in LISTS for source in inputs)
    return _once(found) if overlapping else found


def input_roots(inputs: Sequence[str]) -> list[str]:
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
    """Each name once."""
    digests: set[bytes] = set()
    for entry in entries:
        name = entry if isinstance(entry, str) else entry.source
        digest = name_digest(name)
        if digest not in digests:
            digests.add(digest)
            yield entry


def name_digest(name: str) -> bytes:
    """Eight bytes that stand for a name, as all names would fill the memory."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass(frozen=True)
class _Walker:
    """Expands what a user named into photos and shards."""

    leave_out: Sequence[Path]
    skipped: SkippedFiles | None

    def expand(self, source: str) -> Iterator[str | Failure]:
        if source == "-":
            raise ConfigError("- is one photo on standard input: a bulk job takes folders, patterns, lists and shards")
        try:
            path = local_path(source)
            if path.is_dir():
                yield from self._folder(str(path))
            elif path.exists():
                yield from _read_list(path) if path.suffix.lower() in LISTS else [str(path)]
            elif _is_pattern(str(path)):
                for pattern in _braces(str(path)):
                    yield from self._pattern(pattern)
            else:
                raise DataError(f"{printable(source)} does not exist: check the path")
        except ValueError as error:
            raise DataError(f"{printable(source)} {error}") from None
        except OSError as error:
            raise DataError(f"{printable(source)} cannot be read: {error.strerror or error}") from None

    def _folder(self, folder: str) -> Iterator[str | Failure]:
        """Photos and shards under a folder, sorted, hidden names left out."""
        unreadable: list[OSError] = []
        yield from walk_files(folder, INPUT_SUFFIXES, unreadable, self.skipped, self.leave_out)
        for error in unreadable:
            if error.filename == folder:
                raise error
            yield Failure(str(error.filename), f"cannot be listed: {error.strerror}")

    def _pattern(self, pattern: str) -> Iterator[str | Failure]:
        empty = True
        names = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        for name in names:
            if Path(name).is_dir():
                found: Iterable[str | Failure] = self._folder(name)
            else:
                found = [name] if Path(name).suffix.lower() in INPUT_SUFFIXES else []
                if self.skipped is not None and not found:
                    self.skipped.add(name)
            for entry in found:
                empty = False
                yield entry
        if empty:
            raise DataError(f"{printable(pattern)} matches no photo and no shard: check the pattern")


def _is_shard(entry: str | Failure) -> bool:
    return isinstance(entry, str) and entry.lower().endswith(SHARD_SUFFIX)


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[") or re.search(r"\{\d+\.\.\d+\}", text) is not None


def _braces(pattern: str) -> Iterator[str]:
    """``shards/{000..099}.tar``, as WebDataset's users write it."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not found:
        yield pattern
        return
    first, last = found.groups()
    ranges = re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)
    if (
        any(len(end) > 12 for pair in ranges for end in pair)
        or math.prod(_length(*pair) for pair in ranges) > MOST_NAMES
    ):
        raise DataError(f"{printable(pattern)[:200]} stands for more than {MOST_NAMES:,} names: shorten its ranges")
    if any(not _length(*pair) for pair in ranges):
        raise DataError(f"{printable(pattern)} has a range that counts down: give its smaller number first")
    for number in range(int(first), int(last) + 1):
        yield from _braces(f"{pattern[: found.start()]}{number:0{len(first)}d}{pattern[found.end() :]}")


def _length(first: str, last: str) -> int:
    return max(0, int(last) - int(first) + 1)


def _read_list(path: Path) -> Iterator[str | Failure]:
    """One name per line, or a table with a column of names: our own tables of errors are such lists.

    A line that cannot be read comes as a failure, so that one of them does not stop a job of many. A missing photo is
    reported when its turn comes; here only that all of several are missing, as in the wrong folder.
    """
    named = missing = 0
    for name in read_names(path):
        try:
            found = name if isinstance(name, Failure) else str(path_in_table(name, path))
        except ValueError as error:
            found = Failure(str(name), str(error))
        if isinstance(found, str):
            named += 1
            missing += not os.path.isabs(found) and not os.path.exists(found)  # noqa: PTH110, PTH117
        yield found
    if missing == named > 1:
        none = f"{printable(path)}: none of its {named:,} names"
        log.warning("%s is in %s or beside it: run the command where they are", none, printable(Path.cwd()))


def read_names(path: Path) -> Iterator[str | Failure]:
    kind = path.suffix.lower()
    if kind == ".parquet":
        yield from _names_in_parquet(path)
        return
    is_table = kind in (".csv", ".tsv")
    with path.open(encoding=text_encoding(path), errors="surrogateescape", newline="" if is_table else None) as file:
        if is_table:
            yield from _names_in_table(csv.reader(file, delimiter="\t" if kind == ".tsv" else ","), path)
        elif kind == ".jsonl":
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _name_in(line, number, path)
        else:
            yield from (name for line in file if (name := line.rstrip("\r\n")))


def _names_in_parquet(path: Path) -> Iterator[str]:
    table = import_parquet().ParquetFile(path)
    column = _column(table.schema_arrow.names, path)
    for batch in table.iter_batches(columns=[column]):
        for name in batch.column(0).to_pylist():
            if isinstance(name, str):
                if name:
                    yield name
            elif name is not None:
                kind = table.schema_arrow.field(column).type
                raise DataError(f"{printable(path)}: column {column} holds {kind} and not text: name the photos there")


def _names_in_table(rows: Any, path: Path) -> Iterator[str | Failure]:
    """``rows`` is a csv reader; what is wrong in the header concerns all rows, and stops the job."""
    try:
        header: list[str] = next(rows, [])
    except csv.Error as error:
        raise DataError(f"{printable(path)} has an unreadable header ({error}): name the columns there") from None
    column = header.index(_column(header, path))
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield _bad_line(path, number, f"cannot be read ({error}): correct it")
            continue
        if len(row) > column and row[column]:
            yield text_of_cell(row[column])


def _bad_line(path: Path, number: int, reason: str) -> Failure:
    return Failure(f"{path} line {number}", reason)


def _column(names: Sequence[str], path: Path) -> str:
    for column in SOURCE:
        if column in names:
            return column
    raise DataError(f"{printable(path)} has none of the columns {', '.join(SOURCE)}: name the photos in one of them")


def _name_in(line: str, number: int, path: Path) -> str | Failure:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _bad_line(path, number, f"is not JSON ({type(error).__name__}): correct it")
    if isinstance(value, dict) and (column := next((name for name in SOURCE if name in value), "")):
        value = value[column]
    if isinstance(value, str):
        return value
    reason = "is without a photo's name: give one string, or one object with source, per line"
    if number == 1:  # probably none has one
        raise DataError(f"{printable(path)} line 1 {reason}")
    return _bad_line(path, number, reason)
