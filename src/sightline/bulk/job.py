"""What a job keeps on disk: its list of inputs, its settings, and the parts that are done.

    captions/                 or captions.parquet.parts/ while one file is the aim
      _job.json               settings; written last when a job begins, so a job without it never began
      _inputs.jsonl           every input, in order
      _lock                   held by the one run that works here
      _errors/part-000000.*   inputs that failed, and why
      part-000000.*           the captions; its appearance means that part is done

Readers of tables pass over names that begin with ``_``.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sightline.bulk.inputs import Listing, Part, import_parquet, input_roots, list_inputs, read_parts
from sightline.bulk.outputs import check_columns, error_format, merge, write_captions, write_failures
from sightline.errors import ConfigError, DataError
from sightline.io.files import SkippedFiles, atomic_path, leftovers, printable, write_atomically
from sightline.types import Caption, Failure

log = logging.getLogger("sightline.bulk")


@dataclass(frozen=True)
class Output:
    """Where captions go: one file, or a folder of parts."""

    path: Path
    form: str
    is_folder: bool

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.path if self.is_folder else self.path.with_name(self.path.name + ".parts")

    @property
    def errors(self) -> Path:
        """The table of all that failed."""
        form = error_format(self.form)
        return self.path / f"_errors.{form}" if self.is_folder else self.path.with_suffix(f".errors.{form}")

    @property
    def record(self) -> Path:
        """What a finished job leaves behind: what made these captions, and how many."""
        return self.path / "_job.json" if self.is_folder else self.path.with_name(self.path.name + ".job.json")


class Job:
    """One output, claimed by this process; `begin` lists the inputs or finds the list of the run before."""

    def __init__(self, output: Output):
        self.output, self.folder = output, output.folder
        self.listing = Listing(0, 0, 0, "")
        self.settings: dict[str, Any] = {}
        self.roots: list[str] = []
        self.part_size = 0
        self.skipped = 0  # files in the input folders that are neither photos nor shards
        self._lock = _claim(self.folder / "_lock", output.path)

    def begin(self, inputs: Sequence[str], part_size: int, settings: dict[str, Any], overwrite: bool = False) -> bool:
        """Whether there is anything to do: False where a finished job of the same inputs and settings lies here."""
        self.settings = {**settings, "inputs": [_absolute(source) for source in inputs], "part_size": part_size}
        self.part_size = part_size
        if overwrite:
            self._clear()
        self._sweep()
        known = _read_record(self.folder / "_job.json")
        finished = _read_record(self.output.record)
        if known and not known.get("finished"):
            self._check_same(known["settings"])
            for part in sorted(self.folder.glob("part-*"))[:1]:  # the oldest tells for all
                check_columns(self.output.form, part)
            self.listing = Listing(**known["listing"])
            self.roots, self.skipped = known["roots"], known["skipped"]
            return True
        fresh = self._inputs.with_name("_inputs.new.jsonl")
        skipped = SkippedFiles()
        self.listing = list_inputs(inputs, fresh, part_size, [self.folder], skipped)
        self.skipped = skipped.count
        if skipped.count:
            log.info("%s", skipped)
        self.roots = input_roots(inputs)
        here = self.output.path.is_dir() if self.output.is_folder else self.output.path.is_file()
        if finished and here:
            if finished["settings"] == self.settings and finished["listing"] == vars(self.listing):
                fresh.unlink()
                return False
            if self.output.is_folder:
                raise ConfigError(
                    f"{printable(self.output.path)} holds a finished job of other inputs or settings: "
                    "choose another folder, or begin again with --overwrite"
                )
        if self.output.is_folder and any(self.folder.glob("part-*")):
            raise ConfigError(
                f"{printable(self.folder)} holds parts that no job here wrote: choose an empty folder, or --overwrite"
            )
        self._clear()
        fresh.replace(self._inputs)
        self._write_record(self.folder / "_job.json", finished=False)
        return True

    # -- parts --------------------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[Part]:
        return read_parts(self._inputs, self.part_size)

    def left(self) -> Iterator[Part]:
        """The parts not done yet; nothing but their absence says so."""
        return (part for part in self.parts() if not self._part(part.number).exists())

    def save(self, part: Part, captions: Sequence[Caption], failures: Sequence[Failure], several: bool) -> None:
        """Keep a finished part. Its errors come first: the captions' rename is what makes it count."""
        save_part(self.folder, self.output.form, part, captions, failures, several)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, facts: dict[str, Any]) -> int:
        """Make the tables of the parts; returns how many inputs failed."""
        missing = [number for number in range(self.listing.parts) if not self._part(number).exists()]
        if missing:
            raise DataError(
                f"{self._part(missing[0])} has gone missing since it was written: run the same command again"
            )
        form = error_format(self.output.form)
        errors = [path for number in range(self.listing.parts) if (path := self._errors(number)).exists()]
        if not self.output.is_folder:
            with atomic_path(self.output.path) as temporary:
                merge(self.output.form, map(self._part, range(self.listing.parts)), temporary)
        if errors:
            with atomic_path(self.output.errors) as temporary:
                merge(form, errors, temporary)
        else:
            self.output.errors.unlink(missing_ok=True)
        failed = sum(self._count(path) for path in errors)
        self._write_record(self.output.record, finished=True, failed=failed, **facts)
        if not self.output.is_folder:
            self._discard()
        return failed

    def failed_before(self) -> int:
        """What the record of a finished job says."""
        return int((_read_record(self.output.record) or {}).get("failed", 0))

    def close(self) -> None:
        """Let others in."""
        if not self.output.is_folder and not (self.folder / "_job.json").exists():
            self._discard()  # nothing begun, or all of it merged
        self._lock.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _inputs(self) -> Path:
        return self.folder / "_inputs.jsonl"

    def _part(self, number: int) -> Path:
        return part_path(self.folder, self.output.form, number)

    def _errors(self, number: int) -> Path:
        return errors_path(self.folder, self.output.form, number)

    def _count(self, errors: Path) -> int:
        if error_format(self.output.form) == "parquet":
            return import_parquet().read_metadata(errors).num_rows
        with errors.open("rb") as file:
            return sum(1 for _ in file) - (error_format(self.output.form) == "csv")

    def _check_same(self, settings: dict[str, Any]) -> None:
        differ = [name for name in self.settings | settings if self.settings.get(name) != settings.get(name)]
        if differ:
            raise ConfigError(
                f"{printable(self.folder)} holds an unfinished job with another value of {', '.join(differ)}: "
                "finish it with the same command, or begin again with --overwrite"
            )

    def _write_record(self, path: Path, **facts: Any) -> None:
        record = {**facts, "skipped": self.skipped, "settings": self.settings}
        record |= {"listing": vars(self.listing), "roots": self.roots}
        write_atomically(path, json.dumps(record, indent=2) + "\n")

    def _sweep(self) -> None:
        """Remove what a killed run was just writing."""
        for folder in (self.folder, self.folder / "_errors"):
            for path in folder.glob(".????????.*"):
                path.unlink(missing_ok=True)
        for written in (self.output.path, self.output.errors, self.output.record):
            for path in leftovers(written):
                path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Forget the job that was here: first that it was one, then its parts."""
        (self.folder / "_job.json").unlink(missing_ok=True)
        for path in self.folder.glob("part-*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "_errors", ignore_errors=True)

    def _discard(self) -> None:
        """The folder of parts, in one move: half of one could be taken for an unfinished job."""
        waste = self.folder.with_name(self.folder.name + ".old")
        shutil.rmtree(waste, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(waste)
        shutil.rmtree(waste, ignore_errors=True)


def part_path(folder: Path, form: str, number: int) -> Path:
    return folder / f"part-{number:06d}.{form}"


def errors_path(folder: Path, form: str, number: int) -> Path:
    return folder / "_errors" / f"part-{number:06d}.{error_format(form)}"


def save_part(
    folder: Path, form: str, part: Part, captions: Sequence[Caption], failures: Sequence[Failure], several: bool
) -> None:
    """On a cluster each machine saves its own parts."""
    errors = errors_path(folder, form, part.number)
    if failures:
        with atomic_path(errors) as temporary:
            write_failures(form, temporary, failures)
    else:
        errors.unlink(missing_ok=True)
    with atomic_path(part_path(folder, form, part.number)) as temporary:
        write_captions(form, temporary, part, captions, several)


def _absolute(source: str) -> str:
    return source if "://" in source else os.path.abspath(os.path.expanduser(source))  # noqa: PTH100, PTH111


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(path)} cannot be read ({error}): begin again with --overwrite") from None
    if not (isinstance(record, dict) and {"settings", "listing", "roots", "skipped"} <= set(record)):
        raise DataError(f"{printable(path)} is no record of a job: begin again with --overwrite")
    return record


def _claim(lock: Path, output: Path) -> IO[str]:
    """Only one run works on an output. The system lets go of a lock when its process ends, however it ends."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("a+", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write {printable(output)}: {error.strerror}; choose another name") from None
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
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # the run before finished and took its folder away between our two looks


def _holder(file: IO[str]) -> str:
    with file:
        try:
            file.seek(0)
            return file.readline().strip() or "another process"
        except OSError:  # Windows lets no one else read
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
