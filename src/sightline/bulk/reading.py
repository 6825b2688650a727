"""Photos decoded in worker processes, answered in the order they are ready, never more at a time than fit.

A worker that dies (a reader of some image format crashing, or the system running out of memory) costs no one else: the
photos it had are tried again one by one, and the one that kills its worker again is reported as bad.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from sightline.bulk.inputs import Part
from sightline.data.tar import list_shard
from sightline.engine.backend import PreparedImage, prepare_image
from sightline.errors import DataError, ImageError
from sightline.io.files import FileSlice, is_image_path, printable
from sightline.io.images import Preprocess
from sightline.types import Failure

NO_WORKERS = "worker processes cannot be started on this machine: decode without them, --workers 0"
CHUNK = 4  # photos handed to a worker at once
Photo = str | FileSlice  # a file of its own, or one in a shard


@dataclass(frozen=True)
class Opened:
    """A part has begun: so many photos will follow, and so much is already known to be bad."""

    part: Part
    photos: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class Answer:
    """One photo of a part, ready for the encoder, or why not."""

    part: int
    place: int
    source: str
    found: PreparedImage | Failure


Event = Opened | Answer


class Reader:
    """``read(parts)`` gives each part's `Opened` and then its photos' `Answer`s, those of several parts mixed."""

    @property
    def work(self) -> Any:
        """What workers do with some photos."""
        return read_photos

    def __init__(self, preprocesses: Sequence[Preprocess], workers: int, ahead: int):
        self.preprocesses, self.workers = tuple(preprocesses), workers
        self.ahead = max(ahead, 2 * CHUNK * max(1, workers))
        self._pool: ProcessPoolExecutor | None = None
        self._renew = threading.Lock()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, parts: Iterable[Part]) -> Iterator[Event]:
        return self._read_here(parts) if self.workers == 0 else self._read_ahead(parts)

    # -- in this process ----------------------------------------------------------------------------------------------

    def _read_here(self, parts: Iterable[Part]) -> Iterator[Event]:
        for part in parts:
            photos, failures = photos_of(part)
            yield Opened(part, len(photos), tuple(failures))
            for place, photo in enumerate(photos):
                yield Answer(part.number, place, str(photo), read_photo(photo, self.preprocesses))

    # -- in workers ---------------------------------------------------------------------------------------------------

    def _read_ahead(self, parts: Iterable[Part]) -> Iterator[Event]:
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        room = threading.Semaphore(self.ahead)
        stopping = threading.Event()

        def feed() -> None:
            try:
                for part, photos, failures in self._listed(parts):
                    events.put(Opened(part, len(photos), tuple(failures)))
                    for first in range(0, len(photos), CHUNK):
                        chunk = photos[first : first + CHUNK]
                        for _ in chunk:
                            room.acquire()
                        if stopping.is_set():
                            return
                        self._send(part.number, first, chunk, events)
                for _ in range(self.ahead):  # everything sent has been answered
                    room.acquire()
                events.put(None)
            except BaseException as error:
                events.put(error)

        feeder = threading.Thread(target=feed, name="sightline-feeder", daemon=True)
        feeder.start()
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, Answer):
                    room.release()
                yield event
        finally:
            stopping.set()
            room.release(2 * self.ahead)
            feeder.join()

    def _listed(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Sequence[Photo], Sequence[Failure]]]:
        """Each part with its photos; while one is worked on, a worker lists the shard after it."""
        listing: deque[tuple[Part, Future[Any] | None]] = deque()
        for part in parts:
            listing.append((part, self._submit(photos_of, part) if part.shard else None))
            if len(listing) > 1:
                yield self._photos(*listing.popleft())
        while listing:
            yield self._photos(*listing.popleft())

    def _photos(self, part: Part, future: Future[Any] | None) -> tuple[Part, Sequence[Photo], Sequence[Failure]]:
        try:
            photos, failures = future.result() if future else photos_of(part)
        except BrokenExecutor:  # another's fault: listing decodes nothing
            photos, failures = photos_of(part)
        return part, photos, failures

    def _send(self, part: int, first: int, chunk: Sequence[Photo], events: queue.SimpleQueue[Any]) -> None:
        def ready(future: Future[Any]) -> None:
            try:
                found = self._found(future, chunk)
            except BaseException as error:
                events.put(error)
                return
            for place, (photo, one) in enumerate(zip(chunk, found), start=first):
                events.put(Answer(part, place, str(photo), one))

        self._submit(self.work, chunk).add_done_callback(ready)

    def _found(self, future: Future[Any], chunk: Sequence[Photo]) -> list[PreparedImage | Failure]:
        try:
            return future.result()
        except BrokenExecutor:
            return [self._alone(photo) for photo in chunk]

    def _submit(self, work: Any, argument: Any) -> Future[Any]:
        with self._renew:
            for _ in range(2):
                if self._pool is None:
                    self._pool = self._new_pool(self.workers)
                try:
                    with _hidden_main():
                        return self._pool.submit(work, argument)
                except BrokenExecutor:
                    self._pool = None
        raise DataError(NO_WORKERS)

    def _alone(self, photo: Photo) -> PreparedImage | Failure:
        """A photo whose worker died: once more, in a process that has nothing else to lose."""
        try:
            return self._try(self.work, [photo])[0]
        except BrokenExecutor:
            pass
        try:
            self._try(len, [])
        except BrokenExecutor:  # not the photo's fault
            raise DataError(NO_WORKERS) from None
        return Failure(str(photo), "ends the process that decodes it: leave it out, or save it anew")

    def _try(self, work: Any, argument: Any) -> Any:
        with self._new_pool(1) as pool:
            with _hidden_main():
                future = pool.submit(work, argument)
            return future.result()

    def _new_pool(self, workers: int) -> ProcessPoolExecutor:
        # A server that has imported torch once forks the workers: no copy of our model, no threads of ours in them.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([__name__])
        return ProcessPoolExecutor(workers, context, _start_worker, (self.preprocesses,))


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Workers start without the user's script: one without ``if __name__ == "__main__"`` would run again in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# -- what workers run -------------------------------------------------------------------------------------------------

_preprocesses: tuple[Preprocess, ...] = ()


def _start_worker(preprocesses: tuple[Preprocess, ...]) -> None:
    global _preprocesses
    _preprocesses = preprocesses
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent killed outright cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def read_photos(photos: Sequence[Photo]) -> list[PreparedImage | Failure]:
    return [read_photo(photo, _preprocesses) for photo in photos]


def photos_of(part: Part) -> tuple[list[Photo], list[Failure]]:
    """A part's photos, and what is known to be bad without looking."""
    if part.shard:
        files, failures = list_shard(part.shard)
        return [file for file in files if is_image_path(file.name)], failures
    photos: list[Photo] = [name for name in part.photos if isinstance(name, str)]
    return photos, [failure for failure in part.photos if isinstance(failure, Failure)]


def read_photo(photo: Photo, preprocesses: Sequence[Preprocess]) -> PreparedImage | Failure:
    name = str(photo)
    try:
        return prepare_image(photo, preprocesses)
    except ImageError as error:
        return Failure(name, str(error).removeprefix(printable(name)).lstrip())
    except (MemoryError, ValueError, RuntimeError) as error:
        return Failure(name, f"cannot be decoded ({type(error).__name__}): save it anew")
