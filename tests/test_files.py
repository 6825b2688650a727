"""Small files: counted things, text and results read, photos found, and writing that leaves no half of a file."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path

import pytest
from drawings import DEV
from layouts import coco_annotations

from sightline.data import read_references, read_results, read_text, write_results
from sightline.errors import DataError
from sightline.io.files import (
    IMAGE_SUFFIXES,
    SkippedFiles,
    atomic_path,
    counted,
    find_images,
    is_image_path,
    write_atomically,
)
from sightline.types import Failure


def test_things_are_counted_in_the_singular_and_the_plural() -> None:
    found = [counted(number, thing) for thing in ("photo", "batch") for number in (0, 1, 2000)]
    assert found == ["0 photos", "1 photo", "2,000 photos", "0 batches", "1 batch", "2,000 batches"]


# Text and results


def test_read_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A cat .\n\n  A dog\u2028barks .  \n", encoding="utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write("A cat .\nA dog\u2028barks .")
    assert read_text(tmp_path / "a.txt") == read_text(tmp_path / "a.txt.gz") == ["A cat .", "A dog\u2028barks ."]
    (tmp_path / "broken.gz").write_bytes((tmp_path / "a.txt.gz").read_bytes()[:-12])
    (tmp_path / "plain.gz").write_text("not gzip")
    (tmp_path / "empty.txt").touch()
    for name in ("broken.gz", "plain.gz", "empty.txt", "missing.txt"):
        with pytest.raises(DataError, match=name):
            read_text(tmp_path / name)


def test_results_travel(tmp_path: Path) -> None:
    captions = {"a.jpg": "a cat", "42": "a « dog »", "007": "not a number"}
    write_results(tmp_path / "deep" / "results.json", captions)
    assert read_results(tmp_path / "deep" / "results.json") == captions
    assert [row["image_id"] for row in json.loads((tmp_path / "deep" / "results.json").read_text())] == [
        "a.jpg",
        42,
        "007",
    ]


@pytest.mark.parametrize(
    "content", ["{}", "[1]", '[{"image_id": 1}]', '[{"image_id": true, "caption": "x"}]', "[", "\xff"]
)
def test_broken_results_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"r\.json"):
        read_results(tmp_path / "r.json")


def test_two_captions_of_one_image_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('[{"image_id": 1, "caption": "a"}, {"image_id": "1", "caption": "b"}]')
    with pytest.raises(DataError, match="captions image 1 twice"):
        read_results(tmp_path / "r.json")


def test_references_are_grouped_by_image(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(coco_annotations(DEV, 1)))
    assert read_references(tmp_path / "r.json") == {str(i + 1): list(d.captions) for i, d in enumerate(DEV)}


# Writing safely


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the disk is full; free some space") as caught, atomic_path(tmp_path / "a"):
        raise OSError(28, "No space left on device")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_unwritable_targets_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "below", "/dev/null", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match="cannot write") as caught:
            write_atomically(path, "x")
        assert "\n" not in str(caught.value)


def test_a_refused_write_within_another_names_the_file_of_the_user(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=f"^cannot write {tmp_path}/page.html: the folder is not writable"),
        atomic_path(tmp_path / "page.html") as temporary,
        atomic_path(temporary),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "x"


def test_linked_folders_are_not_followed_but_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.jpg").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.jpg").touch()
    (tmp_path / "photos" / "notes.txt").touch()
    for name in ("circle", "linked"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / ("real" if name == "linked" else "photos"))
    skipped = SkippedFiles()
    assert list(find_images([tmp_path / "photos"], skipped)) == [tmp_path / "photos" / "b.jpg"]
    folder = tmp_path / "photos"
    assert str(skipped) == (
        "skipped 1 file that is not a photo: notes.txt; "
        f"2 links to folders, name them to include them: {folder}/circle, {folder}/linked"
    )
    assert not SkippedFiles()


def test_skipped_files_are_named_relative_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/readme.txt", "b/c/readme.txt", "readme.txt"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).touch()
    monkeypatch.chdir(tmp_path)
    for inputs in ([tmp_path / "photos"], ["photos/"], ["photos"]):
        skipped = SkippedFiles()
        list(find_images(inputs, skipped))
        assert str(skipped) == "skipped 3 files that are not photos: readme.txt, a/readme.txt, b/c/readme.txt"


# Finding images


def test_find_images_expands_files_folders_patterns_and_urls(tmp_path: Path) -> None:
    names = ["b.jpg", "a.PNG", "deep/c.webp", ".hidden/x.jpg", ".y.jpg", "notes.txt", "odd[1].jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def found(*inputs: str | Path) -> list[str]:
        return [Path(str(path)).relative_to(tmp_path).as_posix() for path in find_images(inputs)]

    assert found(tmp_path) == ["a.PNG", "b.jpg", "odd[1].jpg", "deep/c.webp"]
    assert found(f"{tmp_path}/*.jpg") == ["b.jpg", "odd[1].jpg"]
    assert found(f"{tmp_path}/**/*.webp") == ["deep/c.webp"]
    assert found(tmp_path / "odd[1].jpg") == ["odd[1].jpg"]
    assert found((tmp_path / "b.jpg").as_uri(), tmp_path / "b.jpg") == ["b.jpg"]
    assert found(tmp_path / "notes.txt") == ["notes.txt"]  # named outright: opening it will say what it is


def test_find_images_reports_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.jpg").touch()
    inputs = [tmp_path / "no.jpg", tmp_path / "empty", f"{tmp_path}/*.gif", "https://x.org/a.jpg", tmp_path / "a.jpg"]
    *failures, last = find_images(inputs)
    assert last == tmp_path / "a.jpg"
    assert all(isinstance(failure, Failure) for failure in failures)
    reasons = ["does not exist", "folder without images", "matches no image", "web address"]
    assert [reason in failure.reason for reason, failure in zip(reasons, failures)] == [True] * 4


def test_image_suffixes() -> None:
    assert is_image_path("a/B.JPEG") and not is_image_path("a.txt") and ".heic" in IMAGE_SUFFIXES
