"""Captions that Sightline wrote are named in one line where a dataset has them in the place of people's."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from bulking import BROKEN, bulk, copy_photos
from commands import Command

from sightline.data import load_dataset
from sightline.data.generated import ADVICE
from sightline.errors import DataError


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    folder = copy_photos(tiny_flickr8k_kept, tmp_path / "data" / "photos")
    (folder / BROKEN).unlink()
    return folder


def notes(path: Path) -> list[str]:
    """What loading says besides how the splits were drawn."""
    return [note for note in load_dataset(path).report.notes if "divided at random" not in note]


def test_a_model_scored_against_its_own_sidecars_is_one_warning(
    command: Command, photos: Path, tiny_model: Path, tmp_path: Path
):
    table = photos.parent / "captions.csv"
    assert command("bulk", photos, "-o", table, "--model", tiny_model, "--workers", 0, "--sidecar").code == 0
    expected = f"{photos}: Sightline wrote 12 of 12 sidecars (see {table}): {ADVICE}"
    outcome = command("evaluate", tiny_model, "--data", photos, "--metrics", "bleu")
    assert outcome.code == 0
    assert [line for line in outcome.complaints if "Sightline wrote" in line] == [expected]
    scored = command("score", table, "--references", photos, "--split", "all", "--metrics", "bleu")
    assert scored.complaints == [expected]


@pytest.mark.parametrize(
    ("output", "form", "folder"),
    [
        ("data/captions.jsonl", "jsonl", False),
        ("data/photos/captions.csv", "csv", False),
        ("data/captions", "csv", True),
        ("captions.parquet", "parquet", False),  # in the working directory
    ],
)
def test_sidecars_are_known_by_the_table_of_their_job(
    photos: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    form: str,
    folder: bool,
):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    bulk(photos, tmp_path / output, tiny_model, form, folder, sidecars=True)
    (note,) = notes(photos)
    assert note == f"Sightline wrote 12 of 12 sidecars (see {tmp_path / output}): {ADVICE}"
    sidecars = sorted(photos.rglob("*.txt"))
    for sidecar in sidecars[:11]:
        sidecar.write_text("what a person wrote\n")
    (note,) = notes(photos)
    assert note.startswith("Sightline wrote 1 of 12 sidecars")
    sidecars[11].write_text("what a person wrote\n")
    assert notes(photos) == []


def test_people_are_not_taken_for_a_model(photos: Path, tiny_model: Path):
    """A job that wrote no sidecars, or other ones, and one whose record is damaged."""
    for photo in photos.rglob("*.jpg"):
        photo.with_suffix(".txt").write_text("a dog\n")
    bulk(photos, photos / "a.csv", tiny_model, "csv")
    for row in (photos / "a.csv").read_text().splitlines()[1:]:
        Path(row.split(",")[0]).with_suffix(".txt").write_text(row.split(",")[1])
    assert notes(photos) == []  # that job did not write them
    for photo in photos.rglob("*.jpg"):
        photo.with_suffix(".txt").write_text("a dog\n")
    bulk(photos, photos / "b.csv", tiny_model, "csv", sidecars=True)
    (photos / "c.csv.job.json").write_text("{")
    (photos / "d.csv.job.json").write_text('{"identity": {"sidecars": true}}')  # its table is gone
    (photos / "e.csv.job.json").write_text("[]")
    assert notes(photos) == []


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_table_is_known_by_its_columns_when_the_one_of_the_photos_is_renamed(
    command: Command, photos: Path, tiny_model: Path, form: str
):
    table = photos / f"captions.{form}"
    assert command("caption", photos, "--model", tiny_model, "-o", table).code == 0
    with pytest.raises(DataError, match=r"known dataset|names no image"):
        load_dataset(photos)
    text = table.read_text().replace('"source"', '"image"').replace("source,", "image,", 1)
    table.write_text(text.replace(f"{photos}{os.sep}", ""))
    (note,) = notes(photos)
    assert note.startswith(
        f"captions.{form} has the columns confidence, unsure, finished, so Sightline wrote its captions: {ADVICE}, or "
    )
    if form == "csv":
        rows = [",".join(line.split(",")[:2]) for line in table.read_text().splitlines()]
        table.write_text("\n".join(rows))
    else:
        rows = [json.loads(line) for line in table.read_text().splitlines()]
        table.write_text("\n".join(json.dumps({"image": row["image"], "caption": row["caption"]}) for row in rows))
    assert notes(photos) == []


def test_a_shard_is_known_by_its_json_also_when_it_is_unpacked(photos: Path, tiny_model: Path, tmp_path: Path):
    bulk(photos, tmp_path / "out", tiny_model, "tar", folder=True)
    (note,) = notes(tmp_path / "out")
    assert note == (
        f"Sightline wrote the captions of 12 of 12 photos (see the key sightline in the .json files of "
        f"part-000000.tar): {ADVICE}"
    )
    unpacked = tmp_path / "unpacked"
    for shard in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(shard) as tar:
            tar.extractall(unpacked, filter="data")
    (note,) = notes(unpacked)
    assert note == f"Sightline wrote 12 of 12 sidecars (see the key sightline of their .json): {ADVICE}"
    for sidecar in unpacked.glob("*.txt"):
        sidecar.write_text("what a person wrote")
    with tarfile.open(tmp_path / "people.tar", "w") as tar:
        for path in sorted(unpacked.iterdir()):
            tar.add(path, path.name)
    assert notes(unpacked) == []
    assert notes(tmp_path / "people.tar") == []
