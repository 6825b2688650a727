"""Bulk captioning as a user meets it: what is written where, and the same captions however it is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bulking import BROKEN, bulk, copy_photos, lines, names, read
from commands import Command
from layouts import draw_all

from sightline.bulk.engine import BulkEngine
from sightline.bulk.inputs import JobPart
from sightline.bulk.job import BulkOptions, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.io.images import open_image
from sightline.io.preprocess import Preprocess
from sightline.io.progress import Pace
from sightline.types import COLUMNS, ImageFeatures


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    return copy_photos(tiny_flickr8k_kept, tmp_path / "photos")


@pytest.fixture(scope="session")
def captioner(tiny_model: Path) -> Captioner:
    return load(tiny_model)


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_every_photo_once_in_order_and_the_broken_one_among_the_errors(
    photos: Path, tiny_model: Path, captioner: Captioner, tmp_path: Path
):
    summary = bulk(photos, tmp_path / "captions.jsonl", tiny_model)
    good = [name for name in names(photos) if not name.endswith(BROKEN)]
    rows = lines(tmp_path / "captions.jsonl")
    assert [row["source"] for row in rows] == good
    assert rows == [caption.as_dict() for caption in captioner.stream(good, batch_size=1, want_attention=False)]
    (error,) = lines(tmp_path / "captions.errors.jsonl")
    assert error == {
        "source": str(photos / BROKEN),
        "reason": "is not an image: use JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP, TIFF or JPEG 2000",
    }
    assert (summary.photos, summary.failed, summary.errors) == (13, 1, tmp_path / "captions.errors.jsonl")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["captions.errors.jsonl", "captions.jsonl", "captions.jsonl.job.json", "photos"]


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_formats_agree(photos: Path, tiny_model: Path, tmp_path: Path, format: str, folder: bool):
    bulk(photos, tmp_path / "reference.jsonl", tiny_model)
    output = tmp_path / ("out" if folder else f"out.{format}")
    bulk(photos, output, tiny_model, format, folder, part_size=5)
    errors = tmp_path / (f"out/_errors.{format}" if folder else f"out.errors.{format}")
    files = sorted(output.glob("part-*")) if folder else [output]
    assert len(files) == (3 if folder else 1)
    expected = [{name: row.get(name) for name in COLUMNS} for row in lines(tmp_path / "reference.jsonl")]
    rows, bad = [row for file in files for row in read(file)], read(errors)
    assert [{name: row.get(name) for name in COLUMNS} for row in rows] == [
        {**row, "confidence": pytest.approx(row["confidence"])} for row in expected
    ]
    assert [row["source"] for row in bad] == [str(photos / BROKEN)]


def test_a_folder_of_parts_reads_as_one_table(photos: Path, tiny_model: Path, tmp_path: Path):
    dataset = pytest.importorskip("pyarrow.dataset")
    bulk(photos, tmp_path / "out", tiny_model, "parquet", folder=True)
    table = dataset.dataset(tmp_path / "out").to_table()
    assert (table.num_rows, table.column_names) == (12, list(COLUMNS))


def test_candidates_are_kept(photos: Path, tiny_model: Path, tmp_path: Path):
    pytest.importorskip("pyarrow")
    bulk(photos, tmp_path / "out.parquet", tiny_model, "parquet", decoding={"candidates": 3})
    bulk(photos, tmp_path / "out.jsonl", tiny_model, decoding={"candidates": 3})
    rows = read(tmp_path / "out.parquet")
    assert [row["others"] for row in rows] == [
        [other["caption"] for other in row["others"]] for row in lines(tmp_path / "out.jsonl")
    ]
    assert all(len(row["others"]) == 2 for row in rows)


def test_candidates_have_ranks_in_csv(photos: Path, tiny_model: Path, tmp_path: Path):
    for format in ("csv", "jsonl"):
        bulk(photos, tmp_path / f"out.{format}", tiny_model, format, part_size=5, decoding={"candidates": 3})
    expected = [
        (row["source"], one["caption"], rank)
        for row in lines(tmp_path / "out.jsonl")
        for rank, one in enumerate((row, *row["others"]), start=1)
    ]
    rows = read(tmp_path / "out.csv")
    assert list(rows[0]) == [*COLUMNS, "rank"]
    assert [(row["source"], row["caption"], int(row["rank"])) for row in rows] == expected
    bulk(photos, tmp_path / "one.csv", tiny_model, "csv", decoding={"candidates": 1})
    assert list(read(tmp_path / "one.csv")[0]) == list(COLUMNS)


def test_a_table_of_candidates_without_ranks_is_not_added_to(photos: Path, tiny_model: Path, tmp_path: Path):
    table = tmp_path / "out.csv"
    bulk(photos, table, tiny_model, "csv", decoding={"candidates": 3})
    with_ranks = table.read_text()
    rows = [line.rpartition(",")[0] for line in with_ranks.splitlines()]
    table.write_text("".join(f"{row}\n" for row in rows))
    shutil.copy(names(photos)[0], photos / "new.jpg")
    with pytest.raises(ConfigError, match=r"it has the columns .*finished, this one writes .*finished, rank; "):
        bulk(photos, table, tiny_model, "csv", decoding={"candidates": 3})
    table.write_text(with_ranks)
    bulk(photos, table, tiny_model, "csv", decoding={"candidates": 3})
    assert table.read_text().startswith(with_ranks)
    assert [row["rank"] for row in read(table)[-3:]] == ["1", "2", "3"]


def test_captions_are_the_same_at_any_batch_size_and_number_of_workers(photos: Path, tiny_model: Path, tmp_path: Path):
    texts = set()
    for number, (batch, workers, part) in enumerate([(1, 0, 100), (5, 0, 3), (64, 2, 4), (3, 1, 100)]):
        output = tmp_path / f"{number}.csv"
        bulk(photos, output, tiny_model, "csv", batch_size=batch, workers=workers, part_size=part)
        texts.add((output.read_text(), output.with_suffix(".errors.csv").read_text()))
    assert len(texts) == 1
    assert len(next(iter(texts))[0].splitlines()) == 13


@pytest.mark.parametrize("workers", [0, 1])
def test_the_encoder_gets_normalised_pixels_and_captions_are_those_of_the_plain_path(
    photos: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, workers: int
):
    """Mean and std differ from each other and between channels, so that any confusion of them is noticed."""
    mean, std = (0.1, 0.4, 0.7), (0.2, 0.5, 0.9)
    preprocess = Preprocess(size=32, resize=32, mean=mean, std=std)
    captioner, good = load(tiny_model), [name for name in names(photos) if not name.endswith(BROKEN)]
    backend = captioner.backends[0]
    monkeypatch.setattr(backend, "preprocess", preprocess)
    monkeypatch.setattr(captioner, "preprocesses", (preprocess,))
    encode, batches = backend.encode, []

    def recording(pixels: np.ndarray) -> ImageFeatures:
        batches.append(pixels)
        return encode(pixels)

    monkeypatch.setattr(backend, "encode", recording)
    with BulkEngine(captioner, captioner.options(), 4, workers) as engine:
        (finished,) = engine.run([JobPart(0, tuple(good))])
    squares = np.stack([np.asarray(preprocess.visible(open_image(name))) for name in good]) / 255  # (B, S, S, 3)
    expected = np.stack([(squares[..., c] - mean[c]) / std[c] for c in range(3)], axis=1)  # (B, 3, S, S)
    assert np.allclose(np.concatenate(batches), expected, atol=1e-5)
    plain = list(captioner.stream(good, want_attention=False))
    assert [caption.as_dict() for caption in finished.captions] == [caption.as_dict() for caption in plain]
    monkeypatch.undo()
    assert [caption.score for caption in captioner.stream(good)] != [caption.score for caption in plain]


def test_an_ensemble_in_bulk(photos: Path, tiny_model: Path, tmp_path: Path):
    bulk(photos, tmp_path / "one.jsonl", tiny_model)
    output = BulkOutput(tmp_path / "two.jsonl", "jsonl", False)
    caption_all([str(photos)], output, [str(tiny_model)] * 2, BulkOptions(workers=0))
    assert [row["caption"] for row in lines(tmp_path / "two.jsonl")] == [
        row["caption"] for row in lines(tmp_path / "one.jsonl")
    ]


# -- one output, several runs -----------------------------------------------------------------------------------------


def test_a_finished_job_is_not_done_again_unless_something_changed(photos: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "a.jsonl"
    assert bulk(photos, output, tiny_model).photos == 13
    again = bulk(photos, output, tiny_model, batch_size=2)
    assert (again.photos, again.failed, again.errors) == (1, 1, tmp_path / "a.errors.jsonl"), "the broken one alone"
    with pytest.raises(
        ConfigError,
        match=r"holds a finished job with --beam 2 \(now 1\): give --beam 2, choose another output",
    ):
        bulk(photos, output, tiny_model, decoding={"beam": 1})
    assert bulk(photos, output, tiny_model, decoding={"beam": 1}, overwrite=True).photos == 13
    (photos / BROKEN).unlink()
    assert bulk(photos, output, tiny_model, overwrite=True).failed == 0
    assert not (tmp_path / "a.errors.jsonl").exists()


def test_a_folder_of_another_job_is_not_mixed(photos: Path, tiny_model: Path, tmp_path: Path):
    bulk(photos, tmp_path / "out", tiny_model, folder=True)
    copies = [tmp_path / "out" / f"part-000000{end}" for end in (".jsonl.bak", " (copy).jsonl")]
    for copy in copies:  # by a person, and no parts of the job
        shutil.copy(tmp_path / "out" / "part-000000.jsonl", copy)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert bulk(photos, tmp_path / "out", tiny_model, folder=True).photos == 1, "the broken one again"
    with pytest.raises(ConfigError, match=r"finished job with --beam 2 \(now 1\): "):
        bulk(photos, tmp_path / "out", tiny_model, folder=True, decoding={"beam": 1})
    with pytest.raises(DataError, match="does not exist: check the path"):
        bulk(["mistyped/"], tmp_path / "out", tiny_model, folder=True, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")} == before
    assert bulk(photos, tmp_path / "out", tiny_model, folder=True, decoding={"beam": 1}, overwrite=True).photos == 13
    assert all(copy.exists() for copy in copies)


def test_the_errors_are_a_list_to_run_again(photos: Path, tiny_model: Path, tmp_path: Path):
    bulk(photos, tmp_path / "a.csv", tiny_model, "csv")
    shutil.copy(names(photos)[0], photos / BROKEN)  # replaced by a sound photo
    summary = bulk([str(tmp_path / "a.errors.csv")], tmp_path / "b.csv", tiny_model, "csv")
    assert (summary.photos, summary.failed) == (1, 0)


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_verb_writes_a_table_and_its_exit_code_tells_of_failures(
    photos: Path, tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    from sightline.cli import run

    arguments = ["bulk", str(photos), "--model", str(tiny_model), "--workers", "0", "-o"]
    for name in ("notes.txt", "clip.mov", ".hidden"):
        (photos / name).touch()
    assert run([*arguments, str(tmp_path / "a.csv"), "--beam", "1"]) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    skipped, first, last = printed.err.splitlines()
    assert skipped == "skipped 2 files that are not photos: clip.mov, notes.txt"
    assert json.loads((tmp_path / "a.csv.job.json").read_text())["skipped"] == 2
    assert first.startswith(f"error: {photos / BROKEN} is not an image")
    assert "13 photos in" in last
    assert "1 could not be captioned" in last
    (photos / BROKEN).unlink()
    assert run([*arguments, f"{tmp_path}/c/", "--output-format", "jsonl"]) == 0
    assert len(lines(tmp_path / "c" / "part-000000.jsonl")) == 12


def test_pace_says_how_fast_and_how_long():
    pace = Pace("photos", begin=1000)
    start = pace.samples[0][0]
    assert pace(1000 + 1230, 31_750, start + 10) == "123 photos/s, 4 min left"
    assert pace(1000 + 1230, None, start + 10) == "123 photos/s"
    for second in range(10, 200):  # ten times as slow from here on: the last minute counts
        shown = pace(round(2230 + 12.3 * (second - 10)), 31_750, start + second)
    assert shown.startswith("12 photos/s")


def test_an_engine_without_photos_finishes_nothing(captioner: Captioner):
    with BulkEngine(captioner, captioner.defaults, 4, workers=0) as engine:
        assert list(engine.run([])) == []


def test_a_finished_table_is_not_replaced_by_another_job_unless_asked(
    tmp_path: Path, tiny_model: Path, command: Command
) -> None:
    photos = tmp_path / "photos"
    draw_all(photos)
    table, first = tmp_path / "table.csv", sorted(photos.iterdir())[0]
    options = ["-m", tiny_model, "--workers", 0, "-o", table]
    assert command("bulk", photos, *options).code == 0
    before = table.read_bytes()
    for differs, undo, arguments in (
        (f"with the inputs {photos} (now {first})", "name the same inputs", [first, *options]),
        ("with --beam 2 (now 1)", "give --beam 2", [photos, *options, "--beam", 1]),
        ("with --set length_penalty=0.7 (now 0.5)", "give --set length_penalty=0.7",
         [photos, *options, "--set", "length_penalty=0.5"]),
        ("without --sidecar (now with it)", "leave out --sidecar", [photos, *options, "--sidecar"]),
        ("without --sample (now with it)", "leave out --sample", [photos, *options, "--sample"]),
        ("with --beam 2 (now 3), with --min-confidence 0.0 (now 0.4)", "give --beam 2 and give --min-confidence 0.0",
         [photos, *options, "--beam", 3, "--min-confidence", 0.4]),
    ):  # fmt: skip
        refused = command("bulk", *arguments)
        assert refused.code == 2
        assert refused.complaints == [
            f"error: {table} holds a finished job {differs}: {undo}, choose another output, or begin again with "
            "--overwrite"
        ]
        assert table.read_bytes() == before
    assert command("bulk", photos, *options).code == 0, "the same job again has nothing to do"
    assert command("bulk", first, *options, "--overwrite").code == 0
    assert table.read_bytes() != before


def test_a_file_that_no_job_wrote_is_not_replaced_unless_asked(
    tmp_path: Path, tiny_model: Path, command: Command
) -> None:
    draw_all(tmp_path / "photos")
    mine = tmp_path / "mine.csv"
    mine.write_text("my own table\n")
    options = ["bulk", tmp_path / "photos", "-m", tiny_model, "--workers", 0, "-o", mine]
    refused = command(*options)
    assert refused.code == 2 and "is no bulk job's" in refused.err and mine.read_text() == "my own table\n"
    assert command(*options, "--overwrite").code == 0
