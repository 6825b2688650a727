"""The list of everyday pictures is complete, and pictures are read out of packages as they are listed."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

from everyday import DOWNLOADS, read_archive, read_list


def test_the_list_is_well_formed() -> None:
    rows = read_list()
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["photo"] >= 150 and kinds["other"] >= 30 and set(kinds) == {"photo", "other"}
    assert [int(row["number"]) for row in rows] == list(range(1, len(rows) + 1))
    assert len({row["sha256"] for row in rows}) == len(rows)
    for row in rows:
        assert None not in row and all(row.values()), f"row {row['number']} lacks a value"
        assert re.fullmatch("[0-9a-f]{64}", row["sha256"]) and row["source"] in DOWNLOADS
    assert max(Counter(row["package"] for row in rows if row["kind"] == "photo").values()) <= 10


def test_pictures_are_read_out_of_wheels_and_tarballs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a/dog.jpg", b"dog")
        wheel.writestr("a/cat.jpg", b"cat")
    with tarfile.open(tmp_path / "a-1.tgz", "w:gz") as tar:
        member = tarfile.TarInfo("./package/dog.jpg")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"dog"))
    assert read_archive(tmp_path / "a-1-py3-none-any.whl", {"a/dog.jpg", "a/none.jpg"}) == {"a/dog.jpg": b"dog"}
    assert read_archive(tmp_path / "a-1.tgz", {"package/dog.jpg"}) == {"package/dog.jpg": b"dog"}
