"""Captions next to the photos, as text files, and inside them, as descriptions."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from bulking import BROKEN, bulk, copy_photos, lines, names

from sightline.bulk.engine import BulkEngine
from sightline.data.tables import import_parquet
from sightline.errors import ConfigError

OWN_WORDS = b"caf\xe9 au lait\r\n"  # of a person whose editor writes no UTF-8


@pytest.fixture
def photos(tiny_flickr8k_kept: Path, tmp_path: Path) -> Path:
    return copy_photos(tiny_flickr8k_kept, tmp_path / "photos")


def test_sidecars_leave_what_a_person_wrote(photos: Path, tiny_model: Path, tmp_path: Path):
    good = [Path(name) for name in names(photos) if not name.endswith(BROKEN)]
    own = good[0].with_suffix(".txt")
    own.write_bytes(OWN_WORDS)
    bulk(photos, tmp_path / "a.jsonl", tiny_model, sidecars=True)
    captions = {row["source"]: row["caption"] for row in lines(tmp_path / "a.jsonl")}
    assert own.read_bytes() == OWN_WORDS
    assert all(path.with_suffix(".txt").read_text() == captions[str(path)] + "\n" for path in good[1:])
    assert not (photos / BROKEN).with_suffix(".txt").exists()
    bulk(photos, tmp_path / "b.jsonl", tiny_model, sidecars=True, overwrite=True)
    assert own.read_text() == captions[str(good[0])] + "\n"
    assert own.with_name(f"{own.name}.bak").read_bytes() == OWN_WORDS
    own.write_text("a second thought")
    bulk(photos, tmp_path / "c.jsonl", tiny_model, sidecars=True, overwrite=True)
    assert own.with_name(f"{own.name}.bak").read_bytes() == OWN_WORDS
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
    caplog.clear()
    bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True, part_size=100, overwrite=True)
    assert "captions written into 1 photo;" in caplog.text, "though its original was kept before"
    assert kept.read_bytes() == before[good[3]]


def test_a_photo_that_is_gone_before_its_caption_is_embedded_stops_nothing(
    photos: Path,
    tiny_model: Path,
    tmp_path: Path,
    exiftool: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    captions, gone = BulkEngine.captions, Path(names(photos)[0])

    def then_delete(self: BulkEngine, images: list) -> list:
        gone.unlink(missing_ok=True)
        return captions(self, images)

    monkeypatch.setattr(BulkEngine, "captions", then_delete)
    bulk(photos, tmp_path / "a.jsonl", tiny_model, embed=True)
    assert f"{gone} cannot be read (No such file or directory): its description is not written" in caplog.messages
    assert exiftool.read_text().count("-execute\n") == len(lines(tmp_path / "a.jsonl")) - 1 == 11


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
    with pytest.raises(ConfigError, match=r'pip install "sightline-captions\[bulk\]", or write .jsonl or .csv'):
        bulk(photos, tmp_path / "a.parquet", tiny_model, "parquet")
    assert not list(tmp_path.glob("a.*"))
    with pytest.raises(ConfigError, match=r'pyarrow: pip install "sightline-captions\[bulk\]"$'):
        import_parquet()
