"""What a job keeps on disk: its list of inputs, what it must not change, and the parts that are done.

    captions/                 or captions.parquet.parts/ while one file is the aim
      _job.json               model, options, inputs; written last when a job begins: a job without it never began
      _inputs.jsonl           every input, in order
      _lock                   held by the run that works here
      _errors/part-000000.*   inputs that failed, and why
      part-000000.*           the captions; a part is done when this file exists

Readers of tables skip names that begin with ``_``.
"""

from __future__ import annotations

import csv
import filecmp
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from sightline.bulk.inputs import (
    FinishedPart,
    JobPart,
    Listing,
    input_roots,
    list_inputs,
    name_digest,
    read_list,
    read_names,
    read_parts,
    write_list,
)
from sightline.bulk.job_record import check_same, read_record
from sightline.bulk.lock import lock_output
from sightline.bulk.outputs import check_columns, merge, to_unicode, write_captions, write_failures
from sightline.data.shards import SHARD_SUFFIX
from sightline.data.tables import errors_table, import_parquet, is_part, read_rows
from sightline.errors import ConfigError, DataError
from sightline.io.files import (
    SkippedFiles,
    atomic_path,
    counted,
    keep_backup,
    leftovers,
    printable,
    write_atomically,
    writing,
)
from sightline.types import Failure

log = logging.getLogger("sightline.bulk")


@dataclass(frozen=True)
class BulkOutput:
    """Where captions are written: to one file, or to a folder of parts."""

    path: Path
    format: str  # parquet, jsonl, csv; in a folder also tar
    is_folder: bool

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.path if self.is_folder else self.path.with_name(self.path.name + ".parts")

    @property
    def errors(self) -> Path:
        """The table of all inputs that failed."""
        return errors_table(self.path, error_format(self.format), self.is_folder)

    @property
    def record(self) -> Path:
        """What a finished job writes about itself: model, options, inputs and counts."""
        return self.path / "_job.json" if self.is_folder else self.path.with_name(self.path.name + ".job.json")


class JobFolder:
    """One output, locked by this process; `begin` lists the inputs or finds the list of an earlier run."""

    def __init__(self, output: BulkOutput):
        self.output, self.folder = output, output.folder
        self.listing = Listing(0, 0, 0, "")
        self.identity: dict[str, Any] = {}  # what must not change between the runs of one job
        self.roots: list[str] = []
        self.part_size = 0
        self.skipped = 0  # files in the input folders that are neither photos nor shards
        self.cwd = str(Path.cwd())  # relative names of photos are relative to this folder
        self.adds = False  # to a finished job, of which so many captions are kept; its parts come before the first part
        self.kept = self.first_part = 0
        self._lock = lock_output(self.folder / "_lock", output.path)

    def begin(self, inputs: Sequence[str], part_size: int, identity: dict[str, Any], overwrite: bool = False) -> bool:
        """Begin a job, continue it, or add to a finished one; False where no input is left to caption.

        The rows of a finished table stay as they are, edited or not: only inputs without a row are captioned. With
        ``overwrite`` all are: a table that is replaced is kept as a backup, a folder's parts are deleted.
        """
        self.identity = {**identity, "inputs": [absolute(source) for source in inputs], "part_size": part_size}
        self.part_size = part_size
        with writing(self.output.path):
            self._remove_temporary_files()
        known = None if overwrite else read_record(self.folder / "_job.json")
        if known and not known.get("finished") and (self._exists() or not known["adds"]):
            check_same(self.output.path, "an unfinished", known, self.identity)
            for part in self._tables(self.output.format)[:1]:  # one version wrote them all
                check_columns(self.output.format, part, self._several)
            self.listing = Listing(**known["listing"])
            self.roots, self.skipped, self.cwd = known["roots"], known["skipped"], known["cwd"]
            self.adds, self.kept, self.first_part = known["adds"], known["kept"], known["first_part"]
            self._check_cwd(self._inputs)
            return True
        finished = None if overwrite or not self._exists() else read_record(self.output.record)
        if finished:
            check_same(self.output.path, "a finished", finished, self.identity)
        elif self._exists() and not overwrite:
            self._check_no_tables()
        new_list = self._inputs.with_name("_inputs.new.jsonl")
        skipped = SkippedFiles()
        self.listing = list_inputs(inputs, new_list, part_size, [self.folder], skipped)
        self.skipped, self.roots = skipped.count, input_roots(inputs)
        if skipped:
            log.info("%s", skipped)
        if finished and finished["listing"]["digest"] == self.listing.digest:
            if not (failed := self._failures_to_try()):
                new_list.unlink()
                return False
            log.info("trying %s again that could not be captioned", counted(failed, "input"))
        if finished:
            self._leave_out_captioned(new_list, finished)
            self._check_cwd(new_list)
        with writing(self.output.path):
            if self.adds and self.output.is_folder:  # its record is replaced below, and never missing
                shutil.rmtree(self.folder / "_errors", ignore_errors=True)
            else:
                self._clear()
            new_list.replace(self._inputs)
        self._write_record(self.folder / "_job.json", finished=False)
        if self.adds and not self.listing.parts:  # inputs disappeared, and none came
            self.finish({"photos": self.kept})
            return False
        return True

    def _failures_to_try(self) -> int:
        """How many inputs of a finished job failed and are tried again: all but those in shards."""
        if self.output.format == "tar" or not self.output.errors.exists():
            return 0
        return sum(
            not str(row["source"]).partition("::")[0].lower().endswith(SHARD_SUFFIX)
            for row in read_rows(self.output.errors)
        )

    def _leave_out_captioned(self, new_list: Path, finished: dict[str, Any]) -> None:
        """Of the listed inputs keep those that a finished job's tables do not have."""
        if self.output.format == "tar":
            raise ConfigError(
                f"{printable(self.output.path)} holds a finished job, and its inputs have changed: shards are not "
                "added to; choose another folder, or begin again with --overwrite"
            )
        self.adds, self.cwd = True, finished["cwd"]
        tables = self._tables(self.output.format) if self.output.is_folder else [self.output.path]
        done, single, shards = set[bytes](), set[bytes](), set[str]()
        for table in tables:
            for key in self._keys(table):
                done.add(name_digest(key))
                shard, is_member, _ = key.partition(f"{SHARD_SUFFIX}::")
                if is_member:
                    shards.add(shard + SHARD_SUFFIX)
                else:
                    single.add(name_digest(key))
        self.kept = len(done)
        self._report_gone(single, new_list)
        done.update(map(name_digest, shards))
        if self.output.is_folder and tables:
            self.first_part = 1 + max(int(table.stem.removeprefix("part-")) for table in tables)
        # Other failed inputs are tried again; a shard that has rows is not, so that its failures stay as they were.
        failures = [
            Failure(str(row["source"]), str(row["reason"]))
            for row in (read_rows(self.output.errors) if shards and self.output.errors.exists() else ())
            if name_key(str(row["source"]).partition("::")[0], self.cwd) in shards
        ]
        entries = (
            entry
            for entry in read_list(new_list)
            if isinstance(entry, Failure) or name_digest(name_key(entry)) not in done
        )
        digest = self.listing.digest
        self.listing = replace(write_list(chain(failures, entries), new_list, self.part_size), digest=digest)
        if self.listing.parts:
            log.info("%s keeps its %s", printable(self.output.path), counted(self.kept, "caption"))

    def _report_gone(self, photos: set[bytes], new_list: Path) -> None:
        """Say how many rows' photos are no longer there; their rows stay."""
        listed = {name_digest(name_key(entry)) for entry in read_list(new_list) if isinstance(entry, str)}
        if gone := len(photos - listed):
            what = "1 row's photo is" if gone == 1 else f"{gone:,} rows' photos are"
            log.info("%s gone; %s kept", what, "the row is" if gone == 1 else "the rows are")

    def _exists(self) -> bool:
        return self.output.path.is_dir() if self.output.is_folder else self.output.path.is_file()

    def _check_no_tables(self) -> None:
        """Refuse an output without a record of a job, unless it is a folder without parts."""
        if not self.output.is_folder:
            raise ConfigError(
                f"{printable(self.output.path)} exists and is no bulk job's: choose another file, or give --overwrite"
            )
        if self._tables():
            raise ConfigError(
                f"{printable(self.folder)} holds parts of no known job: choose an empty folder, or give --overwrite"
            )

    def _check_cwd(self, inputs: Path) -> None:
        """Refuse names that are relative to another folder than that in which the job began."""
        relative = (name for name in read_list(inputs) if isinstance(name, str) and not os.path.isabs(name))  # noqa: PTH117
        if self.cwd != str(Path.cwd()) and any(relative):
            raise ConfigError(
                f"{printable(self.output.path)} names its photos relative to {printable(self.cwd)}: run the same "
                "command there, or begin again with --overwrite"
            )

    # -- parts --------------------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[JobPart]:
        return (
            replace(part, number=self.first_part + part.number) for part in read_parts(self._inputs, self.part_size)
        )

    def unfinished_parts(self) -> Iterator[JobPart]:
        """The parts whose file does not exist yet."""
        return (part for part in self.parts() if not self._part(part.number).exists())

    def save(self, finished: FinishedPart, several: bool) -> None:
        """Write a finished part."""
        save_part(self.folder, self.output.format, finished, several)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, facts: dict[str, Any]) -> int:
        """Join the parts to the final tables; returns how many inputs failed."""
        numbers = range(self.first_part, self.first_part + self.listing.parts)
        missing = [number for number in numbers if not self._part(number).exists()]
        if missing:
            raise DataError(
                f"{self._part(missing[0])} has gone missing since it was written: run the same command again"
            )
        format = error_format(self.output.format)
        errors = [path for number in numbers if (path := self._errors(number)).exists()]
        if not self.output.is_folder:
            self._write_table([self._part(number) for number in numbers])
        if errors:
            with atomic_path(self.output.errors) as temporary:
                merge(format, errors, temporary)
        else:
            with writing(self.output.errors):
                self.output.errors.unlink(missing_ok=True)
        failed = sum(self._count(path) for path in errors)
        self._write_record(self.output.record, finished=True, failed=failed, **facts)
        if self.adds and self.output.is_folder:  # inputs that failed again leave no empty tables behind
            for part in map(self._part, numbers):
                if not any(self._keys(part)):
                    part.unlink()
        if not self.output.is_folder:
            self._discard()
        return failed

    def _write_table(self, parts: list[Path]) -> None:
        """Join the parts to the table, or add them to it. A run that was killed after this does it again: no harm."""
        table = self.output.path
        if self.adds:
            added = next((key for part in parts for key in self._keys(part)), None)
            if added is None or added in self._keys(table):
                return
            parts = [table, *parts]
        with atomic_path(table) as temporary:
            merge(self.output.format, parts, temporary)
            if not self.adds and table.exists() and not filecmp.cmp(table, temporary, shallow=False):
                log.info("the earlier %s is kept as %s", printable(table), printable(keep_backup(table)))

    def failed_before(self) -> int:
        """How many inputs failed, by the record of a finished job."""
        return int((read_record(self.output.record) or {}).get("failed", 0))

    def close(self) -> None:
        """Release the lock."""
        if not self.output.is_folder and not (self.folder / "_job.json").exists():
            self._discard()  # nothing was begun, or all of it is merged
        self._lock.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _several(self) -> bool:
        """Whether each photo has several candidates."""
        return int(self.identity["decoding"]["candidates"]) > 1

    def _keys(self, table: Path) -> Iterator[str]:
        """The absolute paths of a table's photos, as `name_key` gives them; its columns are checked."""
        try:
            check_columns(table.suffix.removeprefix("."), table, self._several)
            yield from (name_key(name, self.cwd) for name in read_names(table) if isinstance(name, str))
        except OSError as error:
            raise DataError(f"{printable(table)} cannot be read: {(error.strerror or str(error)).lower()}") from None

    @property
    def _inputs(self) -> Path:
        return self.folder / "_inputs.jsonl"

    def _tables(self, format: str = "*") -> list[Path]:
        """The parts on disk."""
        return sorted(path for path in self.folder.glob(f"part-*.{format}") if is_part(path))

    def _part(self, number: int) -> Path:
        return part_path(self.folder, self.output.format, number)

    def _errors(self, number: int) -> Path:
        return errors_path(self.folder, self.output.format, number)

    def _count(self, errors: Path) -> int:
        format = error_format(self.output.format)
        if format == "parquet":
            return int(import_parquet().read_metadata(errors).num_rows)
        with errors.open(encoding="utf-8", newline="") as file:
            return sum(1 for _ in csv.reader(file)) - 1 if format == "csv" else sum(1 for _ in file)

    def _write_record(self, path: Path, **facts: Any) -> None:
        record = {**facts, "skipped": self.skipped, "identity": self.identity}
        record |= {"listing": vars(self.listing), "roots": self.roots, "cwd": self.cwd}
        record |= {"adds": self.adds, "kept": self.kept, "first_part": self.first_part}
        indent = None if record.get("failures") else 2  # Python's encoder takes ten times as long with it
        write_atomically(path, json.dumps(record, indent=indent) + "\n")

    def _remove_temporary_files(self) -> None:
        """Remove the files that a killed run was writing."""
        for folder in (self.folder, self.folder / "_errors"):
            for path in folder.glob(".????????.*"):
                path.unlink(missing_ok=True)
        for written in (self.output.path, self.output.errors, self.output.record):
            for path in leftovers(written):
                path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove an earlier job: its record first, so that what is left of it is never continued."""
        (self.folder / "_job.json").unlink(missing_ok=True)
        for path in self._tables():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "_errors", ignore_errors=True)

    def _discard(self) -> None:
        """Remove the folder of parts. It is renamed first: half of one could be taken for an unfinished job."""
        discarded = self.folder.with_name(self.folder.name + ".old")
        shutil.rmtree(discarded, ignore_errors=True)
        if self.folder.exists():
            with suppress(OSError):  # then it stays: it does no harm, and an error here would hide the one before
                self.folder.rename(discarded)
        shutil.rmtree(discarded, ignore_errors=True)


def name_key(name: str, cwd: str = "") -> str:
    """The absolute path of a photo, as a table holds it: names may be any bytes, tables hold text."""
    return to_unicode(os.path.abspath(os.path.join(cwd, name)))  # noqa: PTH100, PTH118 -- Path takes ten times as long


def error_format(format: str) -> str:
    """The format of tables of errors: JSON lines where captions go to shards, otherwise that of the captions."""
    return "jsonl" if format == "tar" else format


def part_path(folder: Path, format: str, number: int) -> Path:
    return folder / f"part-{number:06d}.{format}"


def errors_path(folder: Path, format: str, number: int) -> Path:
    return folder / "_errors" / f"part-{number:06d}.{error_format(format)}"


def save_part(folder: Path, format: str, finished: FinishedPart, several: bool) -> None:
    """Write a part's errors, then its captions: the rename of the captions' file is what makes the part done.

    On a cluster each machine saves its own parts.
    """
    errors = errors_path(folder, format, finished.part.number)
    if finished.failures:
        with atomic_path(errors) as temporary:
            write_failures(error_format(format), temporary, finished.failures)
    else:
        with writing(errors):
            errors.unlink(missing_ok=True)
    with atomic_path(part_path(folder, format, finished.part.number)) as temporary:
        write_captions(format, temporary, finished, several)


def absolute(source: str) -> str:
    return source if "://" in source else os.path.abspath(os.path.expanduser(source))  # noqa: PTH100, PTH111
