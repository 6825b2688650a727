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
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sightline.bulk.inputs import FinishedPart, JobPart, Listing, import_parquet, input_roots, list_inputs, read_parts
from sightline.bulk.outputs import check_columns, merge, write_captions, write_failures
from sightline.errors import ConfigError, DataError
from sightline.io.files import SkippedFiles, atomic_path, leftovers, printable, write_atomically, writing

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
        suffix = f"errors.{error_format(self.format)}"
        return self.path / f"_{suffix}" if self.is_folder else self.path.with_suffix(f".{suffix}")

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
        self._lock = _lock(self.folder / "_lock", output.path)

    def begin(self, inputs: Sequence[str], part_size: int, identity: dict[str, Any], overwrite: bool = False) -> bool:
        """Begin or continue; False where a finished job of the same inputs and options is here, so nothing is to do."""
        self.identity = {**identity, "inputs": [absolute(source) for source in inputs], "part_size": part_size}
        self.part_size = part_size
        with writing(self.output.path):
            if overwrite:
                self._clear()
            self._remove_temporary_files()
        known = read_record(self.folder / "_job.json")
        finished = read_record(self.output.record)
        if known and not known.get("finished"):
            self._check_same(known["identity"])
            for part in sorted(self.folder.glob("part-*"))[:1]:  # one version wrote them all
                check_columns(self.output.format, part)
            self.listing = Listing(**known["listing"])
            self.roots, self.skipped = known["roots"], known["skipped"]
            return True
        new_list = self._inputs.with_name("_inputs.new.jsonl")
        skipped = SkippedFiles()
        self.listing = list_inputs(inputs, new_list, part_size, [self.folder], skipped)
        self.skipped = skipped.count
        if skipped:
            log.info("%s", skipped)
        self.roots = input_roots(inputs)
        exists = self.output.path.is_dir() if self.output.is_folder else self.output.path.is_file()
        if finished and exists:
            if finished["identity"] == self.identity and finished["listing"] == vars(self.listing):
                new_list.unlink()
                return False
            if not overwrite and (self.output.is_folder or finished["identity"] != self.identity):
                kind = "folder" if self.output.is_folder else "file"
                raise ConfigError(
                    f"{printable(self.output.path)} holds a finished job of other inputs or options: "
                    f"choose another {kind}, or begin again with --overwrite"
                )
        elif exists and not self.output.is_folder and not overwrite:
            raise ConfigError(
                f"{printable(self.output.path)} exists and is no bulk job's: choose another file, or give --overwrite"
            )
        if self.output.is_folder and any(self.folder.glob("part-*")):
            raise ConfigError(
                f"{printable(self.folder)} holds parts of no known job: choose an empty folder, or give --overwrite"
            )
        with writing(self.output.path):
            self._clear()
            new_list.replace(self._inputs)
        self._write_record(self.folder / "_job.json", finished=False)
        return True

    # -- parts --------------------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[JobPart]:
        return read_parts(self._inputs, self.part_size)

    def unfinished_parts(self) -> Iterator[JobPart]:
        """The parts whose file does not exist yet."""
        return (part for part in self.parts() if not self._part(part.number).exists())

    def save(self, finished: FinishedPart, several: bool) -> None:
        """Write a finished part."""
        save_part(self.folder, self.output.format, finished, several)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, facts: dict[str, Any]) -> int:
        """Join the parts to the final tables; returns how many inputs failed."""
        missing = [number for number in range(self.listing.parts) if not self._part(number).exists()]
        if missing:
            raise DataError(
                f"{self._part(missing[0])} has gone missing since it was written: run the same command again"
            )
        format = error_format(self.output.format)
        errors = [path for number in range(self.listing.parts) if (path := self._errors(number)).exists()]
        if not self.output.is_folder:
            with atomic_path(self.output.path) as temporary:
                merge(self.output.format, map(self._part, range(self.listing.parts)), temporary)
        if errors:
            with atomic_path(self.output.errors) as temporary:
                merge(format, errors, temporary)
        else:
            with writing(self.output.errors):
                self.output.errors.unlink(missing_ok=True)
        failed = sum(self._count(path) for path in errors)
        self._write_record(self.output.record, finished=True, failed=failed, **facts)
        if not self.output.is_folder:
            self._discard()
        return failed

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
    def _inputs(self) -> Path:
        return self.folder / "_inputs.jsonl"

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

    def _check_same(self, identity: dict[str, Any]) -> None:
        differ = [name for name in self.identity | identity if self.identity.get(name) != identity.get(name)]
        if differ:
            raise ConfigError(
                f"{printable(self.folder)} holds an unfinished job with another value of {', '.join(differ)}: "
                "finish it with the same command, or begin again with --overwrite"
            )

    def _write_record(self, path: Path, **facts: Any) -> None:
        record = {**facts, "skipped": self.skipped, "identity": self.identity}
        record |= {"listing": vars(self.listing), "roots": self.roots}
        write_atomically(path, json.dumps(record, indent=2) + "\n")

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
        for path in self.folder.glob("part-*"):
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


def read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(path)} cannot be read ({error}): begin again with --overwrite") from None
    if not (isinstance(record, dict) and {"identity", "listing", "roots", "skipped"} <= set(record)):
        raise DataError(f"{printable(path)} is not a record of a job: begin again with --overwrite")
    return record


def _lock(lock: Path, output: Path) -> IO[str]:
    """Lock an output for this run. The system releases the lock when the process ends, however it ends."""
    while True:
        with writing(output):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("a+", encoding="utf-8")
        if not _try_lock(file):
            holder = _holder(file)
            raise ConfigError(
                f"{printable(output)} is being written by another run ({holder}): wait for it, or choose another output"
            )
        try:
            moved = not os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except FileNotFoundError:
            moved = True
        if not moved:
            with suppress(OSError):  # on a full disk nobody learns who holds the lock, but it is held
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return file
        file.close()  # another run finished and removed its folder meanwhile: try again


def _holder(file: IO[str]) -> str:
    with file:
        try:
            file.seek(0)
            return file.readline().strip() or "another process"
        except OSError:  # Windows locks it against reading, too
            return "another process"


def _try_lock(file: IO[str]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
