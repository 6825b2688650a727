"""The same job on a cluster, with Ray Data: one actor per device, each part saved by the machine that captioned it.

The rule is that of one machine: a part is done when its file is in place. An actor that dies is started again by Ray
and gets its parts again; it passes over those that are there. All machines see inputs and output by the same paths.
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

from sightline.bulk import extras
from sightline.bulk.engine import Engine
from sightline.bulk.inputs import Part
from sightline.bulk.job import Job, part_path, save_part
from sightline.bulk.run import TOLD, Progress, Settings, Summary, check_roots, conclude, count_workers, write_beside
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError, SightlineError
from sightline.io.progress import meter
from sightline.nn.hub import SHIPPED
from sightline.types import Failure

log = logging.getLogger("sightline.bulk")
MOST_BLOCKS = 10_000  # what Ray hands out at once grows beyond so many parts


class CaptionParts:
    """What an actor is: a model on a device, captioning the parts it is given. Ray Data calls it."""

    def __init__(self, plan: dict[str, Any]):
        try:
            os.chdir(plan["here"])
        except OSError as error:
            raise DataError(
                f"{plan['here']} is not on this machine ({error.strerror}): start the job in a folder that all share"
            ) from None
        self.settings = Settings(**plan["settings"])
        self.folder, self.form, self.roots = Path(plan["folder"]), plan["form"], plan["roots"]
        self.options = DecodingOptions(**plan["options"])
        device, settings = plan["device"], self.settings
        captioner = load(*plan["models"], device=device, runtime=settings.runtime, datastore=settings.datastore)
        self.engine = Engine(captioner, self.options, self.settings.batch_size, self.settings.workers or 0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Caption and save these parts; answers with the number of photos of each, and its failures."""
        parts = [part_from_text(str(text)) for text in batch["part"]]
        left = [part for part in parts if not part_path(self.folder, self.form, part.number).exists()]
        answers: dict[str, list[Any]] = {"photos": [], "failures": [], "kept": []}
        for finished in self.engine.run(left):
            for failure in finished.failures:
                check_roots(failure, self.roots)
            answers["kept"].append(write_beside(finished, self.settings))
            save_part(
                self.folder, self.form, finished.part, finished.captions, finished.failures, self.options.candidates > 1
            )
            answers["photos"].append(len(finished.captions) + len(finished.failures))
            answers["failures"].append(json.dumps([[one.source, one.reason] for one in finished.failures[:TOLD]]))
        return answers


def work_on_cluster(
    job: Job, models: Sequence[Path | None], options: DecodingOptions, settings: Settings, address: str | None
) -> Summary:
    """Spread the parts that are left over a cluster, wait for all of them, and conclude the job."""
    ray = connect(address)
    began = time.monotonic()
    progress = Progress(job)
    progress.say_what_is_done()
    kept = 0
    with meter("captioning", unit="photos", begin=progress.before) as progress.tell:
        for answer in _answers(ray, job, models, options, settings):
            kept += int(answer["kept"])
            progress.part_done(int(answer["photos"]), [Failure(*pair) for pair in json.loads(answer["failures"])])
    return conclude(job, progress, time.monotonic() - began, kept)


def connect(address: str | None) -> Any:
    """Join a cluster, or make a small one of this machine where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    ray = extras.ray()
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"no Ray cluster at {address!r} ({reason}): start one with `ray start`") from None
    return ray


def _answers(
    ray: Any, job: Job, models: Sequence[Path | None], options: DecodingOptions, settings: Settings
) -> Iterator[dict[str, Any]]:
    parts = [{"part": part_to_text(part)} for part in job.left()]
    if not parts:
        return
    actors, device, resources = _actors(ray, settings, len(parts))
    workers = resources["num_cpus"] - 1 if settings.workers is None else settings.workers
    plan = {
        "here": str(Path.cwd()),
        "settings": {**asdict(settings), "workers": workers},
        "folder": str(job.folder.absolute()),
        "form": job.output.form,
        "roots": job.roots,
        "options": asdict(options),
        "models": [folder.name if folder.parent == SHIPPED else str(folder.absolute()) for folder in models if folder],
        "device": device,
    }
    log.info("%s", f"{len(parts):,} parts on {actors} {'GPUs' if device == 'cuda' else 'CPU cores'}")
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.from_items(parts, override_num_blocks=min(len(parts), MOST_BLOCKS))
    answers = rows.map_batches(
        CaptionParts, fn_constructor_args=[plan], batch_size=1, concurrency=(1, actors), **resources
    )
    try:
        yield from answers.iter_rows()
    except ray.exceptions.RayError as error:
        raise own_error(error) from error


def _actors(ray: Any, settings: Settings, parts: int) -> tuple[int, str, dict[str, Any]]:
    """How many actors, on what, with which share of the cluster."""
    have = ray.cluster_resources()
    gpus, cores = int(have.get("GPU", 0)), int(have.get("CPU", 1))
    if gpus and settings.device in ("auto", "cuda"):
        decoding = count_workers("cuda") if settings.workers is None else settings.workers
        return min(gpus, parts), "cuda", {"num_gpus": 1, "num_cpus": min(1 + decoding, max(1, cores // gpus))}
    if settings.device not in ("auto", "cpu"):
        raise ConfigError(f"--device {settings.device} with --ray: give cuda or cpu, Ray deals out the devices")
    return min(cores, parts), "cpu", {"num_cpus": 1}  # an actor per core decodes for itself


def own_error(error: BaseException) -> SightlineError:
    """The line our own code wrote on another machine, out of what Ray wraps around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SightlineError):
            return type(cause)(str(cause))
        cause = getattr(cause, "cause", None) or cause.__cause__
    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return DataError(f"the cluster gave up: {reason}; run the same command to go on")


def part_to_text(part: Part) -> str:
    photos = [one if isinstance(one, str) else [one.source, one.reason] for one in part.photos]
    return json.dumps([part.number, photos, part.shard])


def part_from_text(text: str) -> Part:
    number, photos, shard = json.loads(text)
    return Part(number, tuple(one if isinstance(one, str) else Failure(*one) for one in photos), shard)
