"""Which photos a bulk job takes: folders, patterns, lists, tables, shards; and names that are hard to write down."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from bulking import bulk, copy_photos, names, read
from commands import Command

from sightline.bulk.inputs import JobPart, find_inputs, input_roots, list_inputs, read_parts
from sightline.data.tables import import_parquet
from sightline.errors import ConfigError, DataError
from sightline.types import Failure


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    return copy_photos(tiny_flickr8k_kept, tmp_path / "photos")


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


def test_names_in_a_table_are_relative_to_here_or_to_the_table(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    here, there = tmp_path / "here", tmp_path / "here" / "own"
    there.mkdir(parents=True)
    first, second, third = names(photos)[:3]
    for name, target in ((first, here / "a.jpg"), (second, there / "a.jpg"), (third, there / "b.jpg")):
        shutil.copy(name, target)
    (there / "captions.csv").write_text("image,caption\na.jpg,x\nb.jpg,x\n")
    monkeypatch.chdir(here)
    assert list(find_inputs(["own/captions.csv"])) == ["a.jpg", "own/b.jpg"]
    (there / "captions.csv").write_text("image,caption\nb.jpg,x\nc.jpg,x\nd.jpg,x\n")
    assert list(find_inputs(["own/captions.csv"])) == ["own/b.jpg", "c.jpg", "d.jpg"]
    assert not caplog.text
    (there / "captions.csv").write_text("image,caption\nc.jpg,x\nd.jpg,x\n")
    assert list(find_inputs(["own/captions.csv"])) == ["c.jpg", "d.jpg"]
    said = f"own/captions.csv: none of its 2 names is in {here} or beside it: run the command where they are"
    assert caplog.messages == [said]


@pytest.mark.parametrize("found", [0, 1])
def test_a_missing_photo_of_a_list_is_one_line(
    found: int, photos: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("\n".join([*names(photos)[:found], "gone.jpg"]) + "\n")
    outcome = command("bulk", "list.txt", "-o", "out.csv", "--model", tiny_model)
    assert [line for line in outcome.complaints if "gone.jpg" in line] == [
        "error: gone.jpg does not exist: check the path"
    ]
    assert (outcome.code, len(outcome.complaints)) == (1, 2), "and the job's own"


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
    with pytest.raises(DataError, match=r"\{9\.\.0\}\.tar has a range that counts down: give its smaller number first"):
        list(find_inputs([f"{tmp_path}/{{000..002}}{{9..0}}.tar"]))
    assert input_roots([str(tmp_path), f"{tmp_path}/*/x*.jpg", "list.txt"]) == [str(tmp_path)]
