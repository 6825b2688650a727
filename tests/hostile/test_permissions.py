"""Folders, photos and tables that a plain user may not read or write: each is one line, and the rest goes on.

The superuser may read everything, so that these tests change to another user where they are run as root.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bulking import bulk, in_child, lines, make_photos, was_killed

from sightline.bulk.job import BulkOptions
from sightline.bulk.job_folder import BulkOutput
from sightline.bulk.watch import watch
from sightline.engine.captioner import load
from sightline.errors import DataError

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users and permissions are POSIX")
NOBODY = 65534


@pytest.fixture
def folder(tiny_flickr8k_kept: Path, tiny_model: Path) -> Iterator[Path]:
    """Photos, a model and an output folder in a place that every user may enter; pytest's own is closed to others."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    photos = make_photos(tiny_flickr8k_kept, root / "photos", 4)
    (photos / "0001.jpg").unlink()
    shutil.copy(photos / "0000.jpg", photos / "0001.jpg")  # not a link of another test's photo
    (photos / "0001.jpg").chmod(0)
    (photos / "closed").mkdir(mode=0)
    shutil.copytree(tiny_model, root / "model")
    for path in (root / "model").iterdir():
        path.chmod(0o644)
    (root / "out").mkdir()
    for path in (root / "out", photos, root / "model"):
        path.chmod(0o777)
    bulk(photos, root / "first" / "captions.jsonl", root / "model")  # imports what another user could not
    yield root
    shutil.rmtree(root, ignore_errors=True)


def as_user(work: Callable[[], object]) -> None:
    def change_user_and_work() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work()

    assert not was_killed(in_child(change_user_and_work))


def check_errors(output: Path, photos: Path) -> None:
    errors = {row["source"]: row["reason"] for row in lines(output.with_suffix(".errors.jsonl"))}
    assert errors[str(photos / "0001.jpg")] == "cannot be read: permission denied"
    assert [Path(row["source"]).name for row in lines(output)] == ["0000.jpg", "0002.jpg", "0003.jpg"]


def test_what_cannot_be_read_is_a_row_among_the_errors(folder: Path) -> None:
    output, photos = folder / "out" / "captions.jsonl", folder / "photos"

    def work() -> None:
        assert bulk(photos, output, folder / "model").failed == 2
        again = bulk(photos, output, folder / "model")
        assert (again.photos, again.failed) == (2, 2), "what failed is tried again, nothing else"
        other = output.with_name("watched.jsonl")
        options = BulkOptions(workers=0)
        watched = watch(str(photos), BulkOutput(other, "jsonl", False), load(folder / "model"), options, once=True)
        assert (watched.photos, watched.failed) == (3, 1)

    as_user(work)
    check_errors(output, photos)
    check_errors(output.with_name("watched.jsonl"), photos)
    reasons = [row["reason"] for row in lines(output.with_suffix(".errors.jsonl"))]
    assert "cannot be listed: Permission denied" in reasons


def test_what_cannot_be_written_is_one_line(folder: Path) -> None:
    def refused(output: Path, words: str) -> None:
        with pytest.raises(DataError, match=words):
            bulk(folder / "photos", output, folder / "model")

    def work() -> None:
        refused(folder / "captions.jsonl", "cannot write .*: the folder is not writable; choose another one")
        output = folder / "out" / "captions.jsonl"
        bulk(folder / "photos", output, folder / "model")
        (folder / "out" / "captions.jsonl.job.json").chmod(0)
        refused(output, r"captions\.jsonl\.job\.json cannot be read \(.*Permission denied")
        (folder / "out" / "captions.jsonl.job.json").chmod(0o600)
        output.chmod(0)
        shutil.copy(folder / "photos" / "0000.jpg", folder / "photos" / "new.jpg")
        refused(output, r"captions\.jsonl cannot be read: permission denied")
        output.chmod(0o400)  # a table is replaced, and not written to
        bulk(folder / "photos", output, folder / "model")
        assert len(lines(output)) == 4

    as_user(work)
    assert json.loads((folder / "out" / "captions.jsonl.job.json").read_text())["finished"]
