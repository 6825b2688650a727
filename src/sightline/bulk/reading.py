"""Photos opened and preprocessed in worker processes, given in the order they are ready, a bounded number at a time.

A worker may die: the library of some image format crashes, or the system runs out of memory. Then the photos it had are
tried again one by one, and the one that kills its worker again is reported as bad.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from sightline.bulk.inputs import JobPart
from sightline.data.shards import list_shard
from sightline.engine.captioner import PreparedImage, prepare_image
from sightline.errors import DataError, ImageError
from sightline.io.files import FileSlice, is_image_path, printable
from sightline.io.interrupts import left_to_parent
from sightline.io.preprocess import Preprocess
from sightline.types import Failure

NO_WORKERS = "worker processes cannot be started on this machine: decode without them, --workers 0"
CHUNK = 4  # photos sent to a worker at once
Argument = TypeVar("Argument")
Result = TypeVar("Result")
PhotoSource = str | FileSlice  # a file, or a byte range of a shard


@dataclass(frozen=True)
class PartOpened:
    """A part has begun: so many photos follow, and these inputs are already known to be bad."""

    part: JobPart
    photos: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class PhotoResult:
    """One photo of a part, ready for the encoder, or the reason why not."""

    part: int
    index: int  # in the part
    result: PreparedImage | Failure


Event = PartOpened | PhotoResult


class PhotoReader:
    """``read(parts)`` gives each part's `PartOpened`, then its `PhotoResult`s; those of several parts are mixed."""

    @property
    def work(self) -> Callable[[Sequence[PhotoSource]], list[PreparedImage | Failure]]:
        """The function that workers run on some photos."""
        return read_photos

    def __init__(self, preprocesses: Sequence[Preprocess], workers: int, ahead: int):
        self.preprocesses, self.workers = tuple(preprocesses), workers
        self.ahead = max(ahead, 2 * CHUNK * max(1, workers))
        self._pool: ProcessPoolExecutor | None = None
        self._renew = threading.Lock()
        self._closed = False

    def __enter__(self) -> PhotoReader:
        self._closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with self._renew:  # a worker that is just being started needs us until it runs
            if self._pool:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, parts: Iterable[JobPart]) -> Iterator[Event]:
        return self._read_here(parts) if self.workers == 0 else self._read_ahead(parts)

    # -- in this process ----------------------------------------------------------------------------------------------

    def _read_here(self, parts: Iterable[JobPart]) -> Iterator[Event]:
        for part in parts:
            photos, failures = list_photos(part)
            yield PartOpened(part, len(photos), tuple(failures))
            for index, photo in enumerate(photos):
                yield PhotoResult(part.number, index, read_photo(photo, self.preprocesses))

    # -- in workers ---------------------------------------------------------------------------------------------------

    def _read_ahead(self, parts: Iterable[JobPart]) -> Iterator[Event]:
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        room = threading.Semaphore(self.ahead)
        stopping = threading.Event()

        def feed() -> None:
            try:
                for part, photos, failures in self._listed(parts):
                    events.put(PartOpened(part, len(photos), tuple(failures)))
                    for first in range(0, len(photos), CHUNK):
                        chunk = photos[first : first + CHUNK]
                        for _ in chunk:
                            room.acquire()
                        if stopping.is_set():
                            return
                        self._send(part.number, first, chunk, events)
                for _ in range(self.ahead):  # every photo sent has come back
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
                if isinstance(event, PhotoResult):
                    room.release()
                yield event
        finally:
            stopping.set()
            room.release(2 * self.ahead)
            feeder.join()

    def _listed(self, parts: Iterable[JobPart]) -> Iterator[tuple[JobPart, Sequence[PhotoSource], Sequence[Failure]]]:
        """Each part with its photos; while one is worked on, a worker lists the shard after it."""
        listing: deque[tuple[JobPart, Future[Any] | None]] = deque()
        for part in parts:
            listing.append((part, self._submit(list_photos, part) if part.shard else None))
            if len(listing) > 1:
                yield self._photos(*listing.popleft())
        while listing:
            yield self._photos(*listing.popleft())

    def _photos(
        self, part: JobPart, future: Future[Any] | None
    ) -> tuple[JobPart, Sequence[PhotoSource], Sequence[Failure]]:
        try:
            photos, failures = future.result() if future else list_photos(part)
        except BrokenExecutor:  # by another task: listing decodes nothing
            photos, failures = list_photos(part)
        return part, photos, failures

    def _send(self, part: int, first: int, chunk: Sequence[PhotoSource], events: queue.SimpleQueue[Any]) -> None:
        def ready(future: Future[list[PreparedImage | Failure]]) -> None:
            try:
                results = self._results(future, chunk)
            except BaseException as error:
                events.put(error)
                return
            for index, result in enumerate(results, start=first):
                events.put(PhotoResult(part, index, result))

        self._submit(self.work, chunk).add_done_callback(ready)

    def _results(
        self, future: Future[list[PreparedImage | Failure]], chunk: Sequence[PhotoSource]
    ) -> list[PreparedImage | Failure]:
        try:
            return future.result()
        except BrokenExecutor:
            return [self._alone(photo) for photo in chunk]

    def _submit(self, work: Callable[[Argument], Result], argument: Argument) -> Future[Result]:
        with self._renew:
            if self._closed:
                raise RuntimeError("the reader was closed")
            for _ in range(2):
                if self._pool is None:
                    self._pool = self._new_pool(self.workers)
                try:
                    with _hidden_main(), left_to_parent():
                        return self._pool.submit(work, argument)
                except BrokenExecutor:
                    self._pool = None
        raise DataError(NO_WORKERS)

    def _alone(self, photo: PhotoSource) -> PreparedImage | Failure:
        """Try a photo whose worker died once more, in a process of its own."""
        try:
            return self._try(self.work, [photo])[0]
        except BrokenExecutor:
            pass
        try:
            self._try(len, [])
        except BrokenExecutor:  # not the photo's fault
            raise DataError(NO_WORKERS) from None
        return Failure(str(photo), "crashes the process that decodes it: leave it out, or save it anew")

    def _try(self, work: Callable[[Argument], Result], argument: Argument) -> Result:
        with self._new_pool(1) as pool:
            with _hidden_main(), left_to_parent():
                future = pool.submit(work, argument)
            return future.result()

    def _new_pool(self, workers: int) -> ProcessPoolExecutor:
        # A server process that has imported everything once forks the workers: without our model and our threads.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows, where `left_to_parent` does nothing
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers: they end themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def read_photos(photos: Sequence[PhotoSource]) -> list[PreparedImage | Failure]:
    return [read_photo(photo, _preprocesses) for photo in photos]


def list_photos(part: JobPart) -> tuple[list[PhotoSource], list[Failure]]:
    """A part's photos, and the inputs that are known to be bad before any is opened."""
    if part.shard:
        files, failures = list_shard(part.shard)
        return [file for file in files if is_image_path(file.name)], failures
    photos: list[PhotoSource] = [name for name in part.photos if isinstance(name, str)]
    return photos, [failure for failure in part.photos if isinstance(failure, Failure)]


def read_photo(photo: PhotoSource, preprocesses: Sequence[Preprocess]) -> PreparedImage | Failure:
    name = str(photo)
    try:
        return prepare_image(photo, preprocesses)
    except ImageError as error:
        return Failure(name, str(error).removeprefix(printable(name)).lstrip())
    except (MemoryError, ValueError, RuntimeError) as error:
        return Failure(name, f"cannot be decoded ({type(error).__name__}): save it anew")
