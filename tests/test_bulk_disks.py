"""Bulk jobs whose disks, folders and parts are not what they were."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bulking import PART, bulk, check_complete, lines, make_photos, parts

from sightline.bulk import job_folder
from sightline.bulk.job import BulkOptions, BulkSummary, caption_all
from sightline.bulk.job_folder import BulkOutput, JobFolder
from sightline.errors import ConfigError, DataError

posix = pytest.mark.skipif(os.name != "posix", reason="signals and fork are POSIX")


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    """A few, free to be taken away."""
    return make_photos(tiny_flickr8k_kept, tmp_path / "photos", 5 * PART)


def after(count: int, monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
    """Let something happen once so many parts have been saved."""
    save, saved = JobFolder.save, []

    def saving(self, *arguments, **options) -> None:
        save(self, *arguments, **options)
        saved.append(arguments)
        if len(saved) == count:
            event()

    monkeypatch.setattr(JobFolder, "save", saving)


def test_a_full_disk_keeps_what_is_done(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output, write, written = tmp_path / "captions.jsonl", job_folder.write_captions, []

    def writing(form, target: Path, *rest) -> None:
        written.append(target)
        if len(written) == 3:
            target.write_text("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(form, target, *rest)

    monkeypatch.setattr(job_folder, "write_captions", writing)
    with pytest.raises(DataError, match="the disk is full; free some space"):
        bulk(photos, output, tiny_model)
    assert sorted(parts(output)) == ["part-000000.jsonl", "part-000001.jsonl"]
    assert not written[2].exists()
    assert bulk(photos, output, tiny_model).photos == 3 * PART
    check_complete(photos, output)


@posix
def test_a_disk_without_locks_is_one_line(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(DataError, match=r"cannot write .*captions\.jsonl: No locks available; choose another"):
        bulk(photos, tmp_path / "captions.jsonl", tiny_model)


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
    output = BulkOutput(small_disk / f"captions.{form}", form, False)
    options = BulkOptions(workers=0, part_size=PART, batch_size=3)
    filler = small_disk / "filler"
    for left in (0, 16, 48, 80):  # kilobytes: the lock, the list of inputs, some part, or the merge finds no room
        with filler.open("wb", buffering=0) as file:
            while shutil.disk_usage(small_disk).free > left * 1024:
                file.write(b"x" * 4096)
        try:
            caption_all([str(photos)], output, [str(tiny_model)], options)
        except DataError as error:
            assert "the disk is full" in str(error)
            assert not output.path.exists()
        filler.unlink()
    caption_all([str(photos)], output, [str(tiny_model)], options)
    if form == "jsonl":
        check_complete(photos, output.path)


def stop() -> None:
    raise KeyboardInterrupt


def test_the_input_folder_taken_away_stops_the_job_and_rejects_no_photo(
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
    assert "continuing" not in caplog.text
    bulk(photos, tmp_path / "captions.jsonl", tiny_model)
    logged = [line for line in caplog.messages if line.startswith("continuing")]
    assert logged == [f"continuing: {2 * PART} of {5 * PART} photos are done"]


def test_an_unfinished_job_is_not_mixed_with_another(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "captions.jsonl"

    after(2, monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        bulk(photos, output, tiny_model)
    with pytest.raises(ConfigError, match=rf"unfinished job with --part-size {PART} \(now {PART + 1}\): .*--overwrite"):
        bulk(photos, output, tiny_model, part_size=PART + 1)
    assert len(parts(output)) == 2
    assert bulk(photos, output, tiny_model, part_size=PART + 1, overwrite=True).photos == 5 * PART
    check_complete(photos, output)


def drop_column(part: Path, name: str) -> None:
    """Make the part one of an older version."""
    if part.suffix == ".csv":
        rows = [*csv.reader(part.read_text().splitlines())]
        index = rows[0].index(name)
        part.write_text("".join(",".join([*row[:index], *row[index + 1 :]]) + "\n" for row in rows))
    else:
        from pyarrow import parquet

        parquet.write_table(parquet.read_table(part).drop_columns([name]), part)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_parts_of_a_version_with_other_columns_are_not_mixed_with_ours(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    output, options = BulkOutput(tmp_path / f"captions.{form}", form, False), BulkOptions(workers=0, part_size=PART)

    def run() -> BulkSummary:
        return caption_all([str(photos)], output, [str(tiny_model)], options, {"candidates": 2})

    after(2, monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    part = output.folder / f"part-000000.{form}"
    content = part.read_bytes()
    drop_column(part, "ood_score")
    with pytest.raises(ConfigError, match=r"^.*another version .* unsure, finished.* ood_score, .*--overwrite$"):
        run()
    part.write_bytes(content)
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
    (folder / "bad\nname.jpg").write_bytes(b"broken")
    summary = caption_all(
        [str(folder)], BulkOutput(tmp_path / "a.csv", "csv", False), [str(tiny_model)], BulkOptions(workers=0)
    )
    assert (summary.photos, summary.failed) == (len(odd) + 1, 1)
    (folder / "bad\nname.jpg").unlink()
    pytest.importorskip("pyarrow")
    table = tmp_path / "captions.parquet"
    caption_all([str(folder)], BulkOutput(table, "parquet", False), [str(tiny_model)], BulkOptions(workers=0))
    from pyarrow import parquet

    assert str(folder / "Ümlaut 東京　.jpg") in parquet.read_table(table).column("source").to_pylist()
