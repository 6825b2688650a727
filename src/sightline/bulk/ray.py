"""The same job on a cluster, with Ray Data: one actor per device, each part saved by the machine that captioned it.

The rule is that of one machine: a part is done when its file is in place. Ray starts an actor that dies again and gives
it its parts again; it skips those that are done. All machines must see inputs and output under the same paths.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sightline.bulk.engine import BulkEngine
from sightline.bulk.inputs import JobPart
from sightline.bulk.job import (
    MOST_NAMED,
    BulkOptions,
    BulkProgress,
    BulkSummary,
    check_roots,
    conclude,
    count_workers,
    needs_cpu,
    write_to_photos,
)
from sightline.bulk.job_folder import JobFolder, part_path, save_part
from sightline.bulk.sidecars import PhotoChanges
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError, MissingExtraError, SightlineError, install_command
from sightline.io.progress import meter
from sightline.nn.hub import SHIPPED
from sightline.types import Failure

log = logging.getLogger("sightline.bulk")
MOST_BLOCKS = 10_000  # beyond so many parts, Ray hands out several at once


class CaptionParts:
    """An actor of Ray Data: a model on a device that captions the parts it is given."""

    def __init__(self, plan: dict[str, Any]):
        try:
            os.chdir(plan["here"])
        except OSError as error:
            raise DataError(
                f"{plan['here']} is not on this machine ({error.strerror}): start the job in a folder that all share"
            ) from None
        self.options = options = BulkOptions(**plan["options"])
        self.folder, self.format, self.roots = Path(plan["folder"]), plan["format"], plan["roots"]
        self.decoding = DecodingOptions(**plan["decoding"])
        captioner = load(*plan["models"], device=plan["device"], runtime=options.runtime, datastore=options.datastore)
        self.engine = BulkEngine(captioner, self.decoding, options.batch_size, options.workers or 0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Caption and save these parts; returns the number of photos of each, and its failures."""
        parts = [part_from_text(str(text)) for text in batch["part"]]
        unfinished = [part for part in parts if not part_path(self.folder, self.format, part.number).exists()]
        rows: dict[str, list[Any]] = {"photos": [], "failures": [], "changes": []}
        for finished in self.engine.run(unfinished):
            for failure in finished.failures:
                check_roots(failure, self.roots)
            rows["changes"].append(json.dumps(vars(write_to_photos(finished, self.options))))
            several = self.decoding.candidates > 1
            save_part(self.folder, self.format, finished, several)
            rows["photos"].append(len(finished.captions) + len(finished.failures))
            rows["failures"].append(json.dumps([[one.source, one.reason] for one in finished.failures[:MOST_NAMED]]))
        return rows


def work_on_cluster(
    job: JobFolder, models: Sequence[Path | None], decoding: DecodingOptions, options: BulkOptions, address: str
) -> BulkSummary:
    """Spread the parts that are left over a cluster, wait for all of them, and conclude the job."""
    ray = connect(address)
    began = time.monotonic()
    progress = BulkProgress(job)
    progress.log_earlier_runs()
    changes = PhotoChanges()
    with meter("captioning", unit="photos", begin=progress.before) as progress.update_meter:
        for row in _rows(ray, job, models, decoding, options):
            changes.add(PhotoChanges(**json.loads(row["changes"])))
            progress.part_done(int(row["photos"]), [Failure(*pair) for pair in json.loads(row["failures"])])
    return conclude(job, progress, time.monotonic() - began, changes)


def connect(address: str) -> Any:
    """Connect to a cluster; ``auto`` is the one this machine belongs to, or else this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    ray = import_ray()
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "auto" else address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"no Ray cluster at {address!r} ({reason}): start one with `ray start`") from None
    return ray


def _rows(
    ray: Any, job: JobFolder, models: Sequence[Path | None], decoding: DecodingOptions, options: BulkOptions
) -> Iterator[dict[str, Any]]:
    parts = [{"part": part_to_text(part)} for part in job.unfinished_parts()]
    if not parts:
        return
    folders = [folder for folder in models if folder]
    actors, device, resources = choose_actors(ray, folders, options, len(parts))
    workers = resources["num_cpus"] - 1 if options.workers is None else options.workers
    plan = {
        "here": str(Path.cwd()),
        "options": {**asdict(options), "workers": workers},
        "folder": str(job.folder.absolute()),
        "format": job.output.format,
        "roots": job.roots,
        "decoding": asdict(decoding),
        "models": [folder.name if folder.parent == SHIPPED else str(folder.absolute()) for folder in folders],
        "device": device,
    }
    log.info("%s", f"{len(parts):,} parts on {actors} {'GPUs' if device == 'cuda' else 'CPU cores'}")
    yield from map_on_actors(ray, CaptionParts, plan, parts, actors, resources)


def map_on_actors(
    ray: Any, actor: type, plan: dict[str, Any], items: list[dict[str, Any]], actors: int, resources: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Call ``actor(plan)`` on each item, on at most so many actors of Ray Data; gives the rows they return."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items(items, override_num_blocks=min(len(items), MOST_BLOCKS))
    results = dataset.map_batches(actor, fn_constructor_args=[plan], batch_size=1, concurrency=(1, actors), **resources)
    try:
        yield from results.iter_rows()
    except ray.exceptions.RayError as error:
        raise _original_error(error) from error


def choose_actors(
    ray: Any, models: Sequence[Path], options: BulkOptions, parts: int
) -> tuple[int, str, dict[str, Any]]:
    """How many actors, on which device, with which share of the cluster."""
    have = ray.cluster_resources()
    gpus, cores = int(have.get("GPU", 0)), int(have.get("CPU", 1))
    on_gpu = options.device == "cuda" or (options.device == "auto" and not needs_cpu(models, options.runtime))
    if gpus and on_gpu:
        decoding = count_workers("cuda") if options.workers is None else options.workers
        return min(gpus, parts), "cuda", {"num_gpus": 1, "num_cpus": min(1 + decoding, max(1, cores // gpus))}
    if options.device not in ("auto", "cpu"):
        raise ConfigError(f"--device {options.device} with --ray: give cuda or cpu, Ray deals out the devices")
    return min(cores, parts), "cpu", {"num_cpus": 1}  # an actor per core decodes for itself


def _original_error(error: BaseException) -> SightlineError:
    """The error that our code raised on another machine, unwrapped from Ray's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SightlineError):
            return type(cause)(str(cause))
        cause = getattr(cause, "cause", None) or cause.__cause__
    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return DataError(f"the cluster stopped: {reason}; run the same command to continue")


def part_to_text(part: JobPart) -> str:
    photos = [one if isinstance(one, str) else [one.source, one.reason] for one in part.photos]
    return json.dumps([part.number, photos, part.shard])


def part_from_text(text: str) -> JobPart:
    number, photos, shard = json.loads(text)
    return JobPart(number, tuple(one if isinstance(one, str) else Failure(*one) for one in photos), shard)


def import_ray() -> Any:
    """``ray`` with Ray Data, or one line that says how to install it."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError(f"a cluster needs Ray: {install_command('ray')}, or leave out --ray") from None
    return ray
