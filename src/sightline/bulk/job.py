"""A bulk job from its first to its last photo, on this machine or on a cluster."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sightline.bulk.engine import BulkEngine, BulkListener
from sightline.bulk.inputs import FinishedPart, JobPart
from sightline.bulk.job_folder import BulkOutput, JobFolder
from sightline.bulk.sidecars import PhotoChanges, embed, find_exiftool, write_sidecars
from sightline.data.tables import import_parquet
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import Captioner, is_only_exported, load
from sightline.errors import ConfigError, DataError
from sightline.io.files import counted, printable
from sightline.io.progress import duration, meter
from sightline.nn.hub import DEFAULT_MODEL, resolve
from sightline.onnx.exported import cores
from sightline.types import Failure

log = logging.getLogger("sightline.bulk")
MOST_NAMED = 20  # bad photos named on stderr; the table of errors has them all


@dataclass(frozen=True)
class BulkOptions:
    """How a job is carried out. Of these only the datastore changes captions; the model's signature names it."""

    batch_size: int = 32
    workers: int | None = None  # processes that decode photos; 0 decodes here
    device: str = "auto"
    runtime: str = "auto"
    datastore: str | None = None
    part_size: int = 1000
    sidecars: bool = False
    embed: bool = False
    include_unsure: bool = False  # also write unsure captions to sidecars and photos; tables always have them
    min_confidence: float = 0.0  # of captions that are written to sidecars and photos
    overwrite: bool = False


@dataclass(frozen=True)
class BulkSummary:
    """The outcome of a run: it processed ``photos``; ``failed`` inputs of the job are in the table of errors."""

    photos: int
    failed: int
    seconds: float
    output: Path
    errors: Path | None


def caption_all(
    inputs: Sequence[str],
    output: BulkOutput,
    models: Sequence[str] = (),
    options: BulkOptions | None = None,
    decoding: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> BulkSummary:
    """Caption every photo of folders, patterns, lists and shards into ``output``; called again, it continues.

    ``cluster`` is a Ray cluster's address, or "auto" for the one this machine belongs to, or else this machine alone.
    """
    options = options or BulkOptions()
    if output.format == "parquet":
        import_parquet(to_write=True)  # what is missing is reported before any work, not after it
    if cluster is not None:
        from sightline.bulk.ray import import_ray, work_on_cluster

        import_ray()
    if options.embed:
        find_exiftool()
    job = JobFolder(output)
    try:
        device = "cpu" if cluster is not None else choose_device(options.device, models, options.runtime)
        captioner = load(*models, device=device, runtime=options.runtime, datastore=options.datastore)
        chosen = captioner.options(**(decoding or {}))
        if not job.begin(inputs, options.part_size, identity(captioner, chosen, output, options), options.overwrite):
            failed = job.failed_before()
            before = f"; {failed:,} could not be captioned, see {printable(output.errors)}" if failed else ""
            log.info("%s is already finished: nothing to do%s", printable(output.path), before)
            return BulkSummary(0, failed, 0.0, output.path, output.errors if failed else None)
        try:
            if cluster is not None:
                return work_on_cluster(job, captioner.folders, chosen, options, cluster)
            return _work_here(job, captioner, chosen, options)
        except KeyboardInterrupt:
            log.info("stopped: %s are saved; run the same command to continue", BulkProgress(job).saved)
            raise
    finally:
        job.close()


def identity(
    captioner: Captioner, decoding: DecodingOptions, output: BulkOutput, options: BulkOptions
) -> dict[str, Any]:
    """What must not change between the runs of one job."""
    return {
        "model": captioner.signatures(),
        "decoding": asdict(replace(decoding, want_attention=False)),
        "format": output.format,
        "sidecars": options.sidecars,
        "embed": options.embed,
        "include_unsure": options.include_unsure,
        "min_confidence": options.min_confidence,
    }


def choose_device(name: str, models: Sequence[str | Path], runtime: str) -> str:
    """A device that torch knows. "auto" is a GPU where there is one and the models can run there."""
    if name == "cpu" or (name == "auto" and (needs_cpu(models, runtime) or not may_have_gpu())):
        return "cpu"
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


def needs_cpu(models: Sequence[str | Path], runtime: str) -> bool:
    """Whether one of these models runs in onnxruntime only, and so on the CPU."""
    return runtime == "onnx" or any(is_only_exported(resolve(model)) for model in models or (DEFAULT_MODEL,))


def may_have_gpu() -> bool:
    """Whether there is a driver of NVIDIA or AMD; if not, torch, which takes seconds to import, need not be asked."""
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    return True


def count_workers(device: str) -> int:
    """With a GPU all cores but one decode photos; without one the model needs most of them."""
    return min(16, max(1, cores() - 1)) if device.startswith("cuda") else max(1, cores() // 4)


def _work_here(job: JobFolder, captioner: Captioner, decoding: DecodingOptions, options: BulkOptions) -> BulkSummary:
    began = time.monotonic()
    workers = count_workers(str(captioner.device)) if options.workers is None else options.workers
    several = decoding.candidates > 1
    changes = PhotoChanges()
    progress = BulkProgress(job)
    progress.log_earlier_runs()
    with (
        meter("captioning", unit="photos", begin=progress.before) as progress.update_meter,
        BulkEngine(captioner, decoding, options.batch_size, workers, progress) as engine,
    ):
        progress.captioned(0)  # the bar knows the total before the first caption
        for finished in engine.run(job.unfinished_parts()):
            changes.add(write_to_photos(finished, options))
            job.save(finished, several)
    seconds = time.monotonic() - began
    return conclude(job, progress, seconds, changes)


def conclude(job: JobFolder, progress: BulkProgress, seconds: float, changes: PhotoChanges) -> BulkSummary:
    """Join the parts where one table is wanted, and log the outcome."""
    failed = job.finish({"seconds": round(seconds, 1), "photos": job.kept + progress.done})
    rate = progress.processed / max(seconds, 1e-9)
    log.info(
        "%s: %s in %s (%.1f photos/s)%s",
        printable(job.output.path),
        counted(progress.processed, "photo"),
        duration(seconds),
        rate,
        f"; {failed:,} could not be captioned, see {printable(job.output.errors)}" if failed else "",
    )
    for line in changes.lines():
        log.info("%s", line)
    return BulkSummary(progress.processed, failed, seconds, job.output.path, job.output.errors if failed else None)


def write_to_photos(finished: FinishedPart, options: BulkOptions) -> PhotoChanges:
    """Sidecars and embedded captions, where wanted; photos in shards have neither."""
    changes = PhotoChanges()
    if finished.part.shard or not (options.embed or options.sidecars):
        return changes
    captions = [
        caption for caption in finished.captions if caption.is_reliable(options.min_confidence, options.include_unsure)
    ]
    changes.unsure = len(finished.captions) - len(captions)
    if options.embed:
        changes.add(embed(captions, options.overwrite))
    if options.sidecars:
        changes.add(write_sidecars(captions, options.overwrite))
    return changes


class BulkProgress(BulkListener):
    """How many inputs are done, and of how many: a shard's number is known once it is open, and estimated before."""

    def __init__(self, job: JobFolder):
        self.job = job
        self.update_meter: Callable[[int, int | None], None] = lambda done, total: None
        self.processed = self.bad = 0
        self.photos_left = self.shards_left = 0
        self.opened_shards = self.in_shards = self.parts_done = 0
        for part in job.unfinished_parts():
            self.photos_left += len(part.photos)
            self.shards_left += bool(part.shard)
        self.before = job.listing.photos - self.photos_left

    def log_earlier_runs(self) -> None:
        """One line, if an earlier run did part of the job."""
        if self.before or self.shards_left < self.job.listing.shards:
            log.info("continuing: %s are done", self.saved)

    @property
    def saved(self) -> str:
        """How many photos and shards earlier runs saved, of how many."""
        listing = self.job.listing
        counts = ((self.before, listing.photos, "photo"), (listing.shards - self.shards_left, listing.shards, "shard"))
        return " and ".join(f"{done:,} of {counted(total, thing)}" for done, total, thing in counts if total)

    @property
    def done(self) -> int:
        return self.before + self.processed

    @property
    def total(self) -> int | None:
        """Inputs of this job, without the shards of earlier runs; None before the first shard is open."""
        if not self.shards_left:
            return self.job.listing.photos
        if not self.opened_shards:
            return None
        unopened = self.shards_left - self.opened_shards
        return self.job.listing.photos + self.in_shards + round(unopened * self.in_shards / self.opened_shards)

    def opened(self, part: JobPart, photos: int) -> None:
        if part.shard:
            self.opened_shards += 1
            self.in_shards += photos

    def captioned(self, photos: int) -> None:
        self.processed += photos
        self.update_meter(self.done, self.total)

    def failed(self, failure: Failure) -> None:
        """Log a bad photo; but if its whole folder is gone, stop the job instead of reporting every photo as bad."""
        check_roots(failure, self.job.roots)
        self.captioned(1)
        self._log_failure(failure)

    def part_done(self, photos: int, failures: Sequence[Failure]) -> None:
        """A whole part at once, as a cluster reports it."""
        self.processed += photos
        self.parts_done += 1
        if self.shards_left:  # the estimate takes shards for equal, and single photos for few
            self.in_shards, self.opened_shards = self.processed, min(self.parts_done, self.shards_left)
        self.update_meter(self.done, self.total)
        for failure in failures:
            self._log_failure(failure)

    def _log_failure(self, failure: Failure) -> None:
        self.bad += 1
        if self.bad <= MOST_NAMED:
            log.error("error: %s %s", printable(failure.source), failure.reason)
        if self.bad == MOST_NAMED:
            log.error("further bad photos are only listed in %s", printable(self.job.output.errors))


def check_roots(failure: Failure, roots: Sequence[str]) -> None:
    """Stop the job if a photo is missing because its whole folder is."""
    if not os.path.exists(failure.source.partition("::")[0]):  # noqa: PTH110 -- False for any name, however long
        for root in roots:
            if not os.path.exists(root):  # noqa: PTH110
                raise DataError(
                    f"{printable(root)} is gone since this job began: put it back and run the same command to continue"
                )
