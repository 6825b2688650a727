"""A finished bulk job whose inputs change: its tables are added to, and no row, edited or not, is lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from bulking import in_child, kill_at_operation, make_photos, was_killed

from sightline.bulk.job import BulkOptions, BulkSummary, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.bulk.outputs import add_file
from sightline.errors import ConfigError

FORMATS = ("csv", "jsonl", "parquet")
EDITED = "my own words"


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    """Twelve photos, the tenth of them broken."""
    return make_photos(tiny_flickr8k_kept, tmp_path / "photos", 12)


def bulk(inputs: Path | str, output: Path, model: Path, format: str, **options: object) -> BulkSummary:
    chosen = BulkOptions(**{"workers": 0, "part_size": 5, "batch_size": 4, **options})  # type: ignore[arg-type]
    return caption_all([str(inputs)], BulkOutput(output, format, not output.suffix), [str(model)], chosen)


def make_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for name, data in members.items():
            add_file(shard, name, data)


def tables(output: Path) -> list[Path]:
    return [output] if output.is_file() else sorted(output.glob("part-*"))


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text().splitlines()]


def captions(output: Path) -> list[tuple[str, str]]:
    """Names and captions, in the order of the tables."""
    return [(Path(row["source"]).name, row["caption"]) for table in tables(output) for row in read(table)]


def edit(table: Path) -> None:
    """Give the table's first row another caption, as a spreadsheet, an editor or pandas would save it."""
    if table.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        rows = read(table)
        rows[0]["caption"] = EDITED
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), table)  # float64 now
        return
    rows = read(table)
    text = table.read_text().replace(rows[0]["caption"], EDITED, 1)
    table.write_bytes((("\ufeff" if table.suffix == ".csv" else "") + text.rstrip("\n")).encode())


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("format", FORMATS)
def test_new_photos_are_added_and_every_row_stays(
    photos: Path, tiny_model: Path, tmp_path: Path, format: str, folder: bool
) -> None:
    output = tmp_path / ("out" if folder else f"out.{format}")
    assert bulk(photos, output, tiny_model, format).failed == 1
    edit(tables(output)[0])
    before = captions(output)
    assert before[0] == ("0000.jpg", EDITED) and len(before) == 11
    shutil.copy(photos / "0001.jpg", photos / "0000a.jpg")
    shutil.copy(photos / "0002.jpg", photos / "new.jpg")
    (photos / "0003.jpg").unlink()
    summary = bulk(photos, output, tiny_model, format, batch_size=2)
    assert (summary.photos, summary.failed) == (3, 1), "two new ones, and the broken one again"
    after = captions(output)
    assert after[:11] == before
    assert [name for name, _ in after[11:]] == ["0000a.jpg", "new.jpg"]
    assert after[11][1] == before[1][1], "the same photo has the same caption"
    assert bulk(photos, output, tiny_model, format).photos == 1, "the broken one"
    assert captions(output) == after
    shutil.copy(photos / "0001.jpg", photos / "0009.jpg")  # the broken one
    shutil.copy(photos / "0001.jpg", photos / "last.jpg")
    assert bulk(photos, output, tiny_model, format).failed == 0
    assert captions(output) == [*after, ("0009.jpg", before[1][1]), ("last.jpg", before[1][1])]
    assert not BulkOutput(output, format, folder).errors.exists()
    record = json.loads(BulkOutput(output, format, folder).record.read_text())
    assert (record["finished"], record["photos"], record["failed"]) == (True, 15, 0)


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_inputs_that_failed_are_tried_again(
    photos: Path, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: bool
) -> None:
    caplog.set_level("INFO", logger="sightline")
    output = tmp_path / ("out" if folder else "out.csv")
    assert bulk(photos, output, tiny_model, "csv").failed == 1
    before, files = captions(output), tables(output)
    again = bulk(photos, output, tiny_model, "csv")
    assert (again.photos, again.failed) == (1, 1)
    assert "trying 1 input again that could not be captioned" in caplog.messages
    assert (captions(output), tables(output)) == (before, files), "no empty part"
    shutil.copy(photos / "0001.jpg", photos / "0009.jpg")  # the broken one
    mended = bulk(photos, output, tiny_model, "csv")
    assert (mended.photos, mended.failed, mended.errors) == (1, 0, None)
    assert captions(output) == [*before, ("0009.jpg", before[1][1])]
    assert bulk(photos, output, tiny_model, "csv").photos == 0
    assert caplog.messages[-1] == f"{output} is already finished: nothing to do"


def test_photos_that_disappear_leave_their_rows(
    photos: Path, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sightline")
    output = tmp_path / "out.csv"
    bulk(photos, output, tiny_model, "csv")
    before = output.read_bytes()
    for name in ("0002.jpg", "0009.jpg"):
        (photos / name).unlink()
    summary = bulk(photos, output, tiny_model, "csv")
    assert (summary.photos, summary.failed, summary.errors) == (0, 0, None)
    assert "1 row's photo is gone; the row is kept" in caplog.messages, "the other never had a row"
    assert output.read_bytes() == before
    assert not (tmp_path / "out.errors.csv").exists()
    assert sorted(path.name for path in tmp_path.glob("out.*")) == ["out.csv", "out.csv.job.json"]
    (photos / "0003.jpg").unlink()
    bulk(photos, output, tiny_model, "csv")
    assert "2 rows' photos are gone; the rows are kept" in caplog.messages


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_killed_anywhere_while_adding(photos: Path, tiny_model: Path, tmp_path: Path, folder: bool) -> None:
    """Kills before every single operation on files; each time the edited row and all others are there, once."""
    first = tmp_path / "first" / ("out" if folder else "out.csv")
    bulk(photos, first, tiny_model, "csv")
    edit(tables(first)[0])
    before = captions(first)
    for number in range(7):
        shutil.copy(photos / "0001.jpg", photos / f"new{number}.jpg")

    def killed_run(number: int, output: Path) -> None:
        kill_at_operation(number, output)
        bulk(photos, output, tiny_model, "csv")

    for number in range(1, 200):
        output = shutil.copytree(first.parent, tmp_path / str(number)) / first.name
        killed = was_killed(in_child(lambda number=number, output=output: killed_run(number, output)))
        assert captions(output)[:11] == before, number
        bulk(photos, output, tiny_model, "csv")
        assert captions(output) == [*before, *((f"new{n}.jpg", before[1][1]) for n in range(7))], number
        assert [Path(row["source"]).name for row in read(BulkOutput(output, "csv", folder).errors)] == ["0009.jpg"]
        if not killed:
            break
    assert number > 10


def test_overwriting_keeps_the_earlier_table(
    photos: Path, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out.csv"
    caplog.set_level("INFO", logger="sightline")
    bulk(photos, output, tiny_model, "csv")
    fresh = output.read_bytes()
    for number, backup in enumerate(("out.csv.bak", "out.csv.bak2")):
        output.write_text(f"edited {number}\n")
        bulk(photos, output, tiny_model, "csv", overwrite=True)
        assert output.read_bytes() == fresh
        assert (tmp_path / backup).read_text() == f"edited {number}\n"
        assert f"the earlier {output} is kept as {tmp_path / backup}" in caplog.text
    bulk(photos, output, tiny_model, "csv", overwrite=True)
    assert len(list(tmp_path.glob("*.bak*"))) == 2, "an identical table needs no backup"


def test_shards_are_added_and_a_damaged_one_keeps_its_errors(photos: Path, tiny_model: Path, tmp_path: Path) -> None:
    good, bad = (photos / "0000.jpg").read_bytes(), b"words"
    shards = tmp_path / "shards"
    shards.mkdir()
    make_shard(shards / "0.tar", {"a.jpg": good, "b.jpg": bad})
    output = tmp_path / "out.jsonl"
    assert bulk(shards, output, tiny_model, "jsonl").failed == 1
    make_shard(shards / "1.tar", {"c.jpg": good})
    assert bulk(shards, output, tiny_model, "jsonl").failed == 1
    assert [row["source"] for row in read(output)] == [f"{shards}/0.tar::a.jpg", f"{shards}/1.tar::c.jpg"]
    assert [row["source"] for row in read(tmp_path / "out.errors.jsonl")] == [f"{shards}/0.tar::b.jpg"]
    bulk(shards, tmp_path / "tars", tiny_model, "tar")
    make_shard(shards / "2.tar", {"d.jpg": good})
    with pytest.raises(ConfigError, match="its inputs have changed: shards are not added to; choose another folder"):
        bulk(shards, tmp_path / "tars", tiny_model, "tar")


def test_names_are_relative_to_where_a_job_began(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.csv"
    (photos / "0009.jpg").unlink()
    monkeypatch.chdir(tmp_path)
    bulk("photos", output, tiny_model, "csv")
    before = captions(output)
    monkeypatch.chdir(photos.parent.parent)
    assert bulk(os.path.relpath(photos), output, tiny_model, "csv").photos == 0
    shutil.copy(photos / "0001.jpg", photos / "new.jpg")
    with pytest.raises(ConfigError, match=f"names its photos relative to {tmp_path}: run the same command there"):
        bulk(os.path.relpath(photos), output, tiny_model, "csv")
    assert captions(output) == before
    assert bulk(photos, output, tiny_model, "csv").photos == 1, "absolute names are fine anywhere"
    assert captions(output) == [*before, ("new.jpg", before[1][1])]
