"""From parts of inputs to finished parts of captions: photos are batched as they arrive, whatever part they belong to.

The same photos give the same captions at any batch size and any number of workers; a part's captions keep its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sightline.bulk.inputs import FinishedPart, JobPart
from sightline.bulk.reading import PartOpened, PhotoReader, PhotoResult
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import Captioner, PreparedImage
from sightline.io.interrupts import raise_if_lost
from sightline.types import Caption, Failure


@dataclass
class OpenPart:
    """A part of which some photos are still to be captioned."""

    part: JobPart
    remaining: int
    captions: dict[int, Caption] = field(default_factory=dict)  # by index in the part
    failures: dict[int, Failure] = field(default_factory=dict)  # the same; negative where the part had no photo


class BulkListener:
    """Is called as the work goes on; an exception raised here stops the work."""

    def opened(self, part: JobPart, photos: int) -> None:
        """A part has begun and holds so many photos."""

    def captioned(self, photos: int) -> None:
        """So many more photos are captioned."""

    def failed(self, failure: Failure) -> None:
        """An input could not be read."""


class BulkEngine:
    """A captioner and its reader processes; ``run(parts)`` gives each part as it is finished."""

    def __init__(
        self,
        captioner: Captioner,
        options: DecodingOptions,
        batch_size: int,
        workers: int,
        listener: BulkListener | None = None,
    ):
        self.captioner, self.options, self.batch_size = captioner, replace(options, want_attention=False), batch_size
        self.reader = PhotoReader(captioner.preprocesses, workers, ahead=4 * batch_size)
        self.listener = listener or BulkListener()

    def __enter__(self) -> BulkEngine:
        self.reader.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.__exit__(*error)

    def run(self, parts: Iterable[JobPart]) -> Iterator[FinishedPart]:
        open_parts: dict[int, OpenPart] = {}
        batch: list[PhotoResult] = []
        for event in self.reader.read(parts):
            if isinstance(event, PartOpened):
                number = event.part.number
                known = {-1 - index: failure for index, failure in enumerate(reversed(event.failures))}
                open_parts[number] = OpenPart(event.part, event.photos, failures=known)
                self.listener.opened(event.part, event.photos)
                for failure in event.failures:
                    self.listener.failed(failure)
                yield from self._close(open_parts, [number])
            elif isinstance(event.result, Failure):
                self.listener.failed(event.result)
                open_part = open_parts[event.part]
                open_part.failures[event.index] = event.result
                open_part.remaining -= 1
                yield from self._close(open_parts, [event.part])
            else:
                batch.append(event)
                if len(batch) == self.batch_size:
                    yield from self._caption(batch, open_parts)
                    batch = []
        if batch:
            yield from self._caption(batch, open_parts)

    def _caption(self, batch: Sequence[PhotoResult], open_parts: dict[int, OpenPart]) -> Iterator[FinishedPart]:
        raise_if_lost()
        images = [photo.result for photo in batch if not isinstance(photo.result, Failure)]
        for photo, caption in zip(batch, self.captions(images)):
            open_part = open_parts[photo.part]
            open_part.captions[photo.index] = caption
            open_part.remaining -= 1
        self.listener.captioned(len(batch))
        yield from self._close(open_parts, sorted({photo.part for photo in batch}))

    def captions(self, images: Sequence[PreparedImage]) -> list[Caption]:
        """Captions of photos that workers prepared."""
        features = self.captioner.encode(images)
        return self.captioner.finish(self.captioner.decode(features, self.options), features, images)

    @staticmethod
    def _close(open_parts: dict[int, OpenPart], numbers: Iterable[int]) -> Iterator[FinishedPart]:
        for number in numbers:
            open_part = open_parts[number]
            if open_part.remaining == 0:
                del open_parts[number]
                positions = sorted(open_part.captions)
                captions = [open_part.captions[index] for index in positions]
                failures = [failure for _, failure in sorted(open_part.failures.items())]
                yield FinishedPart(open_part.part, captions, positions, failures)
