"""Photos that wait are captioned together: the more clients, the larger the batches.

No photo waits for a batch to fill. A few threads encode what is waiting, a few photos at a time; photos that arrive
meanwhile join the batch, and then all of it is decoded at once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from sightline.decoding import DecodingOptions
from sightline.engine.captioner import Captioner, PreparedImage
from sightline.explain.explanation import Explanation, explain_caption, explain_options
from sightline.types import ImageFeatures

log = logging.getLogger(__name__)
THREADS = 4  # that compute, at most, each with its share of the cores


# -- captions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """How photos are to be captioned; those with equal queries are decoded together."""

    options: DecodingOptions
    explain: bool = False
    occlusion: bool = False

    @property
    def alone(self) -> bool:
        return self.occlusion  # some fifty times the work


@dataclass(frozen=True)
class EncodedImage:
    image: PreparedImage
    features: tuple[ImageFeatures, ...]  # of this photo, one for each model


class CaptionWork:
    """The stages of a `Captioner` as a `Batcher` calls them.

    Each thread has a photo of its own and its share of the cores, even where there is only one photo. Cores that share
    a photo wait for each other at every layer of the network: on two cores a single photo would be captioned in 51 ms
    instead of 64, for a quarter more processor time, and the next client would wait.
    """

    def __init__(self, captioner: Captioner, max_pixels: int):
        self.captioner, self.threads = captioner.for_threads(THREADS)
        self.batch_size, self.max_pixels = self.captioner.batch_size, max_pixels
        self.has_attention = True  # until shown otherwise

    def query(self, given: dict[str, Any], explain: bool) -> Query:
        """The model's options with those given; `ConfigError` where they contradict each other."""
        given = dict(given)
        occlusion = bool(given.pop("occlusion", False)) or (explain and not self.has_attention)
        if explain:
            return Query(explain_options(self.captioner, **given), explain, occlusion)
        return Query(self.captioner.options(want_attention=False, **given))

    def prepare(self, data: bytes, name: str = "") -> PreparedImage:
        """Open and preprocess; `ImageError` if that cannot be done. May run in any thread."""
        return self.captioner.prepare(data, max_pixels=self.max_pixels, name=name)

    def encode(self, items: Sequence[PreparedImage]) -> list[EncodedImage]:
        features = self.captioner.encode(items)
        return [
            EncodedImage(image, tuple(each[index : index + 1] for each in features))
            for index, image in enumerate(items)
        ]

    def decode(self, items: Sequence[EncodedImage], query: Query) -> list[Explanation]:
        """Explanations; where none was asked for they hold the caption alone."""
        features = [ImageFeatures.joined(each) for each in zip(*(item.features for item in items))]
        captions = self.captioner.finish(self.captioner.decode(features, query.options), features)
        if not query.explain:
            return [Explanation(caption, "attention", frame=item.image.frame) for caption, item in zip(captions, items)]
        return [
            explain_caption(self.captioner, item.image, caption, query.occlusion)
            for caption, item in zip(captions, items)
        ]


# -- batches ----------------------------------------------------------------------------------------------------------


class Work(Protocol):
    """What a `Batcher` calls, in this order."""

    threads: int  # that may call it at once
    batch_size: int  # photos that are encoded together

    def encode(self, items: Sequence[Any]) -> Sequence[Any]: ...

    def decode(self, items: Sequence[Any], query: Any) -> Sequence[Any]: ...


@dataclass(frozen=True, eq=False)
class Job:
    item: Any  # the photo; once encoded, its features
    query: Hashable  # jobs with equal queries can be decoded together
    result: Future[Any] = field(default_factory=Future)


class Batcher:
    """Computes one result for each photo, with at most ``max_batch`` of them in one batch.

    Queries with a true ``alone`` take long: their photos go one by one, so that cancelled ones cost nothing.
    """

    def __init__(self, work: Work, max_batch: int):
        self.work, self.max_batch = work, max_batch
        self.on_batch: Callable[[int, float], None] = lambda count, seconds: None
        self.seconds_per_photo = 0.0  # a moving average
        self._waiting: deque[Job] = deque()
        self._stopping = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"sightline-model-{number}", daemon=True)
            for number in range(work.threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what is waiting, then end the threads; returns when all is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, photo: Any, query: Hashable) -> Future[Any]:
        """Cancelling the future removes the photo, unless it is being computed already."""
        job = Job(photo, query)
        with self._changed:
            if self._stopping:
                raise RuntimeError("the batcher was stopped")
            self._waiting.append(job)
            self._changed.notify()
        job.result.add_done_callback(self._remove_cancelled)  # holds no photo: a result must not keep one alive
        return job.result

    def _remove_cancelled(self, result: Future[Any]) -> None:
        if result.cancelled():
            with self._changed:
                self._waiting = deque(job for job in self._waiting if job.result is not result)

    def seconds_for(self, count: int) -> int:
        """Whole seconds, at least one, in which so many photos should be done."""
        return max(1, math.ceil(count * self.seconds_per_photo / len(self._threads)))

    def _run(self) -> None:
        while jobs := self._next_jobs():
            began = time.perf_counter()
            count = self._compute(jobs)
            del jobs  # no photo is kept while waiting for the next
            seconds = time.perf_counter() - began
            average, latest = self.seconds_per_photo, seconds / count
            self.seconds_per_photo = 0.8 * average + 0.2 * latest if average else latest
            self.on_batch(count, seconds)

    def _next_jobs(self) -> list[Job]:
        """The first jobs of a batch; empty when the batcher stops."""
        with self._changed:
            jobs: list[Job] = []
            while not jobs:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return []
                jobs = self._take(self._waiting[0].query)
            return jobs

    def _take(self, query: Hashable, count: int = 0) -> list[Job]:
        """The oldest jobs that fit a batch of ``count``; none, where all that waited were cancelled meanwhile."""
        chosen: list[Job] = []
        left: deque[Job] = deque()
        max_batch = 1 if getattr(query, "alone", False) else self.max_batch
        free = min(max_batch - count, self.work.batch_size)
        for job in self._waiting:
            (chosen if len(chosen) < free and job.query == query else left).append(job)
        self._waiting = left
        return [job for job in chosen if job.result.set_running_or_notify_cancel()]

    def _compute(self, jobs: list[Job]) -> int:
        """Encode these jobs and those that arrive meanwhile, then decode all; returns how many there were."""
        query, count = jobs[0].query, 0
        encoded: list[Job] = []
        while jobs:
            count += len(jobs)
            encoded += self._apply(self.work.encode, jobs)
            with self._changed:
                jobs = self._take(query, count)
        for job in self._apply(self.work.decode, encoded, query):
            job.result.set_result(job.item)
        return count

    def _apply(self, stage: Callable[..., Sequence[Any]], jobs: list[Job], *arguments: Any) -> list[Job]:
        """The jobs with what ``stage`` makes of their items; those it fails for get the exception as their result."""
        if not jobs:
            return []
        try:
            outputs = stage([job.item for job in jobs], *arguments)
        except Exception as error:
            if len(jobs) > 1:  # one bad photo must not fail the others
                return [done for job in jobs for done in self._apply(stage, [job], *arguments)]
            log.exception("a photo could not be captioned")
            jobs[0].result.set_exception(error)
            return []
        return [Job(output, job.query, job.result) for output, job in zip(outputs, jobs)]
