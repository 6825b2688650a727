"""Photos that wait together: how the server makes batches of them, and how it gives its places."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from serving import wait_until

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install fastapi uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from sightline.serve.batching import Batcher
from sightline.serve.http_errors import Refusal
from sightline.serve.slots import Places

PATIENCE = 60


# -- batches ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Doubles numbers in two halves, notes which came together, and can be held up in the first."""

    def __init__(self, open_: bool = True, threads: int = 1, batch_size: int = 2) -> None:
        self.threads, self.batch_size = threads, batch_size
        self.looks: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        if open_:
            self.gate.set()

    def encode(self, items: Sequence[int]) -> list[int]:
        self.looks.append(list(items))
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        if 13 in items:
            raise ValueError("unlucky")
        return [item + 100 for item in items]

    def decode(self, seen: Sequence[int], question: Any) -> list[int]:
        self.batches.append([item - 100 for item in seen])
        if 17 in self.batches[-1]:
            raise ValueError("unluckier")
        return [2 * item for item in self.batches[-1]]


def submit(batcher: Batcher, items: Iterable[int], question: Any = "q") -> list[Any]:
    return [batcher.submit(item, question) for item in items]


def test_what_comes_while_a_batch_is_looked_at_joins_it_up_to_the_limit():
    work = Recorder(open_=False)
    batcher = Batcher(work, most=4)
    batcher.start()
    first = submit(batcher, [0])
    assert work.entered.wait(PATIENCE)
    others = submit(batcher, range(1, 7))
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in first + others] == [0, 2, 4, 6, 8, 10, 12]
    assert work.looks == [[0], [1, 2], [3], [4, 5], [6]]
    assert work.batches == [[0, 1, 2, 3], [4, 5, 6]]
    batcher.stop()


def test_only_equal_questions_go_together_and_nobody_is_overtaken_for_ever():
    work = Recorder(open_=False)
    batcher = Batcher(work, most=2)
    batcher.start()
    answers = submit(batcher, [0])
    assert work.entered.wait(PATIENCE)
    for number in range(1, 6):
        answers += submit(batcher, [number], "odd" if number % 2 else "even")
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [0, 2, 4, 6, 8, 10]
    assert work.batches == [[0], [1, 3], [2, 4], [5]]
    batcher.stop()


def test_what_takes_long_goes_one_by_one_and_stops_when_it_is_given_up():
    @dataclass(frozen=True)
    class Long:
        alone: bool = True

    work = Recorder(open_=False)
    batcher = Batcher(work, most=4)
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
    batcher = Batcher(work, most=4)
    batcher.start()
    answers = submit(batcher, [3])
    assert work.entered.wait(PATIENCE)
    work.entered.clear()
    answers += submit(batcher, [4])
    assert work.entered.wait(PATIENCE)
    work.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [6, 8]
    batcher.stop()


def test_a_bad_item_spoils_none_of_its_neighbours():
    work = Recorder(open_=False, batch_size=8)
    batcher = Batcher(work, most=8)
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


def test_what_is_cancelled_is_not_computed_and_stopping_finishes_the_rest():
    work = Recorder(open_=False, threads=2, batch_size=1)
    batcher = Batcher(work, most=1)
    batcher.start()
    running = submit(batcher, [0, 1])
    wait_until(lambda: len(work.looks) == 2, "both threads")
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


def test_an_answer_keeps_its_photo_alive_no_longer():
    class Photo:
        def __add__(self, number: int) -> int:
            return 7 + number

    work = Recorder()
    batcher = Batcher(work, most=4)
    batcher.start()
    gc.disable()  # what waits to be found by it is memory taken meanwhile, half a megabyte for each photo
    try:
        photo = Photo()
        gone = weakref.ref(photo)
        answer = batcher.submit(photo, "q")
        assert answer.result(PATIENCE) == 14
        del photo
        work.looks.clear()
        wait_until(lambda: gone() is None, "the photo to go")
    finally:
        gc.enable()
    batcher.stop()


# -- places -----------------------------------------------------------------------------------------------------------


def test_places_are_given_back_however_a_request_ends():
    batcher = Batcher(Recorder(), most=4)
    places = Places(3, batcher)
    with places.take() as place:
        place.widen(3)
        assert places.taken == 3
        with pytest.raises(Refusal) as refused, places.take():
            pass
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
    with pytest.raises(KeyError), places.take():
        raise KeyError
    with pytest.raises(Refusal), places.take() as place:
        place.widen(4)
    assert places.taken == 0
