"""What tests of bulk jobs share: photos, some of them broken, a job in small parts, and its outcome."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sightline
from sightline.bulk.inputs import find_inputs
from sightline.bulk.job import BulkOptions, BulkSummary, caption_all
from sightline.bulk.job_folder import BulkOutput

PART = 8
BROKEN = "words.jpg"


def make_photos(flickr8k: Path, folder: Path, count: int) -> Path:
    """Every tenth is broken."""
    folder.mkdir()
    sources = sorted((flickr8k / "Flicker8k_Dataset").iterdir())
    for number in range(count):
        photo = folder / f"{number:04d}.jpg"
        if number % 10 == 9:
            photo.write_bytes(b"broken")
        else:
            os.link(sources[number % len(sources)], photo)
    return folder


def copy_photos(flickr8k: Path, folder: Path) -> Path:
    """Twelve photos in two folders, and one file that is none."""
    (folder / "more").mkdir(parents=True)
    for number, photo in enumerate(sorted((flickr8k / "Flicker8k_Dataset").iterdir())):
        shutil.copy(photo, folder / ("more" if number % 3 == 0 else ".") / photo.name)
    (folder / BROKEN).write_text("these are words, not a picture")
    return folder


def names(folder: Path) -> list[str]:
    return [name for name in find_inputs([str(folder)]) if isinstance(name, str)]


def bulk(
    photos: Path | list[str], output: Path, model: Path, format: str = "jsonl", folder: bool = False, **options
) -> BulkSummary:
    inputs = [str(photos)] if isinstance(photos, Path) else photos
    decoding = options.pop("decoding", {})
    chosen = BulkOptions(**{"workers": 0, "part_size": PART, "batch_size": 3, **options})
    return caption_all(inputs, BulkOutput(output, format, folder), [str(model)], chosen, decoding)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".csv":
        rows = list(csv.DictReader(path.open()))
        flag = "true".__eq__
        casts = {"confidence": float, "unsure": flag, "ood_score": lambda text: text or None, "finished": flag}
        return [{name: casts.get(name, str)(value) for name, value in row.items()} for row in rows]
    return lines(path)


def check_complete(photos: Path, output: Path) -> None:
    """Captions and errors together: every input exactly once."""
    rows, errors = lines(output), lines(output.with_suffix(".errors.jsonl"))
    sources = [row["source"] for row in rows] + [row["source"] for row in errors]
    assert len(sources) == len(set(sources))
    assert sorted(sources) == sorted(map(str, find_inputs([str(photos)])))
    assert all(int(Path(row["source"]).stem) % 10 == 9 for row in errors)
    assert not output.with_name(output.name + ".parts").exists()


def parts(output: Path) -> dict[str, int]:
    """The finished parts, and when each was written."""
    folder = output.with_name(output.name + ".parts")
    found = {}
    for path in folder.glob("part-*"):
        try:
            found[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # the job has just finished and taken them away
            continue
    return found


FILE_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}  # of Python's audit hooks


def in_child(work: Callable[[], object]) -> int:
    """Run it in a forked process, without importing everything again; returns the process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def kill_at_operation(number: int, output: Path) -> None:
    """Kill this process just before it creates, renames or removes its n-th file from now on in the output's folder.

    That is the same moment on every machine, however fast.
    """
    left = number

    def count(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in FILE_EVENTS and not (event == "open" and not arguments[2] & os.O_CREAT):
            name = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            if name.startswith(str(output.parent)) or event in ("os.remove", "os.rmdir"):  # rmtree's are relative
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def was_killed(child: int) -> bool:
    """Wait for a child: whether it was killed; otherwise it must have succeeded."""
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that they started."""
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


@contextmanager
def ray_cluster() -> Iterator[str]:
    """A cluster of two workers on this machine; gives its address."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[data]' pyarrow")
    pytest.importorskip("ray.data")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    source = str(Path(sightline.__file__).parents[1])
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}},
    )
    try:
        yield "local"
    finally:
        ray.shutdown()
