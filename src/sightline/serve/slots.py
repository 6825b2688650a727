"""Who may come in: so many photos in the house at once, and no more.

A request takes one place when its head arrives, before any of its body is read, and one for each photo once they are
counted. However it ends (answered, refused, timed out, hung up), it gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sightline.serve.batching import Batcher
from sightline.serve.http_errors import Refusal


class Places:
    """Used from the event loop only, so that nothing needs a lock."""

    def __init__(self, most: int, batcher: Batcher):
        self.most, self.batcher = most, batcher
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[Place]:
        place = Place(self)
        try:
            place.widen(1)
            yield place
        finally:
            place.leave()

    def full(self) -> Refusal:
        seconds = self.batcher.seconds_for(self.taken)
        photos = "1 photo is" if self.taken == 1 else f"{self.taken} photos are"
        return Refusal(429, f"{photos} waiting already: try again later", {"Retry-After": str(seconds)})


class Place:
    """A request's places."""

    def __init__(self, places: Places):
        self.places = places
        self.count = 0

    def widen(self, count: int) -> None:
        """Have ``count`` places in all, or be refused."""
        more = count - self.count
        if self.places.taken + more > self.places.most:
            raise self.places.full()
        self.places.taken += more
        self.count += more

    def leave(self) -> None:
        self.places.taken -= self.count
        self.count = 0
