"""A few threads compute, and whatever waits for them goes together: the more callers, the larger the batches.

No photo waits for others. Photos are encoded a few at a time and then decoded all at once: until then a batch is open
to those that come meanwhile.
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
from sightline.engine.backend import PreparedImage
from sightline.engine.captioner import Captioner
from sightline.explain.explanation import Explanation, explain_caption, explain_options
from sightline.types import ImageFeatures

log = logging.getLogger(__name__)
THREADS = 4  # that compute, at most, each with its share of the cores


class Work(Protocol):
    """What is done to an item, in two halves."""

    threads: int  # that may do so at once
    batch_size: int  # items that are encoded together

    def encode(self, items: Sequence[Any]) -> Sequence[Any]: ...

    def decode(self, items: Sequence[Any], query: Any) -> Sequence[Any]: ...


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
    instead of 64, for a quarter more processor time, and the next caller would wait.
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


@dataclass(frozen=True, eq=False)
class Job:
    item: Any  # and, once encoded, its features
    query: Hashable  # jobs with equal ones can be decoded together
    answer: Future[Any] = field(default_factory=Future)


class Batcher:
    """``work`` gives one answer for each item; at most ``most`` of them are in one batch.

    A query with a true ``alone`` takes long: its items go one by one, so that those given up meanwhile cost nothing.
    """

    def __init__(self, work: Work, most: int):
        self.work, self.most = work, most
        self.note: Callable[[int, float], None] = lambda count, took: None
        self.seconds_each = 0.0  # what an item took of late
        self._jobs: deque[Job] = deque()
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
        """Finish what waits, then end; returns when all is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, item: Any, query: Hashable) -> Future[Any]:
        """Cancelling the future takes the item out again, unless it is being computed already."""
        job = Job(item, query)
        with self._changed:
            if self._stopping:
                raise RuntimeError("the batcher was stopped")
            self._jobs.append(job)
            self._changed.notify()
        job.answer.add_done_callback(self._withdraw)  # which knows no item: an answer must not keep its photo alive
        return job.answer

    def _withdraw(self, answer: Future[Any]) -> None:
        if answer.cancelled():
            with self._changed:
                self._jobs = deque(job for job in self._jobs if job.answer is not answer)

    def seconds_for(self, count: int) -> int:
        """Whole seconds, at least one, in which so many items should be done."""
        return max(1, math.ceil(count * self.seconds_each / len(self._threads)))

    def _run(self) -> None:
        while jobs := self._first():
            began = time.perf_counter()
            count = self._batch(jobs)
            del jobs  # no photo is kept while waiting for the next
            took = time.perf_counter() - began
            each = took / count
            self.seconds_each = each if not self.seconds_each else 0.8 * self.seconds_each + 0.2 * each
            self.note(count, took)

    def _first(self) -> list[Job]:
        """What a batch begins with; empty when the end has come."""
        with self._changed:
            jobs: list[Job] = []
            while not jobs:
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if not self._jobs:
                    return []
                jobs = self._take(self._jobs[0].query)
            return jobs

    def _take(self, query: Hashable, count: int = 0) -> list[Job]:
        """The oldest that fit to a batch of ``count``; none, where all that waited were withdrawn meanwhile."""
        chosen: list[Job] = []
        left: deque[Job] = deque()
        most = 1 if getattr(query, "alone", False) else self.most
        room = min(most - count, self.work.batch_size)
        for job in self._jobs:
            (chosen if len(chosen) < room and job.query == query else left).append(job)
        self._jobs = left
        return [job for job in chosen if job.answer.set_running_or_notify_cancel()]

    def _batch(self, jobs: list[Job]) -> int:
        """These, and those that come while they are encoded; how many there were."""
        query, count = jobs[0].query, 0
        encoded: list[Job] = []
        while jobs:
            count += len(jobs)
            encoded += self._through(jobs, self.work.encode)
            with self._changed:
                jobs = self._take(query, count)
        for job in self._through(encoded, self.work.decode, query):
            job.answer.set_result(job.item)
        return count

    def _through(self, jobs: list[Job], half: Callable[..., Sequence[Any]], *given: Any) -> list[Job]:
        """The jobs with what one half of the work made of their items; those it failed for have their answer."""
        if not jobs:
            return []
        try:
            made = half([job.item for job in jobs], *given)
        except Exception as error:
            if len(jobs) > 1:  # one bad item must not spoil its neighbours
                return [job for one in jobs for job in self._through([one], half, *given)]
            log.exception("a photo could not be captioned")
            jobs[0].answer.set_exception(error)
            return []
        return [Job(item, job.query, job.answer) for item, job in zip(made, jobs)]
