"""A folder of 20,000 files, nearly all of them broken: listed, captioned and watched, each file in one table once."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from bulking import make_photos
from corpus import report

from sightline.bulk.job import BulkOptions, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.bulk.watch import watch
from sightline.engine.captioner import load

COUNT = 20_000


@pytest.fixture(scope="module")
def photos(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_photos(tiny_flickr8k_kept, tmp_path_factory.mktemp("many") / "photos", 20)  # 2 of them are broken
    for number in range(COUNT - 20):
        (folder / f"x{number}.jpg").touch()
    return folder


def check(output: Path) -> None:
    rows: list[str] = []
    for table, count in ((output, 18), (output.with_suffix(".errors.csv"), COUNT - 18)):
        with table.open(newline="") as file:
            found = [row["source"] for row in csv.DictReader(file)]
        assert len(found) == count
        rows += found
    assert len(set(rows)) == COUNT
    report("files of a large folder", COUNT, 0, COUNT - len(set(rows)))


def test_a_bulk_job_of_20_000_files(photos: Path, tiny_model: Path, tmp_path: Path) -> None:
    output = BulkOutput(tmp_path / "captions.csv", "csv", False)
    summary = caption_all([str(photos)], output, [str(tiny_model)], BulkOptions(workers=0))
    assert (summary.photos, summary.failed) == (COUNT, COUNT - 18)
    check(output.path)


def test_a_watched_folder_of_20_000_files(photos: Path, tiny_model: Path, tmp_path: Path) -> None:
    output = BulkOutput(tmp_path / "captions.csv", "csv", False)
    summary = watch(str(photos), output, load(tiny_model), BulkOptions(workers=0), once=True)
    assert (summary.photos, summary.failed) == (18, COUNT - 18)
    check(output.path)
