"""Bulk captioning as a user meets it: what is written where, and the same captions however it is run."""

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Command
from layouts import draw_all

from sightline.bulk.engine import BulkEngine
from sightline.bulk.inputs import JobPart, find_inputs, input_roots, list_inputs, read_parts
from sightline.bulk.job import BulkOptions, BulkSummary, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.data.tables import import_parquet
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.io.images import open_image
from sightline.io.preprocess import Preprocess
from sightline.io.progress import Pace
from sightline.types import COLUMNS, Failure, ImageFeatures

BROKEN = "words.jpg"


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    """Twelve photos in two folders, and one file that is none."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number, photo in enumerate(sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())):
        shutil.copy(photo, folder / ("more" if number % 3 == 0 else ".") / photo.name)
    (folder / BROKEN).write_text("these are words, not a picture")
    return folder


@pytest.fixture(scope="session")
def captioner(tiny_model: Path) -> Captioner:
    return load(tiny_model)


def names(folder: Path) -> list[str]:
    return [name for name in find_inputs([str(folder)]) if isinstance(name, str)]


def bulk(photos: Path | list[str], output: Path, model: Path, format: str = "jsonl", folder: bool = False, **options):
    inputs = [str(photos)] if isinstance(photos, Path) else photos
    decoding = options.pop("decoding", {})
    chosen = BulkOptions(**{"workers": 0, "part_size": 5, "batch_size": 4, **options})
    return caption_all(inputs, BulkOutput(output, format, folder), [str(model)], chosen, decoding)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
        "reason": "is not an image: use JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP or TIFF",
    }
    assert (summary.photos, summary.failed, summary.errors) == (13, 1, tmp_path / "captions.errors.jsonl")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["captions.errors.jsonl", "captions.jsonl", "captions.jsonl.job.json", "photos"]


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_formats_agree(photos: Path, tiny_model: Path, tmp_path: Path, format: str, folder: bool):
    bulk(photos, tmp_path / "reference.jsonl", tiny_model)
    output = tmp_path / ("out" if folder else f"out.{format}")
    bulk(photos, output, tiny_model, format, folder)
    errors = tmp_path / (f"out/_errors.{format}" if folder else f"out.errors.{format}")
    files = sorted(output.glob("part-*")) if folder else [output]
    assert len(files) == (3 if folder else 1)
    expected = [{name: row.get(name) for name in COLUMNS} for row in lines(tmp_path / "reference.jsonl")]
    rows, bad = [row for file in files for row in read(file)], read(errors)
    assert [{name: row.get(name) for name in COLUMNS} for row in rows] == [
        {**row, "confidence": pytest.approx(row["confidence"])} for row in expected
    ]
    assert [row["source"] for row in bad] == [str(photos / BROKEN)]


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".csv":
        rows = list(csv.DictReader(path.open()))
        flag = "true".__eq__
        casts = {"confidence": float, "unsure": flag, "ood_score": lambda text: text or None, "finished": flag}
        return [{name: casts.get(name, str)(value) for name, value in row.items()} for row in rows]
    return lines(path)


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


# -- next to and inside the photos ------------------------------------------------------------------------------------


def test_sidecars_leave_what_a_person_wrote(photos: Path, tiny_model: Path, tmp_path: Path):
    good = [Path(name) for name in names(photos) if not name.endswith(BROKEN)]
    own = good[0].with_suffix(".txt")
    own.write_text("my own words")
    bulk(photos, tmp_path / "a.jsonl", tiny_model, sidecars=True)
    captions = {row["source"]: row["caption"] for row in lines(tmp_path / "a.jsonl")}
    assert own.read_text() == "my own words"
    assert all(path.with_suffix(".txt").read_text() == captions[str(path)] + "\n" for path in good[1:])
    assert not (photos / BROKEN).with_suffix(".txt").exists()
    bulk(photos, tmp_path / "b.jsonl", tiny_model, sidecars=True, overwrite=True)
    assert own.read_text() == captions[str(good[0])] + "\n"
    assert own.with_name(f"{own.name}.bak").read_text() == "my own words"
    own.write_text("a second thought")
    bulk(photos, tmp_path / "c.jsonl", tiny_model, sidecars=True, overwrite=True)
    assert own.with_name(f"{own.name}.bak").read_text() == "my own words"
    assert len(list(photos.rglob("*.bak"))) == 1


def test_photos_that_differ_in_their_suffix_have_a_sidecar_each(photos: Path, tiny_model: Path, tmp_path: Path):
    folder = tmp_path / "twins"
    folder.mkdir()
    for name in ("a.jpg", "A.jpeg", "b.jpg", "b.notes"):
        shutil.copy(names(photos)[len(name) % 5], folder / name)
    bulk(folder, tmp_path / "a.jsonl", tiny_model, sidecars=True)
    captions = {Path(row["source"]).name: row["caption"] + "\n" for row in lines(tmp_path / "a.jsonl")}
    written = {path.name: path.read_text() for path in folder.glob("*.txt")}
    assert written == {
        "a.jpg.txt": captions["a.jpg"],
        "A.jpeg.txt": captions["A.jpeg"],
        "b.txt": captions["b.jpg"],
    }


@pytest.fixture
def unsure_photo(photos: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A photo whose caption is unsure."""
    captions, name = BulkEngine.captions, names(photos)[0]
    monkeypatch.setattr(
        BulkEngine,
        "captions",
        lambda self, images: [replace(one, unsure=one.source == name) for one in captions(self, images)],
    )
    return name


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, 11),
        ({"include_unsure": True}, 12),
        ({"min_confidence": 1.0}, 0),
        ({"include_unsure": True, "min_confidence": 1.0}, 0),
    ],
)
def test_unsure_captions_are_only_in_the_table(
    photos: Path,
    tiny_model: Path,
    tmp_path: Path,
    unsure_photo: str,
    exiftool: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict,
    written: int,
):
    caplog.set_level("INFO", logger="sightline")
    bulk(photos, tmp_path / "a.jsonl", tiny_model, sidecars=True, embed=True, **options)
    rows = {row["source"]: row for row in lines(tmp_path / "a.jsonl")}
    assert len(rows) == 12
    assert rows[unsure_photo]["unsure"]
    assert len(list(photos.rglob("*.txt"))) == written
    assert Path(unsure_photo).with_suffix(".txt").exists() == (written == 12)
    log = exiftool.read_text() if exiftool.exists() else ""
    assert (f"{unsure_photo}\n" in log) == (written == 12)
    assert "unsure:" not in log
    assert ("only in the table" in caplog.text) == (written < 12)


FAKE_EXIFTOOL = """#!/bin/sh
cat >> "$EXIFTOOL_LOG"
"""


@pytest.fixture
def exiftool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that records what it is given, in the file returned."""
    program = tmp_path / "bin" / "exiftool"
    program.parent.mkdir()
    program.write_text(FAKE_EXIFTOOL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EXIFTOOL_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "log"


def test_embedding_keeps_the_original_and_says_what_it_changed(
    photos: Path, tiny_model: Path, tmp_path: Path, exiftool: Path, caplog: pytest.LogCaptureFixture
):
    """This exiftool changes one photo, as the real one does: by a new file that takes its name."""
    good = [Path(name) for name in names(photos) if not name.endswith(BROKEN)]
    before = {path: path.read_bytes() for path in good}
    program = tmp_path / "bin" / "exiftool"
    program.write_text(
        f'{FAKE_EXIFTOOL}cp "{good[3]}" "{tmp_path}/x"; echo y >> "{tmp_path}/x"; mv "{tmp_path}/x" "{good[3]}"\n'
    )
    caplog.set_level("INFO", logger="sightline")
    bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True, part_size=100)
    assert [path for path in good if path.read_bytes() != before[path]] == [good[3]]
    kept = good[3].with_name(f"{good[3].name}_original")
    assert list(photos.rglob("*_original")) == [kept]
    assert kept.read_bytes() == before[good[3]]
    assert "captions written into 1 photo; each original is kept as NAME_original" in caplog.text
    assert "-P\n" in exiftool.read_text()  # the file's date


def test_descriptions_go_through_exiftool(photos: Path, tiny_model: Path, tmp_path: Path, exiftool: Path):
    bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True)
    runs = exiftool.read_text().split("-execute\n")[:-1]
    rows = lines(tmp_path / "a.jsonl")
    assert [run.splitlines()[-1] for run in runs] == [row["source"] for row in rows]
    for run, row in zip(runs, rows):
        sentence = row["caption"][0].upper() + row["caption"][1:] + "."
        assert f"-XMP-dc:Description={sentence}" in run.splitlines()
        assert "-wm\ncg\n" in run  # what is there already stays


@pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
def test_descriptions_in_a_real_photo(photos: Path, tiny_model: Path, tmp_path: Path):
    import subprocess

    bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True)
    row = lines(tmp_path / "a.jsonl")[0]
    printed = json.loads(subprocess.check_output(["exiftool", "-j", "-XMP-dc:Description", row["source"]]))
    assert printed[0]["Description"].lower() == row["caption"] + "."


def test_without_exiftool_one_line_before_any_work(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs the program exiftool"):
        bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True)
    assert not list(tmp_path.glob("a.*"))


def test_without_pyarrow_one_line_before_any_work(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r'pip install "sightline-captions\[bulk\]"'):
        bulk(photos, tmp_path / "a.parquet", tiny_model, "parquet")
    assert not list(tmp_path.glob("a.*"))
    with pytest.raises(ConfigError, match="pyarrow"):
        import_parquet()


# -- which inputs -----------------------------------------------------------------------------------------------------


def test_lists_patterns_and_folders_name_each_photo_once(photos: Path, tmp_path: Path):
    every = names(photos)
    text, table = tmp_path / "list.txt", tmp_path / "list.csv"
    text.write_text("\n".join([*every[:3], "", every[0], "http://example.org/a.jpg"]) + "\n")
    table.write_text("image,caption\n" + f"{every[5]},a dog\n{every[6]},a cat\n")
    (tmp_path / "list.jsonl").write_text(json.dumps(every[7]) + "\n" + json.dumps({"source": every[8]}) + "\n")
    found = list(find_inputs([str(text), str(table), str(tmp_path / "list.jsonl"), f"{photos}/*.jpg", str(photos)]))
    assert found[:3] == every[:3]
    assert isinstance(found[3], Failure)
    assert "web address" in found[3].reason
    assert found[4:8] == every[5:9]
    assert sorted(name for name in found if isinstance(name, str)) == sorted(every)
    assert list(find_inputs([str(photos)], leave_out=[photos / "more"])) == [n for n in every if "more" not in n]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing", None, "does not exist"),
        ("list.csv", "photo,caption\nx.jpg,y\n", "none of the columns"),
        ("list.jsonl", "[1]\n", "without a photo's name"),
        ("none*.jpg", None, "matches no photo"),
        ("-", None, "standard input"),
    ],
)
def test_a_job_with_a_wrong_input_does_not_begin(tmp_path: Path, name: str, content: str | None, words: str):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises((DataError, ConfigError), match=words):
        list(find_inputs([str(tmp_path / name) if name != "-" else name]))


@pytest.mark.parametrize("workers", [0, 1])
def test_one_bad_name_of_a_list_is_one_error(photos: Path, tiny_model: Path, tmp_path: Path, workers: int):
    good = names(photos)[:2]
    bad = ["x" * 300 + ".jpg", "~nobody-of-this-name/x.jpg", "a\0b.jpg", "y" * 5000, "\ud800.jpg"]
    nested = "[" * 100_000
    rows = "\n".join(json.dumps(name) for name in [good[0], *bad, good[1]])
    (tmp_path / "list.jsonl").write_text(f'{rows}\n{nested}\n{{"source": 5}}\nno json\n')
    summary = bulk([str(tmp_path / "list.jsonl")], tmp_path / "a.csv", tiny_model, "csv", workers=workers)
    assert (summary.photos, summary.failed) == (10, 8)
    assert [row["source"] for row in read(tmp_path / "a.csv")] == good
    reasons = {row["source"]: row["reason"] for row in read(tmp_path / "a.errors.csv")}
    assert "is not JSON" in reasons[f"{tmp_path}/list.jsonl line 8"]
    assert "without a photo's name" in reasons[f"{tmp_path}/list.jsonl line 9"]
    assert "too long" in reasons[bad[0]]
    assert "does not exist" in reasons[bad[1]]


def test_a_field_that_is_too_large_is_one_error(photos: Path, tmp_path: Path):
    good = names(photos)[:2]
    (tmp_path / "list.csv").write_text(f"source,note\n{good[0]},x\nb.jpg,{'y' * 140_000}\n\n{good[1]}\n")
    first, bad, second = find_inputs([str(tmp_path / "list.csv")])
    assert [first, second] == good
    assert isinstance(bad, Failure)
    assert bad.source == f"{tmp_path}/list.csv line 3"


def test_a_column_of_numbers_is_one_line(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    import_parquet().write_table(pyarrow.table({"source": [1, 2]}), tmp_path / "list.parquet")
    with pytest.raises(DataError, match="column source holds int64 and not text"):
        list(find_inputs([str(tmp_path / "list.parquet")]))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl"])
def test_lists_with_a_byte_order_mark(photos: Path, tmp_path: Path, suffix: str, encoding: str):
    name = names(photos)[0]
    text = {"txt": f"{name}\n", "csv": f"source\n{name}\n", "jsonl": json.dumps({"source": name})}[suffix]
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / f"list.{suffix}").write_bytes((mark + text).encode(encoding))
    assert list(find_inputs([str(tmp_path / f"list.{suffix}")])) == [name]


STRANGE = ["=1+1.jpg", "+a.jpg", "-b.jpg", "@c.jpg", "\td.jpg", "\re.jpg", "f\rg.jpg", "'=h.jpg", "'i.jpg", "j\nk.jpg"]


def test_names_that_a_spreadsheet_would_compute_or_cut(
    photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "strange"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in STRANGE:
        shutil.copy(names(photos)[0], name)
        Path(f"{name}.png").write_text("bad")
    (tmp_path / "list.jsonl").write_text(
        "".join(json.dumps(name + end) + "\n" for name in STRANGE for end in ("", ".png"))
    )
    assert bulk([str(tmp_path / "list.jsonl")], tmp_path / "a.csv", tiny_model, "csv").failed == len(STRANGE)
    for table, end in (("a.csv", ""), ("a.errors.csv", ".png")):
        with (tmp_path / table).open(newline="") as file:
            found = [row["source"] for row in csv.DictReader(file)]
        assert not any(name.startswith(("=", "+", "-", "@", "\t", "\r")) for name in found)
        assert list(find_inputs([str(tmp_path / table)])) == [name + end for name in STRANGE]


def test_parts_are_cut_in_order_and_a_shard_is_one(tmp_path: Path):
    inputs = tmp_path / "list.txt"
    inputs.write_text("a.jpg\nb.jpg\nc.jpg\nd.tar\ne.jpg\nhttps://x.org/f.jpg\n")
    listing = list_inputs([str(inputs)], tmp_path / "inputs", 2)
    parts = list(read_parts(tmp_path / "inputs", 2))
    assert [part.number for part in parts] == [0, 1, 2, 3]
    assert [part.photos[:1] for part in parts] == [("a.jpg",), ("c.jpg",), (), ("e.jpg",)]
    assert parts[2] == JobPart(2, shard="d.tar")
    assert isinstance(parts[3].photos[1], Failure)
    assert (listing.photos, listing.shards, listing.parts) == (5, 1, 4)


@pytest.mark.parametrize("name", ["{0..99999999}.tar", "{0..9999}/{0..9999}.tar", "{0..%s}.tar" % ("9" * 50)])
def test_ranges_that_would_fill_the_disk_are_one_line(name: str):
    with pytest.raises(DataError, match="stands for more than 10,000,000 names: shorten its ranges"):
        list(find_inputs([name]))


def test_braces_and_roots(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number:03d}.tar").touch()
    assert len(list(find_inputs([f"{tmp_path}/{{000..002}}.tar"]))) == 3
    assert input_roots([str(tmp_path), f"{tmp_path}/*/x*.jpg", "list.txt"]) == [str(tmp_path)]


# -- one output, several runs -----------------------------------------------------------------------------------------


def test_a_finished_job_is_not_done_again_unless_something_changed(photos: Path, tiny_model: Path, tmp_path: Path):
    output = tmp_path / "a.jsonl"
    assert bulk(photos, output, tiny_model).photos == 13
    again = bulk(photos, output, tiny_model, batch_size=2)
    assert again == BulkSummary(0, 1, 0.0, output, tmp_path / "a.errors.jsonl")
    with pytest.raises(
        ConfigError, match=r"holds a finished job with --beam 2 \(now 1\): choose another output, or begin"
    ):
        bulk(photos, output, tiny_model, decoding={"beam": 1})
    assert bulk(photos, output, tiny_model, decoding={"beam": 1}, overwrite=True).photos == 13
    (photos / BROKEN).unlink()
    assert bulk(photos, output, tiny_model, overwrite=True).failed == 0
    assert not (tmp_path / "a.errors.jsonl").exists()


def test_a_folder_of_another_job_is_not_mixed(photos: Path, tiny_model: Path, tmp_path: Path):
    bulk(photos, tmp_path / "out", tiny_model, folder=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert bulk(photos, tmp_path / "out", tiny_model, folder=True).photos == 0
    with pytest.raises(ConfigError, match=r"finished job with --beam 2 \(now 1\): "):
        bulk(photos, tmp_path / "out", tiny_model, folder=True, decoding={"beam": 1})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")} == before
    assert bulk(photos, tmp_path / "out", tiny_model, folder=True, decoding={"beam": 1}, overwrite=True).photos == 13


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
    for differs, arguments in (
        (f"with the inputs {photos} (now {first})", [first, *options]),
        ("with --beam 2 (now 1)", [photos, *options, "--beam", 1]),
        ("with --set length_penalty=0.7 (now 0.5)", [photos, *options, "--set", "length_penalty=0.5"]),
        ("without --sidecar (now with it)", [photos, *options, "--sidecar"]),
        ("with --beam 2 (now 3), with --min-confidence 0.0 (now 0.4)",
         [photos, *options, "--beam", 3, "--min-confidence", 0.4]),
    ):  # fmt: skip
        refused = command("bulk", *arguments)
        assert refused.code == 2
        assert refused.complaints == [
            f"error: {table} holds a finished job {differs}: choose another output, or begin again with --overwrite"
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
