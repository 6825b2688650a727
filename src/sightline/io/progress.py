"""Progress of long work: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

log = logging.getLogger("sightline.io.progress")
Item = TypeVar("Item")
_terminal = False


def use_terminal(enabled: bool) -> None:
    """The command line turns bars on where standard error is a terminal; a library call only logs."""
    global _terminal
    _terminal = enabled


def track(items: Iterable[Item], label: str, total: int | None = None, every: float = 15.0) -> Iterator[Item]:
    """Iterate over ``items`` and show progress and remaining time."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with meter(label, every) as update:
        update(0, total)
        for done, item in enumerate(items, 1):
            yield item
            update(done, total)


@contextmanager
def meter(
    label: str, every: float = 15.0, unit: str = "", begin: int = 0
) -> Iterator[Callable[[int, int | None], None]]:
    """For work that reports itself: gives a function ``update(done, total)``; ``begin`` items were done before.

    With a ``unit`` the rate of the last minute is shown: "123 photos/s, 4 min left".
    """
    pace = Pace(unit, begin) if unit else None
    if _terminal:
        with _bar(label, pace) as bar:
            yield bar
        return
    started = logged = time.monotonic()

    def update(done: int, total: int | None) -> None:
        nonlocal logged
        now = time.monotonic()
        speed = pace(done, total, now) if pace else ""
        if now - logged >= every:
            logged = now
            counted = f"{done:,} of {total:,}" if total else f"{done:,}"
            log.info("%s", f"{label}: {counted}, {speed}" if pace else line(label, done, total, now - started))

    yield update


class Pace:
    """Rate and remaining time of some work, estimated from the last minute."""

    def __init__(self, unit: str, begin: int = 0, window: float = 60.0):
        self.unit, self.window = unit, window
        self.samples: deque[tuple[float, int]] = deque([(time.monotonic(), begin)])

    def __call__(self, done: int, total: int | None, now: float | None = None) -> str:
        now = time.monotonic() if now is None else now
        if now - self.samples[-1][0] >= self.window / 60:
            self.samples.append((now, done))
        while len(self.samples) > 2 and now - self.samples[1][0] >= self.window:
            self.samples.popleft()
        then, before = self.samples[0]
        rate = (done - before) / max(now - then, 1e-9)
        speed = f"{rate:.{0 if rate >= 10 else 1}f} {self.unit}/s"
        return f"{speed}, {duration((total - done) / rate)} left" if total and rate else speed


def line(label: str, done: int, total: int | None, seconds: float) -> str:
    rate = done / max(seconds, 1e-9)
    speed = f"{rate:.1f}/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.1f} s each"
    if not total:
        return f"{label}: {done} ({speed})"
    return f"{label}: {done}/{total} ({speed}, {duration((total - done) / max(rate, 1e-9))} left)"


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


@contextmanager
def _bar(label: str, pace: Pace | None = None) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    left = TextColumn("{task.fields[pace]}") if pace else TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left)
    # Results go to stdout: a bar must not redirect them to stderr.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(label, total=None, pace="")

        def update(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, pace=pace(done, total) if pace else "")

        yield update
