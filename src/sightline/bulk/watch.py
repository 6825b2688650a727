"""A table of captions that grows with a folder: `watch` captions each photo that arrives, once.

The table and its table of errors are the record of what is done. Each save replaces both atomically, so that a run that
was stopped at any moment is continued by the next one. A photo that failed is tried again when its file changes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from sightline.bulk.engine import BulkEngine, BulkListener
from sightline.bulk.inputs import FinishedPart, JobPart, Listing
from sightline.bulk.job import BulkOptions, BulkSummary, check_roots, count_workers, identity, write_to_photos
from sightline.bulk.job_folder import BulkOutput, JobFolder, absolute, error_format, name_key
from sightline.bulk.job_record import OPTIONS, check_same, read_record
from sightline.bulk.outputs import merge, to_unicode, write_captions, write_failures
from sightline.bulk.sidecars import PhotoChanges, find_exiftool
from sightline.data.tables import import_parquet
from sightline.engine.captioner import Captioner
from sightline.errors import ConfigError, DataError
from sightline.io.files import IMAGE_SUFFIXES, atomic_path, counted, keep_backup, local_path, printable, walk_files
from sightline.io.interrupts import raise_if_lost
from sightline.io.progress import meter
from sightline.types import Caption, Failure

log = logging.getLogger("sightline.bulk")
INTERVAL = 2.0  # seconds between two scans of the folder
SETTLED = 10.0  # seconds; a file that was not modified for so long is complete
FEWEST, MOST = 64, 1000  # photos between two saves; a save writes the whole table
Stamp = tuple[int, int]  # of a file: its size in bytes, and when it was modified, in nanoseconds
UNKNOWN: Stamp = (0, 0)
# watch gives the options of sampling by --set
OPTION_NAMES = {name: option for name, option in OPTIONS.items() if name not in ("sample", "temperature", "seed")}


class GrowingTable(JobFolder):
    """A finished job's table to which parts are added; locked by this process."""

    def __init__(self, output: BulkOutput):
        super().__init__(output)
        self.captioned: set[str] = set()  # absolute paths, by which photos are known however a row names them
        self.failures: dict[str, Failure] = {}  # the same, of photos that could not be captioned
        self.stamps: dict[str, Stamp] = {}  # files as they were when they were last given to the model

    def start(self, folder: str, identity: dict[str, Any], several: bool, overwrite: bool = False) -> None:
        """Read what an earlier run left; refuse a table that other options, or another program, made."""
        self.identity, self.roots = {**identity, "inputs": [folder]}, [folder]
        path = self.output.path
        if overwrite:
            self._clear()
            if path.exists():
                log.info("the earlier %s is kept as %s", printable(path), printable(keep_backup(path)))
            for file in (path, self.output.errors, self.output.record):
                file.unlink(missing_ok=True)
        self._remove_temporary_files()
        if (self.folder / "_job.json").exists():
            raise ConfigError(f"{printable(path)} is an unfinished bulk job's: finish that first, or give --overwrite")
        if not path.exists():
            self._record()  # before the table: one without a record is another program's
            with atomic_path(path) as temporary:
                write_captions(self.output.format, temporary, FinishedPart(JobPart(0), [], [], []), several)
            return
        record = read_record(self.output.record)
        if record is None:
            raise ConfigError(f"{printable(path)} exists and is no job's: choose another file, or give --overwrite")
        check_same(path, "a finished", record, self.identity, OPTION_NAMES)
        self.cwd = record["cwd"]
        self.captioned = set(self._keys(path))
        for source, reason, size, modified in record.get("failures", ()):
            key = name_key(source, self.cwd)
            self.failures[key], self.stamps[key] = Failure(source, reason), (size, modified)

    def add(self, finished: FinishedPart, several: bool) -> None:
        """Add a part's captions to the table, and its failures to the table of errors."""
        part = self.folder / f"new.{self.output.format}"
        write_captions(self.output.format, part, finished, several)
        with atomic_path(self.output.path) as temporary:
            merge(self.output.format, [self.output.path, part], temporary)
        part.unlink()
        self.captioned.update(name_key(caption.source) for caption in finished.captions)
        for failure in finished.failures:
            self.failures[name_key(failure.source)] = Failure(to_unicode(failure.source), to_unicode(failure.reason))
        self.drop_failures(self.captioned & self.failures.keys())

    def drop_failures(self, keys: Set[str]) -> None:
        """Drop the failures of these photos, and save the others."""
        for key in keys:
            del self.failures[key]
        if self.failures:
            with atomic_path(self.output.errors) as temporary:
                write_failures(error_format(self.output.format), temporary, [*self.failures.values()])
        else:
            self.output.errors.unlink(missing_ok=True)
        self.listing = Listing(len(self.captioned) + len(self.failures), 0, 0, "")
        self._record()

    def _record(self) -> None:
        failures = [[failure.source, failure.reason, *self.stamps[key]] for key, failure in self.failures.items()]
        self._write_record(
            self.output.record,
            finished=True,
            photos=self.listing.photos,
            failed=len(failures),
            failures=failures,
        )


class Arrivals:
    """The photos of a folder that are complete and not captioned yet."""

    def __init__(self, folder: str, table: GrowingTable, name: Callable[[str], str]):
        self.folder, self.table, self.name = folder, table, name
        self.photos = 0  # in the folder, at the last scan
        self.growing: dict[str, Stamp] = {}  # new files, as they were at the last scan
        self.reported: set[str] = set()  # folders that cannot be listed

    def scan(self) -> list[str]:
        """Photos whose file is complete: it has not changed since the last scan, or for `SETTLED` seconds.

        Failures of photos that are gone are dropped, unless a folder cannot be listed: its photos may be there.
        """
        ready, growing = [], dict[str, Stamp]()
        unreadable: list[OSError] = []
        self.photos = 0
        gone = set(self.table.failures)
        for name in walk_files(self.folder, IMAGE_SUFFIXES, unreadable, leave_out=[self.table.folder.resolve()]):
            self.photos += 1
            key = name_key(name)
            gone.discard(key)
            if key in self.table.captioned:
                continue
            try:
                status = os.stat(name)  # noqa: PTH116 -- Path takes ten times as long
            except FileNotFoundError:  # it has just been moved away
                continue
            except OSError:  # it is reported as any other photo that cannot be read
                status = None
            stamp = (status.st_size, status.st_mtime_ns) if status else UNKNOWN
            if key in self.table.failures and self.table.stamps[key] == stamp:
                continue
            if self.growing.get(name) == stamp or time.time() - stamp[1] / 1e9 > SETTLED:
                self.table.stamps[key] = stamp
                ready.append(name)
            else:
                growing[name] = stamp
        for error in unreadable:
            if error.filename == self.folder:
                is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
                reason = "is gone: put it back" if is_gone else f"cannot be listed ({error.strerror}): make it readable"
                raise DataError(f"{self.name(self.folder)} {reason} and run the same command to continue")
            if error.filename not in self.reported:
                self.reported.add(error.filename)
                log.error("error: %s cannot be listed: %s", self.name(error.filename), error.strerror)
        if gone and not unreadable:
            self.table.drop_failures(gone)
        self.growing = growing
        return ready


class RoundListener(BulkListener):
    """Shows the progress of one round, and logs the photos that failed."""

    def __init__(self, table: GrowingTable, name: Callable[[str], str]):
        self.table, self.name = table, name
        self.done = self.total = 0
        self.update_meter: Callable[[int, int | None], None] = lambda done, total: None

    def captioned(self, photos: int) -> None:
        self.done += photos
        self.update_meter(self.done, self.total)

    def failed(self, failure: Failure) -> None:
        check_roots(failure, self.table.roots)
        log.error("error: %s %s", self.name(failure.source), failure.reason)
        self.captioned(1)


def watch(
    folder: str,
    output: BulkOutput,
    captioner: Captioner,
    options: BulkOptions | None = None,
    decoding: dict[str, Any] | None = None,
    once: bool = False,
    announce: bool = True,
    show: Callable[[Caption], object] = lambda caption: None,
    wait: Callable[[float], object] = time.sleep,
    name: Callable[[str], str] = printable,
) -> BulkSummary:
    """Caption the photos of a folder, and those that arrive, until Ctrl-C; ``once``: only those that are there now.

    ``announce`` logs how many photos the folder has even where none is new; ``show`` is called with each caption once
    it is in the table; ``name`` says how messages name the folder and its photos.

    Rows name the photos as ``folder`` is given, as a bulk job's do; where the table was begun in another working
    directory, by their absolute path. The summary counts the captions of this run, and all photos of the folder that
    failed.
    """
    options = options or BulkOptions()
    if not Path(folder).is_dir():
        raise DataError(f"{printable(folder)} is not a folder: name the folder of the photos")
    if output.format == "parquet":
        import_parquet(to_write=True)
    if options.embed:
        find_exiftool()
    root = absolute(folder)
    chosen = captioner.options(**(decoding or {}))
    workers = count_workers(str(captioner.device)) if options.workers is None else options.workers
    began, before = time.monotonic(), 0
    table = GrowingTable(output)
    try:
        table.start(root, identity(captioner, chosen, output, options), chosen.candidates > 1, options.overwrite)
        before = len(table.captioned)
        named = str(local_path(folder)) if table.cwd == str(Path.cwd()) else root
        listener, arrivals = RoundListener(table, name), Arrivals(named, table, name)
        started = waits = False
        with BulkEngine(captioner, chosen, options.batch_size, workers, listener) as engine:
            while True:
                photos = arrivals.scan()
                new = len(photos) + len(arrivals.growing)
                if not started and (announce or new):
                    found = f"{name(folder)} has {counted(arrivals.photos, 'photo')}, {new:,} new"
                    log.info("%s", found if once else f"watching: {found}; Ctrl-C ends")
                started = True
                if photos:
                    _caption(photos, table, engine, listener, options, show)
                elif once and not arrivals.growing:
                    break
                else:
                    if once and not waits:
                        log.info("waiting until %s completely written", _are(len(arrivals.growing)))
                        waits = True
                    wait(INTERVAL)
                raise_if_lost()
    except KeyboardInterrupt:
        if once:
            log.info("stopped: %s are saved; run the same command to continue", counted(len(table.captioned), "photo"))
            raise
    finally:
        table.close()
    failed = len(table.failures)
    return BulkSummary(
        len(table.captioned) - before, failed, time.monotonic() - began, output.path, output.errors if failed else None
    )


def _are(photos: int) -> str:
    return "1 photo is" if photos == 1 else f"{photos:,} photos are"


def _parts(photos: list[str], rows: int) -> Iterator[JobPart]:
    """What is saved together: a save writes all rows, so that the parts grow with their number."""
    at = 0
    while at < len(photos):
        size = max(FEWEST, min(MOST, (rows + at) // 10))
        yield JobPart(at, tuple(photos[at : at + size]))
        at += size


def _caption(
    photos: list[str],
    table: GrowingTable,
    engine: BulkEngine,
    listener: RoundListener,
    options: BulkOptions,
    show: Callable[[Caption], object],
) -> None:
    """Caption the photos of one round into the table."""
    listener.done, listener.total = 0, len(photos)
    captions = failures = 0
    changes = PhotoChanges()
    with meter("captioning", unit="photos") as listener.update_meter:
        listener.captioned(0)  # the bar knows the total before the first caption
        for finished in engine.run(_parts(photos, len(table.captioned) + len(table.failures))):
            changes.add(write_to_photos(finished, options))
            table.add(finished, engine.options.candidates > 1)
            for caption in finished.captions:
                show(caption)
            captions += len(finished.captions)
            failures += len(finished.failures)
    failed = f", {failures:,} failed (see {printable(table.output.errors)})" if failures else ""
    log.info("%s captioned%s", counted(captions, "photo"), failed)
    for line in changes.lines():
        log.info("%s", line)
