"""Ctrl-C in real processes: the first stops cleanly, the second at once, both with exit code 130.

`sightline serve` and `watch` run until the first one, which is no interruption: they exit with 0.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bulking import check_complete, descendants, make_photos, parts
from commands import ENVIRONMENT, MAIN, MINDS_INTERRUPTS, process, tiny_recipe

from sightline.io.interrupts import left_to_parent

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
Start = Callable[..., subprocess.Popen]
BULK = ("--workers", 2, "--device", "cpu", "--part-size", 2, "--batch-size", 2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the command in a session of its own, with its messages in a file."""
    running: list[subprocess.Popen] = []

    def run(*arguments: object, code: str = MAIN) -> subprocess.Popen:
        line = [sys.executable, "-c", MINDS_INTERRUPTS + code, *map(str, arguments)]
        with (tmp_path / "messages").open("w") as messages:
            running.append(subprocess.Popen(line, stderr=messages, start_new_session=True, env=ENVIRONMENT))
        return running[-1]

    yield run
    for one in running:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def wait_for(ready: Callable[[], object], running: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert running.poll() is None, f"ended too early with code {running.returncode}"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)


def press(running: subprocess.Popen, times: int, distance: float = 0.05) -> int:
    """Ctrl-C, which a terminal sends to the command and its children; returns the exit code."""
    for number in range(times):
        if number:
            time.sleep(distance)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)
    return running.wait(timeout=60)


def test_a_bulk_job_interrupted_in_every_way_loses_and_doubles_no_row(
    start: Start, tiny_flickr8k_kept: Path, tmp_path: Path
) -> None:
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", 40)
    output = tmp_path / "captions.jsonl"
    command = ("bulk", photos, "-o", output, *BULK)
    for times in (1, 5):
        done = len(parts(output))
        running = start(*command)
        wait_for(lambda done=done: len(parts(output)) > done, running)
        children = descendants(running.pid)
        assert children
        assert press(running, times) == 130
        messages = (tmp_path / "messages").read_text()
        assert "Traceback" not in messages and messages.endswith(("interrupted\n", "stopped at once\n")), messages
        if times == 1:
            assert "of 40 photos are saved; run the same command to continue\ninterrupted\n" in messages
        wait_for_end(children)
    assert process(*command).code == 1  # the broken photos
    check_complete(photos, output)


def wait_for_end(children: list[int]) -> None:
    end = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, "left behind"
        time.sleep(0.01)


def test_a_second_interrupt_does_not_wait_for_workers_that_hang(
    start: Start, tiny_flickr8k_kept: Path, tmp_path: Path
) -> None:
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", 40)
    output = tmp_path / "captions.jsonl"
    running = start("bulk", photos, "-o", output, *BULK)
    wait_for(lambda: parts(output), running)
    children = descendants(running.pid)
    for child in children:
        os.kill(child, signal.SIGSTOP)
    running.send_signal(signal.SIGINT)
    wait_for(lambda: "interrupted" in (tmp_path / "messages").read_text(), running)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.5)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) == 130
    assert (tmp_path / "messages").read_text().endswith("interrupted\nstopped at once\n")
    for child in children:  # the workers are killed; the process that forked them ends once it runs again
        if Path(f"/proc/{child}").exists():
            os.kill(child, signal.SIGCONT)
    wait_for_end(children)


def test_an_interrupt_that_a_library_turns_into_its_own_error_is_an_interrupt(start: Start, tmp_path: Path) -> None:
    code = """
import sys, time
from sightline.__main__ import main
from sightline.cli import app

@app.command()
def stubborn():
    try:
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        exec("raise RuntimeError('import failed')")

main()
"""
    running = start("stubborn", code=code)
    wait_for(lambda: "ready" in (tmp_path / "messages").read_text(), running)
    assert press(running, 1) == 130
    assert (tmp_path / "messages").read_text() == "ready\ninterrupted\n"


LOSING = """
import signal
from sightline.bulk.{module} import {name} as Loser

class Lost:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)  # Python reports an exception in a destructor, and goes on

whole, lost = Loser.{method}, []

def losing(*arguments):
    if not lost:
        lost.append(True)
        Lost()
    return whole(*arguments)

Loser.{method} = losing
"""


@pytest.mark.parametrize(
    ("verb", "module", "name", "method", "exit_code", "end"),
    [
        ("watch", "watch", "Arrivals", "scan", 0, "captioned in this run: {output}\n"),
        ("bulk", "engine", "BulkEngine", "captions", 130, "interrupted\n"),
    ],
)
def test_an_interrupt_that_was_lost_in_a_destructor_ends_the_work_all_the_same(
    start: Start,
    tiny_flickr8k_kept: Path,
    tiny_model: Path,
    tmp_path: Path,
    verb: str,
    module: str,
    name: str,
    method: str,
    exit_code: int,
    end: str,
) -> None:
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", 40)
    code = LOSING.format(module=module, name=name, method=method) + MAIN
    output = tmp_path / "c.csv"
    options = ("-o", output, "--model", tiny_model, "--workers", 0, "--batch-size", 4)
    assert start(verb, photos, *options, code=code).wait(timeout=60) == exit_code
    messages = (tmp_path / "messages").read_text()
    assert "Lost.__del__" in messages and messages.endswith(end.format(output=output)), messages


def test_training_stops_after_its_batch_or_at_once_and_resumes(
    start: Start, tiny_flickr8k_kept: Path, tmp_path: Path
) -> None:
    recipe, model = tmp_path / "tiny.toml", tmp_path / "model"
    recipe.write_text(tiny_recipe())
    command = ("train", recipe, "--data", tiny_flickr8k_kept, "-o", model, "--set", "training.epochs=1000")
    state = model / "state.safetensors"
    for times, resume in ((2, []), (1, ["--resume"])):
        before = state.stat().st_mtime_ns if state.exists() else 0
        running = start(*command, *resume)
        wait_for(lambda before=before: state.exists() and state.stat().st_mtime_ns > before, running)
        assert press(running, times) == 130
        messages = (tmp_path / "messages").read_text()
        assert "Traceback" not in messages
    data, change = ("--data", tiny_flickr8k_kept), ("--set", "training.epochs=1000")
    again = ["train", str(recipe), *map(str, data), *change, "--output", str(model), "--resume"]
    assert messages.endswith(f", all saved\nto continue: {shlex.join(['sightline', *again])}\ninterrupted\n")
    assert start(*again, "--set", "training.epochs=1").wait(timeout=100) == 2, (tmp_path / "messages").read_text()
    assert (
        "training.epochs; resume with the same recipe and the same --set options" in (tmp_path / "messages").read_text()
    )


def test_a_search_that_is_interrupted_shows_no_half_result_and_goes_on_next_time(
    start: Start,
    tiny_flickr8k_kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", 40)
    monkeypatch.setitem(ENVIRONMENT, "SIGHTLINE_CACHE", str(tmp_path / "cache"))
    running = start("search", "dog", photos)
    wait_for(lambda: list(tmp_path.glob("cache/search/*/captions.jsonl")), running)
    assert press(running, 1) == 130
    messages = (tmp_path / "messages").read_text()
    assert "are saved; run the same command to continue\ninterrupted\n" in messages and "matches" not in messages


def test_processes_that_are_left_to_their_parent_do_not_see_an_interrupt() -> None:
    code = "import signal, time; print('up', flush=True); time.sleep(0.2); print('alive')"
    with left_to_parent():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.read() == "alive\n" and child.wait() == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
