"""Batches of waiting photos, and the slots that limit the photos in flight."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from serving import wait_until

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from starlette.exceptions import HTTPException

from sightline.serve.app import Slots
from sightline.serve.batching import Batcher

PATIENCE = 60


# -- batches ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Doubles numbers in two stages, records which were together, and can be held up in the first."""

    def __init__(self, open_: bool = True, threads: int = 1, batch_size: int = 2) -> None:
        self.threads, self.batch_size = threads, batch_size
        self.encoded: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        if open_:
            self.gate.set()

    def encode(self, items: Sequence[int]) -> list[int]:
        self.encoded.append(list(items))
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        if 13 in items:
            raise ValueError("unlucky")
        return [item + 100 for item in items]

    def decode(self, encoded: Sequence[int], query: Any) -> list[int]:
        self.batches.append([item - 100 for item in encoded])
        if 17 in self.batches[-1]:
            raise ValueError("unluckier")
        return [2 * item for item in self.batches[-1]]


def submit(batcher: Batcher, items: Iterable[int], query: Any = "q") -> list[Any]:
    return [batcher.submit(item, query) for item in items]


def test_photos_that_arrive_while_a_batch_is_encoded_join_it_up_to_the_limit():
    work = Recorder(open_=False)
    batcher = Batcher(work, max_batch=4)
    batcher.start()
    first = submit(batcher, [0])
    assert work.entered.wait(PATIENCE)
    others = submit(batcher, range(1, 7))
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in first + others] == [0, 2, 4, 6, 8, 10, 12]
    assert work.encoded == [[0], [1, 2], [3], [4, 5], [6]]
    assert work.batches == [[0, 1, 2, 3], [4, 5, 6]]
    batcher.stop()


def test_only_equal_queries_share_a_batch_and_no_photo_waits_for_ever():
    work = Recorder(open_=False)
    batcher = Batcher(work, max_batch=2)
    batcher.start()
    answers = submit(batcher, [0])
    assert work.entered.wait(PATIENCE)
    for number in range(1, 6):
        answers += submit(batcher, [number], "odd" if number % 2 else "even")
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [0, 2, 4, 6, 8, 10]
    assert work.batches == [[0], [1, 3], [2, 4], [5]]
    batcher.stop()


def test_slow_queries_go_one_by_one_and_cancelled_photos_cost_nothing():
    @dataclass(frozen=True)
    class Long:
        alone: bool = True

    work = Recorder(open_=False)
    batcher = Batcher(work, max_batch=4)
    batcher.start()
    answers = submit(batcher, [0, 1, 2, 3], Long())
    assert work.entered.wait(PATIENCE)
    assert all(answer.cancel() for answer in answers[2:])
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in answers[:2]] == [0, 2]
    batcher.stop()
    assert work.batches == [[0], [1]]


def test_the_second_thread_does_not_wait_for_the_first():
    work = Recorder(open_=False, threads=2)
    batcher = Batcher(work, max_batch=4)
    batcher.start()
    answers = submit(batcher, [3])
    assert work.entered.wait(PATIENCE)
    work.entered.clear()
    answers += submit(batcher, [4])
    assert work.entered.wait(PATIENCE)
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [6, 8]
    batcher.stop()


def test_a_bad_photo_does_not_fail_the_others_in_its_batch():
    work = Recorder(open_=False, batch_size=8)
    batcher = Batcher(work, max_batch=8)
    batcher.start()
    answers = submit(batcher, [0])
    assert work.entered.wait(PATIENCE)
    answers += submit(batcher, [1, 13, 2, 17, 3])
    work.gate.set()
    for answer, expected in zip(answers, [0, 2, "unlucky", 4, "unluckier", 6]):
        if isinstance(expected, int):
            assert answer.result(PATIENCE) == expected
        else:
            with pytest.raises(ValueError, match=expected):
                answer.result(PATIENCE)
    assert batcher.alive
    batcher.stop()


def test_cancelled_photos_are_not_computed_and_stopping_finishes_the_rest():
    work = Recorder(open_=False, threads=2, batch_size=1)
    batcher = Batcher(work, max_batch=1)
    batcher.start()
    running = submit(batcher, [0, 1])
    wait_until(lambda: len(work.encoded) == 2, "both threads")
    gone, kept = submit(batcher, [2, 3])
    assert gone.cancel()
    assert not running[0].cancel(), "it is being computed"
    stopping = threading.Thread(target=batcher.stop)
    stopping.start()
    work.gate.set()
    stopping.join(PATIENCE)
    assert not batcher.alive
    assert [answer.result(0) for answer in (*running, kept)] == [0, 2, 6]
    assert sorted(work.batches) == [[0], [1], [3]]


def test_a_result_does_not_keep_its_photo_in_memory():
    class Photo:
        def __add__(self, number: int) -> int:
            return 7 + number

    work = Recorder()
    batcher = Batcher(work, max_batch=4)
    batcher.start()
    gc.disable()  # a photo that only the collector frees takes half a megabyte until then
    try:
        photo = Photo()
        gone = weakref.ref(photo)
        answer = batcher.submit(photo, "q")
        assert answer.result(PATIENCE) == 14
        del photo
        work.encoded.clear()
        wait_until(lambda: gone() is None, "the photo to go")
    finally:
        gc.enable()
    batcher.stop()


# -- slots ------------------------------------------------------------------------------------------------------------


def test_slots_are_released_however_a_request_ends():
    slots = Slots(3, 1000, Batcher(Recorder(), max_batch=4))
    with slots.request() as hold:
        hold.add_photos(3)
        assert slots.in_flight == 3
        with pytest.raises(HTTPException) as full, slots.request():
            pass
        assert full.value.status_code == 429
        assert int((full.value.headers or {})["Retry-After"]) >= 1
    with pytest.raises(KeyError), slots.request() as hold:
        hold.add_photos(2)
        hold.add_bytes(400)
        raise KeyError
    with pytest.raises(HTTPException), slots.request() as hold:
        hold.add_photos(4)
    with slots.request() as first, pytest.raises(HTTPException, match="uploads of 900 bytes are in flight"):
        first.add_bytes(900)
        with slots.request() as second:
            second.add_bytes(101)
    assert (slots.in_flight, slots.bytes) == (0, 0)
