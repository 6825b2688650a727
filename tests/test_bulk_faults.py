"""Bulk jobs when things go wrong: killed, stopped, out of disk, robbed of their folders, started twice."""

from __future__ import annotations

import csv
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from bulk_deadly import read_or_die

import sightline
from sightline.bulk import job as jobs
from sightline.bulk.inputs import Part, find
from sightline.bulk.job import Job, Output
from sightline.bulk.reading import Answer, Reader
from sightline.bulk.run import Settings, Summary, caption_all
from sightline.errors import ConfigError, DataError
from sightline.images import Preprocess
from sightline.types import Failure

posix = pytest.mark.skipif(os.name != "posix", reason="signals and fork are POSIX")
COUNT, PART = 240, 8


@pytest.fixture(scope="module")
def many(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough photos to be interrupted, every tenth broken; only to be read."""
    folder = tmp_path_factory.mktemp("many") / "photos"
    folder.mkdir()
    sources = sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())
    for number in range(COUNT):
        photo = folder / f"{number:04d}.jpg"
        if number % 10 == 9:
            photo.write_bytes(b"broken")
        else:
            os.link(sources[number % len(sources)], photo)
    return folder


@pytest.fixture
def photos(many: Path, tmp_path: Path) -> Path:
    """A few of them, free to be taken away."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5 * PART):
        os.link(many / f"{number:04d}.jpg", folder / f"{number:04d}.jpg")
    return folder


def bulk(photos: Path, output: Path, model: Path, **settings) -> Summary:
    chosen = Settings(**{"workers": 0, "part_size": PART, "batch_size": 3, **settings})
    return caption_all([str(photos)], Output(output, "jsonl", False), [str(model)], chosen)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_complete(photos: Path, output: Path) -> None:
    """Captions and errors together: every input exactly once."""
    rows, errors = lines(output), lines(output.with_suffix(".errors.jsonl"))
    sources = [row["source"] for row in rows] + [row["source"] for row in errors]
    assert len(sources) == len(set(sources))
    assert sorted(sources) == sorted(map(str, find([str(photos)])))
    assert all(int(Path(row["source"]).stem) % 10 == 9 for row in errors)
    assert not output.with_name(output.name + ".parts").exists()


def parts(output: Path) -> dict[str, int]:
    """The parts in place, and when each came."""
    folder = output.with_name(output.name + ".parts")
    found = {}
    for path in folder.glob("part-*"):
        try:
            found[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # the job has just finished and taken them away
            continue
    return found


def in_child(work: Callable[[], object]) -> int:
    """Run it in a process of its own, without importing everything again; returns its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


# -- killed and stopped -----------------------------------------------------------------------------------------------


@posix
def test_killed_at_random_moments_nothing_is_lost_or_done_twice(many: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "captions.jsonl"
    seed = random.randrange(2**32)
    print("seed", seed)
    chance, longest, kills, before = random.Random(seed), 0.5, 0, dict[str, int]()
    for _ in range(60):
        child = in_child(lambda: bulk(many, output, tiny_model))
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            break
        kills += 1
        now = parts(output)
        if now:  # otherwise killed before anything, or when all was done
            assert {name: now[name] for name in before} == before, "a finished part was written again"
        if len(now) <= len(before):
            longest *= 1.5  # a slow machine needs longer to get anywhere
        before = now
    assert bulk(many, output, tiny_model).photos == 0, "the last run had left something to do"
    assert kills
    check_complete(many, output)
    assert list(tmp_path.glob(".*")) == []


@posix
def test_the_command_killed_with_its_workers_goes_on_elsewhere(many: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "captions.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = ["caption", many, "-m", tiny_model, "-o", output, "--workers", 1, "--part-size", PART, "--batch-size", 3]
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


def descendants(process: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        below.setdefault(parent, []).append(int(stat.parent.name))
    if not below:
        pytest.skip("needs /proc to see a process's children")
    found = below.get(process, [])
    for child in found:
        found += below.get(child, [])
    return found


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
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    check_complete(many, output)


# -- workers ----------------------------------------------------------------------------------------------------------


@posix
def test_a_killed_worker_costs_nothing(photos: Path):
    names = tuple(sorted(map(str, photos.iterdir())))
    with Reader([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader:
        events = reader.read([Part(0, names)])
        answers = [event for event in islice(events, 4) if isinstance(event, Answer)]
        assert reader._pool is not None
        for worker in list(reader._pool._processes):
            os.kill(worker, signal.SIGKILL)
        answers += [event for event in events if isinstance(event, Answer)]
    assert sorted(answer.place for answer in answers) == list(range(len(names)))
    failed = [answer.place for answer in answers if isinstance(answer.found, Failure)]
    assert sorted(failed) == [place for place in range(len(names)) if place % 10 == 9]


@posix
def test_a_photo_that_ends_every_process_is_reported_alone(photos: Path):
    class Deadly(Reader):
        work = staticmethod(read_or_die)

    names = tuple(sorted(map(str, photos.iterdir())))[:8]
    with Deadly([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader:
        answers = [event for event in reader.read([Part(0, names)]) if isinstance(event, Answer)]
    assert sorted(answer.place for answer in answers) == list(range(8))
    (failed,) = [answer.found for answer in answers if isinstance(answer.found, Failure)]
    assert failed.source == names[2]
    assert failed.reason.startswith("ends the process that decodes it")


@posix
def test_workers_that_cannot_start_stop_the_job_and_condemn_no_photo(photos: Path):
    class Stillborn(Reader):
        def _new_pool(self, workers: int) -> ProcessPoolExecutor:
            context = multiprocessing.get_context("forkserver")
            return ProcessPoolExecutor(workers, context, initializer=os._exit, initargs=(1,))

    names = tuple(sorted(map(str, photos.iterdir())))[:2]
    with (
        Stillborn([Preprocess(size=32, resize=32)], workers=1, ahead=8) as reader,
        pytest.raises(DataError, match="worker processes cannot be started"),
    ):
        list(reader.read([Part(0, names)]))


SCRIPT = """
from pathlib import Path
from sightline.bulk.job import Output
from sightline.bulk.run import Settings, caption_all
Path({log!r}).open("a").write("x")
caption_all([{photos!r}], Output(Path({output!r}), "jsonl", False), [{model!r}], Settings(workers=2, part_size=8))
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


# -- disks and folders ------------------------------------------------------------------------------------------------


def after(count: int, monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
    """Let something happen once so many parts have been saved."""
    save, saved = Job.save, []

    def saving(self, *arguments, **options) -> None:
        save(self, *arguments, **options)
        saved.append(arguments)
        if len(saved) == count:
            event()

    monkeypatch.setattr(Job, "save", saving)


def test_a_full_disk_keeps_what_is_done(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output, write, written = tmp_path / "captions.jsonl", jobs.write_captions, []

    def writing(form, target: Path, *rest) -> None:
        written.append(target)
        if len(written) == 3:
            target.write_text("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(form, target, *rest)

    monkeypatch.setattr(jobs, "write_captions", writing)
    with pytest.raises(DataError, match="the disk is full; free some space"):
        bulk(photos, output, tiny_model)
    assert sorted(parts(output)) == ["part-000000.jsonl", "part-000001.jsonl"]
    assert not written[2].exists()
    assert bulk(photos, output, tiny_model).photos == 3 * PART
    check_complete(photos, output)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a disk to fill can only be made by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no program to make a small disk with")
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_really_full_disk(photos: Path, tiny_model: Path, small_disk: Path, form: str):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    output = Output(small_disk / f"captions.{form}", form, False)
    settings = Settings(workers=0, part_size=PART, batch_size=3)
    filler = small_disk / "filler"
    for left in (16, 48, 80):  # kilobytes: the list of inputs, some part, or the merge finds no room
        with filler.open("wb", buffering=0) as file:
            while shutil.disk_usage(small_disk).free > left * 1024:
                file.write(b"x" * 4096)
        try:
            caption_all([str(photos)], output, [str(tiny_model)], settings)
        except DataError as error:
            assert "the disk is full" in str(error)
            assert not output.path.exists()
        filler.unlink()
    caption_all([str(photos)], output, [str(tiny_model)], settings)
    if form == "jsonl":
        check_complete(photos, output.path)


def stop() -> None:
    raise KeyboardInterrupt


def test_the_input_folder_taken_away_stops_the_job_and_condemns_no_photo(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output, away = tmp_path / "captions.jsonl", tmp_path / "away"
    after(2, monkeypatch, lambda: photos.rename(away))
    with pytest.raises(DataError, match=f"{photos} is gone since this job began: put it back"):
        bulk(photos, output, tiny_model)
    assert len(parts(output)) == 2
    with pytest.raises(DataError, match="is gone since this job began"):
        bulk(photos, output, tiny_model)
    away.rename(photos)
    assert bulk(photos, output, tiny_model).photos == 3 * PART
    check_complete(photos, output)


def test_a_single_photo_taken_away_is_one_error(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    last = photos / f"{5 * PART - 2:04d}.jpg"
    after(1, monkeypatch, last.unlink)
    assert bulk(photos, tmp_path / "captions.jsonl", tiny_model).failed == 5
    reasons = {error["source"]: error["reason"] for error in lines(tmp_path / "captions.errors.jsonl")}
    assert reasons[str(last)] == "does not exist: check the path"


def test_parts_taken_away_are_noticed_and_done_again(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "captions.jsonl"
    after(2, monkeypatch, (tmp_path / "captions.jsonl.parts" / "part-000001.jsonl").unlink)
    with pytest.raises(DataError, match=r"part-000001.jsonl has gone missing .* run the same command again"):
        bulk(photos, output, tiny_model)
    assert bulk(photos, output, tiny_model).photos == PART
    check_complete(photos, output)


def test_a_job_that_goes_on_says_how_much_is_done(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "sightline")
    after(2, monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        bulk(photos, tmp_path / "captions.jsonl", tiny_model)
    assert "going on" not in caplog.text
    bulk(photos, tmp_path / "captions.jsonl", tiny_model)
    told = [line for line in caplog.messages if line.startswith("going on")]
    assert told == [f"going on: {2 * PART} of {5 * PART} photos are done"]


def test_an_unfinished_job_is_not_mixed_with_another(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "captions.jsonl"

    after(2, monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        bulk(photos, output, tiny_model)
    with pytest.raises(ConfigError, match=r"unfinished job with another value of part_size: .*--overwrite"):
        bulk(photos, output, tiny_model, part_size=PART + 1)
    assert len(parts(output)) == 2
    assert bulk(photos, output, tiny_model, part_size=PART + 1, overwrite=True).photos == 5 * PART
    check_complete(photos, output)


def drop_column(part: Path, name: str) -> None:
    """Make the part one of an older version."""
    if part.suffix == ".csv":
        rows = [*csv.reader(part.read_text().splitlines())]
        place = rows[0].index(name)
        part.write_text("".join(",".join([*row[:place], *row[place + 1 :]]) + "\n" for row in rows))
    else:
        from pyarrow import parquet

        parquet.write_table(parquet.read_table(part).drop_columns([name]), part)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_parts_of_a_version_with_other_columns_are_not_mixed_with_ours(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    output, settings = Output(tmp_path / f"captions.{form}", form, False), Settings(workers=0, part_size=PART)

    def run() -> Summary:
        return caption_all([str(photos)], output, [str(tiny_model)], settings, {"candidates": 2})

    after(2, monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    part = output.folder / f"part-000000.{form}"
    ours = part.read_bytes()
    drop_column(part, "strangeness")
    with pytest.raises(ConfigError, match=r"^.*another version .* unsure, finished.* strangeness, .*--overwrite$"):
        run()
    part.write_bytes(ours)
    assert run().photos == 3 * PART


@posix
def test_names_that_are_no_text(photos: Path, tiny_model: Path, tmp_path: Path):
    folder = tmp_path / "odd"
    folder.mkdir()
    odd = [b"\xff\xfe.jpg", b"line\nbreak.jpg", "Ümlaut 東京　.jpg".encode(), b"-dash.jpg", b" .jpg"]
    for name in odd:
        shutil.copy(photos / "0000.jpg", os.path.join(os.fsencode(folder), name))  # noqa: PTH118
    output = tmp_path / "captions.jsonl"
    summary = bulk(folder, output, tiny_model, part_size=2)
    assert (summary.photos, summary.failed) == (len(odd), 0)
    assert len({row["source"] for row in lines(output)}) == len(odd)
    pytest.importorskip("pyarrow")
    table = tmp_path / "captions.parquet"
    caption_all([str(folder)], Output(table, "parquet", False), [str(tiny_model)], Settings(workers=0))
    from pyarrow import parquet

    assert str(folder / "Ümlaut 東京　.jpg") in parquet.read_table(table).column("source").to_pylist()
