"""A few threads compute, and whatever waits for them goes together: the more callers, the larger the batches.

Nobody waits for company. Photos are looked at a few at a time and then put into words all at once: until then a batch
is open to those that come meanwhile.
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

log = logging.getLogger(__name__)


class Work(Protocol):
    """What is done to an item, in two halves."""

    threads: int  # that may do so at once
    at_once: int  # items that are looked at together

    def encode(self, items: Sequence[Any]) -> Sequence[Any]: ...

    def tell(self, seen: Sequence[Any], question: Any) -> Sequence[Any]: ...


@dataclass(frozen=True, eq=False)
class Job:
    item: Any  # and, once looked at, what was seen
    question: Hashable  # jobs with equal ones can be told of together
    answer: Future[Any] = field(default_factory=Future)


class Batcher:
    """``work`` gives one answer for each item; at most ``most`` of them are in one batch.

    A question with a true ``alone`` takes long: its items go one by one, so that those given up meanwhile cost nothing.
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

    def submit(self, item: Any, question: Hashable) -> Future[Any]:
        """Cancelling the future takes the item out again, unless it is being computed already."""
        job = Job(item, question)
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
                jobs = self._take(self._jobs[0].question)
            return jobs

    def _take(self, question: Hashable, count: int = 0) -> list[Job]:
        """The oldest that fit to a batch of ``count``; none, where all that waited were withdrawn meanwhile."""
        chosen: list[Job] = []
        left: deque[Job] = deque()
        most = 1 if getattr(question, "alone", False) else self.most
        room = min(most - count, self.work.at_once)
        for job in self._jobs:
            (chosen if len(chosen) < room and job.question == question else left).append(job)
        self._jobs = left
        return [job for job in chosen if job.answer.set_running_or_notify_cancel()]

    def _batch(self, jobs: list[Job]) -> int:
        """These, and those that come while they are looked at; how many there were."""
        question, count = jobs[0].question, 0
        seen: list[Job] = []
        while jobs:
            count += len(jobs)
            seen += self._through(jobs, self.work.encode)
            with self._changed:
                jobs = self._take(question, count)
        for job in self._through(seen, self.work.tell, question):
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
        return [Job(item, job.question, job.answer) for item, job in zip(made, jobs)]
