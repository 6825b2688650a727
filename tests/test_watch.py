"""A folder that is watched: every photo is captioned once, when it is complete, whatever stops the run in between."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bulking import in_child, kill_at_operation, was_killed
from commands import ENVIRONMENT, MAIN, MINDS_INTERRUPTS, Command
from default_model import CAPTION, SENTENCE

from sightline.bulk.engine import BulkEngine
from sightline.bulk.job import BulkOptions, BulkSummary
from sightline.bulk.job_folder import BulkOutput
from sightline.bulk.watch import watch
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"
LONG_AGO = 1_000_000_000


@pytest.fixture(scope="module")
def captioner(tiny_model: Path) -> Captioner:
    return load(tiny_model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "more").mkdir(parents=True)
    return tmp_path / "photos"


def put(folder: Path, name: str, content: bytes | Path = DOG, complete: bool = True) -> Path:
    """A photo in the folder; ``complete``: written long ago."""
    path = folder / name
    path.write_bytes(content.read_bytes() if isinstance(content, Path) else content)
    if complete:
        os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def run(folder: Path, captioner: Captioner, *rounds: Callable[[], object], form: str = "csv", **options) -> BulkSummary:
    """Watch; each time there is nothing to do, one thing happens. After the last one the user presses Ctrl-C."""
    steps: Iterator[Callable[[], object]] = iter(rounds)

    def wait(seconds: float) -> None:
        assert seconds > 0
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    chosen = BulkOptions(workers=0, **options)
    return watch(str(folder), BulkOutput(folder.parent / f"c.{form}", form, False), captioner, chosen, wait=wait)


def sources(table: Path) -> list[str]:
    with table.open(newline="") as file:
        return [Path(row["source"]).name for row in csv.DictReader(file)]


def test_what_arrives_is_captioned_once(folder: Path, captioner: Captioner) -> None:
    put(folder, "a.jpg")
    summary = run(folder, captioner, lambda: put(folder / "more", "b.jpg"), lambda: put(folder, "notes.txt"))
    assert (summary.photos, summary.failed) == (2, 0)
    assert sources(folder.parent / "c.csv") == ["a.jpg", "b.jpg"]
    put(folder, "0.jpg")
    assert run(folder, captioner).photos == 1
    assert sources(folder.parent / "c.csv") == ["a.jpg", "b.jpg", "0.jpg"]
    before = (folder.parent / "c.csv").stat().st_mtime_ns
    assert run(folder, captioner).photos == 0
    assert (folder.parent / "c.csv").stat().st_mtime_ns == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["c.csv", "c.csv.job.json", "photos"]


def test_a_file_that_grows_is_left_until_it_stops(folder: Path, captioner: Captioner) -> None:
    photo = DOG.read_bytes()
    done: list[bool] = []

    def grow(size: int) -> Callable[[], object]:
        def step() -> None:
            done.append(bool(sources(folder.parent / "c.csv")))
            put(folder, "a.jpg", photo[:size], complete=False)

        return step

    half = len(photo) // 2
    summary = run(folder, captioner, grow(0), grow(half), grow(half + 1), grow(len(photo)), lambda: None)
    assert (summary.photos, summary.failed) == (1, 0)
    assert done == [False] * 4


def test_a_bad_photo_stops_nothing_and_is_tried_again_when_it_changes(
    folder: Path, captioner: Captioner, caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "a.jpg", b"words")
    put(folder, "b.jpg")
    caplog.set_level("INFO", logger="sightline")
    assert run(folder, captioner, lambda: None, lambda: None).failed == 1
    assert caplog.text.count("a.jpg is not an image") == 1, "it is tried once"
    assert sources(folder.parent / "c.csv") == ["b.jpg"]
    assert sources(folder.parent / "c.errors.csv") == ["a.jpg"]
    caplog.clear()
    assert run(folder, captioner).failed == 1
    assert "a.jpg" not in caplog.text, "nor by the next run"
    assert run(folder, captioner, lambda: put(folder, "a.jpg")).failed == 0
    assert sources(folder.parent / "c.csv") == ["b.jpg", "a.jpg"]
    assert not (folder.parent / "c.errors.csv").exists()


def test_a_bad_photo_that_is_deleted_is_no_failure_any_more(folder: Path, captioner: Captioner) -> None:
    bad = [put(folder, name, b"words") for name in ("a.jpg", "b.jpg")]
    assert run(folder, captioner).failed == 2
    bad[0].unlink()
    assert run(folder, captioner).failed == 1
    assert sources(folder.parent / "c.errors.csv") == ["b.jpg"]
    assert run(folder, captioner, bad[1].unlink, lambda: None).failed == 0
    assert not (folder.parent / "c.errors.csv").exists()


def test_bad_photos_of_a_folder_that_cannot_be_listed_are_not_taken_for_deleted(
    folder: Path, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "more/a.jpg", b"words")
    assert run(folder, captioner).failed == 1
    scandir = os.scandir

    def refused(path: str) -> object:
        if path == str(folder / "more"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert run(folder, captioner).failed == 1
    assert sources(folder.parent / "c.errors.csv") == ["a.jpg"]


def test_a_photo_that_differs_in_its_suffix_gets_a_sidecar_of_its_own(folder: Path, captioner: Captioner) -> None:
    put(folder, "a.jpg")
    run(folder, captioner, lambda: put(folder, "a.png"), sidecars=True, include_unsure=True)
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.png.txt", "a.txt"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_other_tables_grow_too(folder: Path, captioner: Captioner, form: str) -> None:
    put(folder, "a.jpg")
    put(folder, "bad.jpg", b"words")
    run(folder, captioner, lambda: put(folder, "b.jpg"), form=form)
    assert run(folder, captioner, form=form).photos == 0
    if form == "jsonl":
        rows = [json.loads(line) for line in (folder.parent / "c.jsonl").read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(folder.parent / "c.parquet").to_pylist()
    assert [Path(row["source"]).name for row in rows] == ["a.jpg", "b.jpg"]


def test_a_name_that_is_not_text_is_captioned_once(folder: Path, captioner: Captioner) -> None:
    put(folder, os.fsdecode(b"caf\xe9.jpg"))
    put(folder, "=1+1.jpg")
    for form in ("csv", "jsonl"):
        assert run(folder, captioner, form=form).photos == 2
        assert run(folder, captioner, form=form).photos == 0


def test_a_run_killed_anywhere_is_continued(folder: Path, captioner: Captioner) -> None:
    output = folder.parent / "c.csv"
    for name in ("a.jpg", "b.jpg", "bad.jpg"):
        put(folder, name, b"words" if name == "bad.jpg" else DOG)

    def killed_run(number: int) -> None:
        kill_at_operation(number, output)
        run(folder, captioner, lambda: put(folder, "later.jpg"))

    for number in range(1, 100):
        if not was_killed(in_child(lambda number=number: killed_run(number))):
            break
        run(folder, captioner)
        assert sorted(sources(output)) == sorted({*sources(output)})
        assert {"a.jpg", "b.jpg"} <= set(sources(output))
        assert sources(folder.parent / "c.errors.csv") == ["bad.jpg"]
        for path in (*folder.parent.glob("c.*"), folder / "later.jpg"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert number > 5


def test_a_finished_bulk_job_grows_and_other_tables_are_refused(
    folder: Path, captioner: Captioner, command: Command, tiny_model: Path
) -> None:
    output = folder.parent / "c.csv"
    put(folder, "a.jpg")
    assert command("bulk", folder, "-o", output, "--model", tiny_model, "--workers", 0).code == 0
    put(folder, "b.jpg")
    assert run(folder, captioner).photos == 1
    assert sources(output) == ["a.jpg", "b.jpg"]
    with pytest.raises(ConfigError, match=r"without --sidecar \(now with it\): leave out --sidecar, choose another"):
        run(folder, captioner, sidecars=True)
    assert run(folder, captioner, sidecars=True, include_unsure=True, overwrite=True).photos == 2
    assert (folder / "a.txt").exists()
    with pytest.raises(ConfigError, match=r"with --sidecar \(now without it\): give --sidecar again, choose another"):
        run(folder, captioner, include_unsure=True)
    assert (
        command("bulk", folder, "-o", output, "--model", tiny_model, "--workers", 0, "--sample", "--overwrite").code
        == 0
    )
    expected = r"with --set sample=true \(now false\): give --set sample=true, choose another output"
    with pytest.raises(ConfigError, match=expected):
        run(folder, captioner)
    (folder.parent / "c.csv.job.json").unlink()
    with pytest.raises(ConfigError, match=r"c\.csv exists and is no job's"):
        run(folder, captioner)


def test_rows_name_photos_as_bulk_does_and_are_never_doubled(
    folder: Path, captioner: Captioner, command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(table: str = "c.csv") -> list[str]:
        with (folder.parent / table).open(newline="") as file:
            return [row["source"] for row in csv.DictReader(file)]

    def once(folder: str) -> None:
        watch(folder, BulkOutput(Path("c.csv").absolute(), "csv", False), captioner, BulkOptions(workers=0), once=True)

    monkeypatch.chdir(folder.parent)
    put(folder, "a.jpg")
    assert command("bulk", "photos/", "-o", "c.csv", "--model", tiny_model, "--workers", 0).code == 0
    put(folder / "more", "b.jpg")
    put(folder, "bad.jpg", b"words")
    once("photos/")
    assert names() == ["photos/a.jpg", "photos/more/b.jpg"]
    assert names("c.errors.csv") == ["photos/bad.jpg"]
    put(folder, "bad.jpg")
    once("./photos")
    assert names() == ["photos/a.jpg", "photos/more/b.jpg", "photos/bad.jpg"]
    put(folder, "d.jpg")
    output = BulkOutput(Path("c.csv").absolute(), "csv", False)
    monkeypatch.chdir(folder)  # where photos/a.jpg would be another photo
    watch("../photos", output, captioner, BulkOptions(workers=0), once=True)
    assert names() == ["photos/a.jpg", "photos/more/b.jpg", "photos/bad.jpg", f"{folder}/d.jpg"]
    monkeypatch.chdir(folder.parent)
    outcome = command("bulk", "photos/", "-o", "c.csv", "--model", tiny_model, "--workers", 0)
    assert (outcome.code, len(names())) == (0, 4), outcome.err


def test_once_says_that_it_waits_for_a_photo_that_is_being_written(
    folder: Path, captioner: Captioner, caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "a.jpg", complete=False)
    caplog.set_level("INFO", logger="sightline")
    output = BulkOutput(folder.parent / "c.csv", "csv", False)
    watch(str(folder), output, captioner, BulkOptions(workers=0), once=True, wait=lambda seconds: None)
    assert [record.message for record in caplog.records] == [
        f"{folder} has 1 photo, 1 new",
        "waiting until 1 photo is completely written",
        "1 photo captioned",
    ]


def test_the_bar_begins_with_the_number_of_photos(
    folder: Path, captioner: Captioner, command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, int | None]] = []

    @contextmanager
    def meter(*args: object, **options: object) -> Iterator[Callable[[int, int | None], None]]:
        yield lambda done, total: shown.append((done, total))

    for module in ("watch", "job"):
        monkeypatch.setattr(f"sightline.bulk.{module}.meter", meter)
    put(folder, "a.jpg")
    put(folder, "b.jpg")
    run(folder, captioner)
    assert command("bulk", folder, "-o", folder.parent / "d.csv", "--model", tiny_model, "--workers", 0).code == 0
    assert shown == [(0, 2), (2, 2)] * 2


def test_what_is_no_folder_or_disappears_is_one_line(folder: Path, captioner: Captioner) -> None:
    with pytest.raises(DataError, match=r"dog\.jpg is not a folder"):
        run(DOG, captioner)
    with pytest.raises(DataError, match="is gone: put it back and run the same command to continue"):
        run(folder, captioner, lambda: shutil.rmtree(folder))
    folder.mkdir()
    with pytest.raises(DataError, match=r"cannot be listed \(Too many .*\): make it readable and run the same command"):
        run(folder, captioner, lambda: (folder.rmdir(), folder.symlink_to(folder)))


def test_the_command_captions_with_the_default_model_and_ends_at_ctrl_c(folder: Path, command: Command) -> None:
    output = folder.parent / "c.csv"
    put(folder, "dog.jpg")
    put(folder, "bad.jpg", b"words")
    line = [sys.executable, "-c", MINDS_INTERRUPTS + MAIN, "watch", str(folder), "-o", str(output), "--workers", "0"]
    running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert running.stderr is not None
    try:
        lines = [next(running.stderr) for _ in range(4)]
        assert lines[0] == f"watching: {folder} has 2 photos, 2 new; Ctrl-C ends\n"
        assert lines[2] == f"{folder}/dog.jpg: {SENTENCE}\n"
        assert lines[3] == f"1 photo captioned, 1 failed (see {folder.parent}/c.errors.csv)\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        assert running.stderr.read() == f"1 photo captioned in this run: {output}\n"
    finally:
        running.kill()
        running.wait()
    (row,) = csv.DictReader(output.open())
    assert row["caption"] == CAPTION
    once = command("watch", folder, "-o", output, "--once")
    assert (once.code, once.out) == (1, "")
    assert once.complaints == [
        f"{folder} has 2 photos, 0 new",
        f"1 photo could not be captioned: see {folder.parent}/c.errors.csv",
    ]
    for name in ("x/", "w.txt"):
        refused = command("watch", folder, "-o", f"{folder.parent}/{name}")
        assert refused.code == 2
        assert refused.complaints == [
            f"error: -o {folder.parent}/{name}: watch writes one table; name a .csv, .jsonl or .parquet file"
        ]


def test_each_new_caption_is_one_line_and_marked_where_it_is_unsure(
    folder: Path, command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = BulkEngine.captions
    monkeypatch.setattr(
        BulkEngine,
        "captions",
        lambda self, images: [replace(one, unsure=one.source.endswith("b.jpg")) for one in captions(self, images)],
    )
    for name in ("a.jpg", "b.jpg", "c\u202e.jpg"):
        put(folder, name)
    line = ("watch", folder, "-o", folder.parent / "c.csv", "--model", tiny_model, "--once", "--workers", 0)
    outcome = command(*line)
    assert outcome.out == "" and outcome.code == 0
    with (folder.parent / "c.csv").open(newline="") as file:
        first, second, third = (row["caption"] for row in csv.DictReader(file))
    assert outcome.complaints == [
        f"{folder} has 3 photos, 3 new",
        f"{folder}/a.jpg: {first.capitalize()}.",
        f"{folder}/b.jpg: unsure: {second}.",
        f"'{folder}/c\\u202e.jpg': {third.capitalize()}.",
        "3 photos captioned",
    ]
    put(folder, "d.jpg")
    again = command(*line).complaints
    assert len(again) == 3 and again[1].startswith(f"{folder}/d.jpg: ")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_an_empty_folder_has_an_empty_table(folder: Path, captioner: Captioner, form: str) -> None:
    output = folder.parent / f"c.{form}"
    assert run(folder, captioner, form=form).photos == 0
    assert output.exists()
    put(folder, "a.jpg")
    assert run(folder, captioner, form=form).photos == 1
    if form == "csv":
        assert sources(output) == ["a.jpg"]
