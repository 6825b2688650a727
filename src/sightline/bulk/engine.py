"""From parts of inputs to finished parts of captions: photos are batched as they arrive, whatever part they are of.

The same photos give the same captions at any batch size and any number of workers; a part's captions keep its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sightline.bulk.inputs import Part
from sightline.bulk.reading import Answer, Opened, Reader
from sightline.decoding import DecodingOptions
from sightline.engine.backend import PreparedImage
from sightline.engine.captioner import Captioner
from sightline.types import Caption, Failure


@dataclass
class Open:
    """A part that is being worked on."""

    part: Part
    waiting: int
    captions: dict[int, Caption] = field(default_factory=dict)  # by place
    failures: list[tuple[int, Failure]] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    part: Part
    captions: list[Caption]
    failures: list[Failure]


class Watcher:
    """Hears how the work goes; one that raises stops it."""

    def opened(self, part: Part, photos: int) -> None:
        """A part has begun and holds so many photos."""

    def captioned(self, photos: int) -> None:
        """So many more are done."""

    def failed(self, failure: Failure) -> None:
        """An input could not be read."""


class Engine:
    """A model and its workers; ``run(parts)`` gives the parts as they are finished."""

    def __init__(
        self,
        captioner: Captioner,
        options: DecodingOptions,
        batch_size: int,
        workers: int,
        watcher: Watcher | None = None,
    ):
        self.captioner, self.options, self.batch_size = captioner, replace(options, want_attention=False), batch_size
        self.reader = Reader(captioner.preprocesses, workers, ahead=4 * batch_size)
        self.watcher = watcher or Watcher()

    def __enter__(self) -> Engine:
        self.reader.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.__exit__(*error)

    def run(self, parts: Iterable[Part]) -> Iterator[Finished]:
        open_parts: dict[int, Open] = {}
        batch: list[Answer] = []
        for event in self.reader.read(parts):
            if isinstance(event, Opened):
                opened = open_parts[event.part.number] = Open(event.part, event.photos)
                opened.failures = [(-1, failure) for failure in event.failures]
                self.watcher.opened(event.part, event.photos)
                for failure in event.failures:
                    self.watcher.failed(failure)
                yield from self._close(open_parts, [event.part.number])
            elif isinstance(event.found, Failure):
                self.watcher.failed(event.found)
                opened = open_parts[event.part]
                opened.failures.append((event.place, event.found))
                opened.waiting -= 1
                yield from self._close(open_parts, [event.part])
            else:
                batch.append(event)
                if len(batch) == self.batch_size:
                    yield from self._caption(batch, open_parts)
                    batch = []
        if batch:
            yield from self._caption(batch, open_parts)

    def _caption(self, batch: Sequence[Answer], open_parts: dict[int, Open]) -> Iterator[Finished]:
        images = [answer.found for answer in batch if not isinstance(answer.found, Failure)]
        for answer, caption in zip(batch, self.captions(images)):
            opened = open_parts[answer.part]
            opened.captions[answer.place] = caption
            opened.waiting -= 1
        self.watcher.captioned(len(batch))
        yield from self._close(open_parts, sorted({answer.part for answer in batch}))

    def captions(self, images: Sequence[PreparedImage]) -> list[Caption]:
        """Captions of photos that workers prepared."""
        features = self.captioner.encode(images)
        return self.captioner.finish(self.captioner.decode(features, self.options), features, images)

    @staticmethod
    def _close(open_parts: dict[int, Open], numbers: Iterable[int]) -> Iterator[Finished]:
        for number in numbers:
            opened = open_parts[number]
            if opened.waiting == 0:
                del open_parts[number]
                captions = [opened.captions[place] for place in sorted(opened.captions)]
                failures = [failure for _, failure in sorted(opened.failures, key=lambda pair: pair[0])]
                yield Finished(opened.part, captions, failures)
