"""What Prometheus may ask: how many requests, how long they took, how full batches and the house are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """A registry of its own, so that two servers in one process do not count for each other."""

    def __init__(self, paths: frozenset[str], taken: Callable[[], int]):
        self.paths = paths
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        ours: Any = {"registry": self.registry}
        self.requests = Counter("sightline_requests", "Requests answered.", ["path", "status"], **ours)
        taken_by = "From a request's head to the end of its answer."
        self.seconds = Histogram("sightline_request_seconds", taken_by, ["path"], buckets=SECONDS, **ours)
        self.photos = Counter("sightline_photos", "Photos described.", **ours)
        self.batches = Histogram("sightline_batch_photos", "Photos computed at once.", buckets=SIZES, **ours)
        self.computing = Counter("sightline_model_seconds", "Time the model's threads were busy.", **ours)
        self.hung_up = Counter("sightline_hung_up", "Clients that left before their answer.", **ours)
        places = Gauge("sightline_places_taken", "Photos arriving, waiting or being captioned.", **ours)
        places.set_function(taken)

    def answered(self, path: str, status: int, seconds: float) -> None:
        label = path if path in self.paths else "other"
        self.requests.labels(label, str(status)).inc()
        self.seconds.labels(label).observe(seconds)

    def computed(self, count: int, seconds: float) -> None:
        self.photos.inc(count)
        self.batches.observe(count)
        self.computing.inc(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
