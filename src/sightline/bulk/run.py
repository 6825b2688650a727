"""A bulk job from its first to its last photo, on this machine or on a cluster of many."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sightline.bulk.engine import Engine, Finished, Watcher
from sightline.bulk.extras import parquet, ray
from sightline.bulk.inputs import Part
from sightline.bulk.job import Job, Output
from sightline.bulk.outputs import embed, find_exiftool, write_sidecars
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.io.files import counted, printable
from sightline.io.progress import duration, meter
from sightline.types import Failure

log = logging.getLogger("sightline.bulk")
TOLD = 20  # bad photos named one by one; the table of errors has them all


@dataclass(frozen=True)
class Settings:
    """How a job is carried out; only the datastore changes captions, and the model's signature names it."""

    batch_size: int = 32
    workers: int | None = None  # processes that decode photos; 0 decodes here
    device: str = "auto"
    runtime: str = "auto"
    datastore: str | None = None
    part_size: int = 1000
    sidecars: bool = False
    embed: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Summary:
    """What came of a job: ``photos`` were answered by this run, ``failed`` inputs are in the table of errors."""

    photos: int
    failed: int
    seconds: float
    output: Path
    errors: Path | None


def caption_all(
    inputs: Sequence[str],
    output: Output,
    models: Sequence[str] = (),
    settings: Settings | None = None,
    options: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> Summary:
    """Caption every photo of folders, patterns, lists and shards into ``output``; called again, it continues.

    ``cluster`` is a Ray cluster's address, or "" for whichever is at hand.
    """
    settings = settings or Settings()
    if output.form == "parquet":
        parquet()  # before any work, not after it
    if cluster is not None:
        ray()
    if settings.embed:
        find_exiftool()
    job = Job(output)
    try:
        device = "cpu" if cluster is not None else choose_device(settings.device)
        captioner = load(*models, device=device, runtime=settings.runtime, datastore=settings.datastore)
        chosen = captioner.options(**(options or {}))
        if not job.begin(inputs, settings.part_size, identity(captioner, chosen, output, settings), settings.overwrite):
            failed = job.failed_before()
            log.info("%s is finished already: nothing to do", printable(output.path))
            return Summary(0, failed, 0.0, output.path, output.errors if failed else None)
        if cluster is not None:
            from sightline.bulk.ray import work_on_cluster

            return work_on_cluster(job, captioner.folders, chosen, settings, cluster or None)
        return _work(job, captioner, chosen, settings)
    finally:
        job.close()


def identity(captioner: Captioner, options: DecodingOptions, output: Output, settings: Settings) -> dict[str, Any]:
    """What must not change between the runs of one job."""
    return {
        "model": captioner.signatures(),
        "decoding": asdict(replace(options, want_attention=False)),
        "format": output.form,
        "sidecars": settings.sidecars,
        "embed": settings.embed,
    }


def choose_device(name: str) -> str:
    if name == "cpu":
        return name
    try:
        import torch
    except ImportError:  # exported models do without
        return "cpu"
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return name


def count_workers(device: str) -> int:
    """Beside a GPU all cores decode; without one the model needs most of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, max(1, cores - 1)) if device.startswith("cuda") else max(1, cores // 4)


def _work(job: Job, captioner: Captioner, options: DecodingOptions, settings: Settings) -> Summary:
    began = time.monotonic()
    workers = count_workers(str(captioner.device)) if settings.workers is None else settings.workers
    several = options.candidates > 1
    kept = 0
    progress = Progress(job)
    progress.say_what_is_done()
    with (
        meter("captioning", unit="photos", begin=progress.before) as progress.tell,
        Engine(captioner, options, settings.batch_size, workers, progress) as engine,
    ):
        for finished in engine.run(job.left()):
            kept += write_beside(finished, settings)
            job.save(finished.part, finished.captions, finished.failures, several)
    seconds = time.monotonic() - began
    return conclude(job, progress, seconds, kept)


def conclude(job: Job, progress: Progress, seconds: float, kept: int = 0) -> Summary:
    """Make one table of the parts where one is wanted, and say what came of it."""
    failed = job.finish({"seconds": round(seconds, 1), "photos": progress.done})
    rate = progress.answered / max(seconds, 1e-9)
    log.info(
        "%s: %s in %s (%.1f photos/s)%s",
        printable(job.output.path),
        counted(progress.answered, "photo"),
        duration(seconds),
        rate,
        f"; {failed:,} could not be captioned, see {printable(job.output.errors)}" if failed else "",
    )
    if kept:
        log.info("%d .txt files were there already and were left as they are; --overwrite replaces them", kept)
    return Summary(progress.answered, failed, seconds, job.output.path, job.output.errors if failed else None)


def write_beside(finished: Finished, settings: Settings) -> int:
    """The photos' own files; what lies in a shard has none."""
    if finished.part.shard:
        return 0
    if settings.embed:
        embed(finished.captions, settings.overwrite)
    return write_sidecars(finished.captions, settings.overwrite) if settings.sidecars else 0


class Progress(Watcher):
    """How many inputs were answered, and of how many: a shard's are known once it is open, and guessed before."""

    def __init__(self, job: Job, tell: Callable[[int, int | None], None] = lambda done, total: None):
        self.job, self.tell = job, tell
        self.answered = self.bad = 0
        self.photos_left = self.shards_left = 0
        self.opened_shards = self.in_shards = self.parts_done = 0
        for part in job.left():
            self.photos_left += len(part.photos)
            self.shards_left += bool(part.shard)
        self.before = job.listing.photos - self.photos_left

    def say_what_is_done(self) -> None:
        """One line, if an earlier run did any of it."""
        listing = self.job.listing
        counts = ((self.before, listing.photos, "photo"), (listing.shards - self.shards_left, listing.shards, "shard"))
        if any(done for done, _, _ in counts):
            told = [f"{done:,} of {counted(every, thing)}" for done, every, thing in counts if every]
            log.info("going on: %s are done", " and ".join(told))

    @property
    def done(self) -> int:
        return self.before + self.answered

    @property
    def total(self) -> int | None:
        """Inputs of this job, without the shards of earlier runs; None before the first shard is open."""
        if not self.shards_left:
            return self.job.listing.photos
        if not self.opened_shards:
            return None
        unopened = self.shards_left - self.opened_shards
        return self.job.listing.photos + self.in_shards + round(unopened * self.in_shards / self.opened_shards)

    def opened(self, part: Part, photos: int) -> None:
        if part.shard:
            self.opened_shards += 1
            self.in_shards += photos

    def captioned(self, photos: int) -> None:
        self.answered += photos
        self.tell(self.done, self.total)

    def failed(self, failure: Failure) -> None:
        """A bad photo is named; but if its whole folder is gone, the job stops instead of calling every photo bad."""
        check_roots(failure, self.job.roots)
        self.captioned(1)
        self._name(failure)

    def part_done(self, photos: int, failures: Sequence[Failure]) -> None:
        """All of a part at once, as a cluster tells it."""
        self.answered += photos
        self.parts_done += 1
        if self.shards_left:  # all shards may be alike; single photos are few where there are shards
            self.in_shards, self.opened_shards = self.answered, min(self.parts_done, self.shards_left)
        self.tell(self.done, self.total)
        for failure in failures:
            self._name(failure)

    def _name(self, failure: Failure) -> None:
        self.bad += 1
        if self.bad <= TOLD:
            log.error("error: %s %s", printable(failure.source), failure.reason)
        if self.bad == TOLD:
            log.error("further bad photos are only listed in %s", printable(self.job.output.errors))


def check_roots(failure: Failure, roots: Sequence[str]) -> None:
    """Stop if the photo is gone because its whole folder is."""
    if not Path(failure.source.partition("::")[0]).exists():
        for root in roots:
            if not Path(root).exists():
                raise DataError(
                    f"{printable(root)} is gone since this job began: put it back and run the same command to go on"
                )
