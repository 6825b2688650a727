"""Bulk jobs that are killed, stopped, started twice, or losing their workers."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from bulk_deadly import read_or_die
from bulking import (
    PART,
    bulk,
    check_complete,
    descendants,
    in_child,
    kill_at_operation,
    lines,
    make_photos,
    parts,
    was_killed,
)

import sightline
from sightline.bulk import job_folder
from sightline.bulk.inputs import JobPart
from sightline.bulk.job_folder import JobFolder
from sightline.bulk.reading import PhotoReader, PhotoResult
from sightline.errors import ConfigError, DataError
from sightline.io.preprocess import Preprocess
from sightline.types import Failure

posix = pytest.mark.skipif(os.name != "posix", reason="signals and fork are POSIX")
COUNT = 160


@pytest.fixture(scope="module")
def many(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough photos to be interrupted; only to be read."""
    return make_photos(tiny_flickr8k_kept, tmp_path_factory.mktemp("many") / "photos", COUNT)


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    """A few, free to be taken away."""
    return make_photos(tiny_flickr8k_kept, tmp_path / "photos", 5 * PART)


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


# -- killed and stopped -----------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments_nothing_is_lost_or_done_twice(
    photos: Path, tiny_model: Path, tmp_path: Path, seed: int
):
    output, moments = tmp_path / "captions.jsonl", random.Random(seed)
    kills, before = 0, dict[str, int]()

    def run() -> None:
        kill_at_operation(moment, output)
        bulk(photos, output, tiny_model)

    moment = moments.randrange(1, 40)
    while was_killed(in_child(run)):
        kills += 1
        now = parts(output)
        if now:  # otherwise it was killed before the first part, or after the parts had become one table
            assert {name: now.get(name) for name in before} == before, "a finished part was written again"
        before, moment = now, moments.randrange(1, 40)
    assert kills
    again = bulk(photos, output, tiny_model)
    broken = len(lines(output.with_suffix(".errors.jsonl")))
    assert again.photos == again.failed == broken > 0, "the last run had left something to do"
    check_complete(photos, output)
    assert list(tmp_path.glob(".*")) == []


@posix
def test_killed_at_any_step_of_its_end_the_next_run_completes_it(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for photo in sorted(photos.iterdir())[2:-2]:
        photo.unlink()
    finish, step = JobFolder.finish, 0

    def run() -> None:
        bulk(photos, output, tiny_model)

    def dying(self: JobFolder, facts: dict) -> int:
        kill_at_operation(step, output)
        return finish(self, facts)

    while True:
        step += 1
        output = tmp_path / str(step) / "captions.jsonl"
        with monkeypatch.context() as patched:
            patched.setattr(JobFolder, "finish", dying)
            if not was_killed(in_child(run)):
                break
        again = bulk(photos, output, tiny_model)
        assert again.photos in (0, 1), "the broken one at most"
        assert again.failed == 1, "its failure is told every time"
        check_complete(photos, output)
        left = sorted(path.name for path in output.parent.iterdir())
        assert left == ["captions.errors.jsonl", "captions.jsonl", "captions.jsonl.job.json"], f"step {step}"
    assert step > 10


@posix
def test_killed_while_it_joins_the_parts_it_leaves_no_half_table(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "captions[1].jsonl"  # brackets mean something to glob

    def die(form: str, tables: object, temporary: Path) -> None:
        temporary.write_text("half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(job_folder, "merge", die)
        assert was_killed(in_child(lambda: bulk(photos, output, tiny_model)))
    assert [path.read_text() for path in tmp_path.glob(".*")] == ["half of it"]
    assert bulk(photos, output, tiny_model).photos == 0
    check_complete(photos, output)
    assert list(tmp_path.glob(".*")) == []


@posix
def test_the_command_killed_with_its_workers_goes_on_elsewhere(many: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "captions.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = ["bulk", many, "-m", tiny_model, "-o", output, "--workers", 1, "--part-size", PART, "--batch-size", 3]
    process = subprocess.Popen([sys.executable, "-m", "sightline", *map(str, command)], env=environment)
    wait_until(lambda: len(parts(output)) >= 2 or process.poll() is not None)
    family = descendants(process.pid)
    assert family
    process.kill()
    assert process.wait() == -signal.SIGKILL, "finished before it could be killed"
    done = parts(output)
    assert 2 <= len(done) < COUNT // PART
    wait_until(lambda: not any(map(is_alive, family)), 30)  # workers do not outlive their parent
    assert bulk(many, output, tiny_model).photos == COUNT - PART * len(done)
    check_complete(many, output)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@posix
def test_stopped_and_continued_and_a_second_run_meanwhile(many: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "captions.jsonl"
    child = in_child(lambda: bulk(many, output, tiny_model))
    try:
        wait_until(lambda: len(parts(output)) >= 2)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        before = parts(output)
        assert len(before) < COUNT // PART
        with pytest.raises(ConfigError, match=f"being written by another run .process {child} "):
            bulk(many, output, tiny_model)
        assert parts(output) == before
    finally:
        os.kill(child, signal.SIGCONT)
        assert not was_killed(child)
    check_complete(many, output)


# -- workers ----------------------------------------------------------------------------------------------------------


@posix
def test_a_killed_worker_costs_nothing(photos: Path):
    names = tuple(sorted(map(str, photos.iterdir())))
    with PhotoReader([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader:
        events = reader.read([JobPart(0, names)])
        results = [event for event in islice(events, 4) if isinstance(event, PhotoResult)]
        assert reader._pool is not None
        for worker in list(reader._pool._processes):
            os.kill(worker, signal.SIGKILL)
        results += [event for event in events if isinstance(event, PhotoResult)]
    assert sorted(result.index for result in results) == list(range(len(names)))
    failed = [result.index for result in results if isinstance(result.result, Failure)]
    assert sorted(failed) == [index for index in range(len(names)) if index % 10 == 9]


@posix
def test_a_photo_that_ends_every_process_is_reported_alone(photos: Path):
    class Deadly(PhotoReader):
        work = staticmethod(read_or_die)

    names = tuple(sorted(map(str, photos.iterdir())))[:8]
    with Deadly([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader:
        results = [event for event in reader.read([JobPart(0, names)]) if isinstance(event, PhotoResult)]
    assert sorted(result.index for result in results) == list(range(8))
    (failed,) = [photo.result for photo in results if isinstance(photo.result, Failure)]
    assert failed.source == names[2]
    assert failed.reason.startswith("crashes the process that decodes it")


@posix
def test_workers_that_cannot_start_stop_the_job_and_reject_no_photo(photos: Path):
    class Stillborn(PhotoReader):
        def _new_pool(self, workers: int) -> ProcessPoolExecutor:
            context = multiprocessing.get_context("forkserver")
            return ProcessPoolExecutor(workers, context, initializer=os._exit, initargs=(1,))

    names = tuple(sorted(map(str, photos.iterdir())))[:2]
    with (
        Stillborn([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader,
        pytest.raises(DataError, match="worker processes cannot be started"),
    ):
        list(reader.read([JobPart(0, names)]))


SCRIPT = """
from pathlib import Path
from sightline.bulk.job_folder import BulkOutput
from sightline.bulk.job import BulkOptions, caption_all
Path({log!r}).open("a").write("x")
output = BulkOutput(Path({output!r}), "jsonl", False)
caption_all([{photos!r}], output, [{model!r}], BulkOptions(workers=2, part_size=8))
"""


@posix
def test_a_script_without_a_guard_runs_once(photos: Path, tiny_model: Path, tmp_path: Path):
    log, output = tmp_path / "log", tmp_path / "captions.jsonl"
    values = {"log": log, "photos": photos, "output": output, "model": tiny_model}
    (tmp_path / "script.py").write_text(SCRIPT.format(**{name: str(value) for name, value in values.items()}))
    environment = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(tmp_path / "script.py")], env=environment, check=True, timeout=600)
    assert log.read_text() == "x"
    check_complete(photos, output)
