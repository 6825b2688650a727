"""One thread computes, and whatever waits for it goes together: the more callers, the larger the batches.

A lone caller never waits. Only while others are known to be on their way (`Batcher.expect`) does a batch that has room
stay open, and then no longer than ``wait``.
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
from typing import Any

log = logging.getLogger(__name__)

Run = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Job:
    item: Any
    question: Hashable  # jobs with equal ones can be computed together
    answer: Future[Any] = field(default_factory=Future)


class Batcher:
    """``run(question, items)`` gives one answer for each item; it is called in one thread, with at most ``most``.

    A question with a true ``alone`` takes long: its items go one by one, so that those given up meanwhile cost nothing.
    """

    def __init__(self, run: Run, most: int, wait: float, note: Callable[[int, float], None] = lambda count, took: None):
        self.run, self.most, self.wait, self.note = run, most, wait, note
        self.seconds_each = 0.0  # what an item took of late
        self._jobs: deque[Job] = deque()
        self._coming = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="sightline-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end; returns when all is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def expect(self, count: int) -> None:
        """So many more items are on their way; negative: so many will not come after all."""
        with self._changed:
            self._coming += count
            self._changed.notify()

    def submit(self, item: Any, question: Hashable) -> Future[Any]:
        """An expected item is here. Cancelling the future takes it out again, unless it is being computed already."""
        job = Job(item, question)
        with self._changed:
            if self._stopping:
                raise RuntimeError("the batcher was stopped")
            self._coming -= 1
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
        return max(1, math.ceil(count * self.seconds_each))

    def _work(self) -> None:
        while jobs := self._next():
            began = time.perf_counter()
            self._compute(jobs)
            took = time.perf_counter() - began
            each = took / len(jobs)
            self.seconds_each = each if not self.seconds_each else 0.8 * self.seconds_each + 0.2 * each
            self.note(len(jobs), took)

    def _next(self) -> list[Job]:
        """The oldest job and all that fit to it; empty when the end has come."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if not self._jobs:
                    return []
                self._changed.wait_for(self._is_ready, timeout=self.wait)
                if jobs := [job for job in self._take() if job.answer.set_running_or_notify_cancel()]:
                    return jobs

    def _take(self) -> list[Job]:
        """None, where all that waited were withdrawn meanwhile."""
        chosen: list[Job] = []
        left: deque[Job] = deque()
        for job in self._jobs:
            question = self._jobs[0].question
            most = 1 if getattr(question, "alone", False) else self.most
            fits = len(chosen) < most and job.question == question
            (chosen if fits else left).append(job)
        self._jobs = left
        return chosen

    def _is_ready(self) -> bool:
        """Whether nothing is gained by waiting: enough are here, or nobody else is on the way."""
        return len(self._jobs) >= self.most or self._coming <= 0 or self._stopping

    def _compute(self, jobs: list[Job]) -> None:
        try:
            answers = self.run(jobs[0].question, [job.item for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                log.exception("a photo could not be captioned")
                jobs[0].answer.set_exception(error)
            else:  # one bad item must not spoil its neighbours
                for job in jobs:
                    self._compute([job])
            return
        for job, answer in zip(jobs, answers):
            job.answer.set_result(answer)
