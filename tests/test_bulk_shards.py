"""WebDataset shards as img2dataset makes them: read, written, and survived when damaged."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sightline.bulk.job import BulkOptions, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.data.shards import list_shard, members, unused
from sightline.engine.captioner import load
from sightline.types import Failure

COUNT = 6


def make_shard(path: Path, photos: list[Path], first: int = 0, text: str = "alt text from the web") -> Path:
    """As img2dataset writes one: photo, text and facts of each sample, in this order."""
    with tarfile.open(path, "w") as tar:
        for number, photo in enumerate(photos, first):
            key = f"{number:09d}"
            facts = {"url": f"https://example.org/{key}.jpg", "caption": text, "key": key, "status": "success"}
            for suffix, data in (
                ("jpg", photo.read_bytes()),
                ("json", json.dumps(facts).encode()),
                ("txt", text.encode()),
            ):
                entry = tarfile.TarInfo(f"{key}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.fixture
def photos(tiny_flickr8k_kept: Path) -> list[Path]:
    return sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())


@pytest.fixture
def shards(photos: list[Path], tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    make_shard(folder / "00000.tar", photos[:COUNT])
    make_shard(folder / "00001.tar", photos[COUNT:], first=10000)
    (folder / "00000.parquet").write_bytes(b"img2dataset's own table, not ours to read")
    (folder / "00000_stats.json").write_text("{}")
    return folder


def bulk(inputs: Path, output: Path, model: Path, form: str = "jsonl", folder: bool = False, workers: int = 0):
    options = BulkOptions(workers=workers, batch_size=4)
    return caption_all([str(inputs)], BulkOutput(output, form, folder), [str(model)], options)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 1])
def test_shards_are_read_where_they_lie(
    shards: Path, photos: list[Path], tiny_model: Path, tmp_path: Path, workers: int
):
    assert bulk(shards, tmp_path / "a.jsonl", tiny_model, workers=workers).failed == 0
    rows = lines(tmp_path / "a.jsonl")
    keys = [f"{number:09d}" for number in (*range(COUNT), *range(10000, 10000 + len(photos) - COUNT))]
    assert [row["source"].split("::")[1] for row in rows] == [f"{key}.jpg" for key in keys]
    assert rows[0]["source"] == f"{shards}/00000.tar::000000000.jpg"
    expected = [caption.text for caption in load(tiny_model).stream(photos)]
    assert [row["caption"] for row in rows] == expected


def test_shards_are_written_with_our_captions_and_all_they_had(
    shards: Path, photos: list[Path], tiny_model: Path, tmp_path: Path
):
    bulk(shards, tmp_path / "out", tiny_model, "tar", folder=True)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == ["part-000000.tar", "part-000001.tar"]
    with tarfile.open(tmp_path / "out" / "part-000000.tar") as tar:
        assert len(tar.getnames()) == 4 * COUNT
        assert tar.getnames()[:4] == [f"000000000.{suffix}" for suffix in ("jpg", "original.txt", "txt", "json")]

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        caption = load(tiny_model).caption(photos[0])
        assert content("000000000.jpg") == photos[0].read_bytes()
        assert content("000000000.txt").decode() == caption.text
        assert content("000000000.original.txt") == b"alt text from the web"
        facts = json.loads(content("000000000.json"))
        assert facts["url"] == "https://example.org/000000000.jpg"
        assert facts["sightline"]["caption"] == caption.text
    # What we write is a shard like any other.
    assert bulk(tmp_path / "out", tmp_path / "again.jsonl", tiny_model).photos == len(photos)


def test_single_photos_become_shards(photos: list[Path], tiny_model: Path, tmp_path: Path):
    bulk(photos[0].parent, tmp_path / "out", tiny_model, "tar", folder=True)
    with tarfile.open(tmp_path / "out" / "part-000000.tar") as tar:
        assert tar.getnames()[:3] == ["000000000000.jpg", "000000000000.txt", "000000000000.json"]
        assert len(tar.getnames()) == 3 * len(photos)


def test_long_names_are_found(photos: list[Path], tmp_path: Path):
    name = "a" * 120 + "/" + "b" * 90 + ".jpg"
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "long.tar", "w", format=format) as tar:
            tar.add(photos[0], name)
            tar.add(photos[1], "._hidden.jpg")
        found, failures = list_shard(tmp_path / "long.tar")
        assert [photo.name for photo in found] == [f"{tmp_path}/long.tar::{name}"]
        assert failures == []
        assert found[0].read(2**20) == photos[0].read_bytes()


def spoil_header(shard: Path) -> None:
    """The fourth sample's photo has a broken header: its name and size are lost."""
    with tarfile.open(shard) as tar:
        at = tar.getmember("000000003.jpg").offset
    _write_at(shard, at + 100, b"\xff" * 50)


def spoil_photo(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        entry = tar.getmember("000000003.jpg")
    _write_at(shard, entry.offset_data, b"\0" * entry.size)


def cut_off(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        entry = tar.getmember("000000003.jpg")
    with shard.open("r+b") as file:
        file.truncate(entry.offset_data + entry.size // 2)


def lose_end(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        last = tar.getmembers()[-1]
    with shard.open("r+b") as file:
        file.truncate(last.offset_data + 512)


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def write_size(shard: Path, size: bytes) -> None:
    """The fourth sample's text says it has another size, in a header whose checksum is right."""
    with tarfile.open(shard) as tar:
        entry = tar.getmember("000000003.txt")
    header = bytearray(shard.read_bytes()[entry.offset : entry.offset + 512])
    header[124:136], header[148:156] = size, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    _write_at(shard, entry.offset, header)


def write_huge_size(shard: Path) -> None:
    write_size(shard, b"\x80" + (2**62).to_bytes(11, "big"))


def write_negative_size(shard: Path) -> None:
    write_size(shard, b"\xff" * 10 + (-512).to_bytes(2, "big", signed=True))


@pytest.mark.parametrize(
    ("spoil", "captioned", "complaints"),
    [
        (spoil_header, [0, 1, 2, 4, 5], ["is damaged from byte"]),
        (spoil_photo, [0, 1, 2, 4, 5], ["is not an image"]),
        (cut_off, [0, 1, 2], ["is cut off, the end of the shard", "is cut off, the end of its shard"]),
        (lose_end, [0, 1, 2, 3, 4, 5], ["is cut off, the end of the shard"]),
        (write_huge_size, [0, 1, 2, 3, 4, 5], ["is damaged from byte"]),
        (write_negative_size, [0, 1, 2, 3, 4, 5], ["is damaged from byte"]),
        (lambda shard: shard.write_bytes(b""), [], ["is empty"]),
        (lambda shard: shard.write_bytes(b"no tar file at all" * 99), [], ["is not a tar file"]),
        (lambda shard: shard.unlink(), [], ["does not exist"]),
    ],
    ids=["header", "photo", "cut off", "no end mark", "size 2^62", "size -512", "empty", "another file", "gone"],
)
def test_a_damaged_shard_costs_only_what_is_damaged(
    shards: Path,
    photos: list[Path],
    tiny_model: Path,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    captioned: list[int],
    complaints: list[str],
):
    listed = tmp_path / "shards.txt"
    listed.write_text(f"{shards}/00000.tar\n{shards}/00001.tar\n")
    spoil(shards / "00000.tar")
    assert bulk(listed, tmp_path / "a.jsonl", tiny_model).failed == len(complaints)
    rows = [row["source"].split("::") for row in lines(tmp_path / "a.jsonl")]
    assert [int(member[:9]) for shard, member in rows if shard.endswith("00000.tar")] == captioned
    assert len([1 for shard, _ in rows if shard.endswith("00001.tar")]) == len(photos) - COUNT
    errors = lines(tmp_path / "a.errors.jsonl")
    assert all(words in error["reason"] for words, error in zip(complaints, errors, strict=True))


def test_a_damaged_shard_is_written_without_what_is_damaged(shards: Path, tiny_model: Path, tmp_path: Path):
    spoil_photo(shards / "00000.tar")
    assert bulk(shards, tmp_path / "out", tiny_model, "tar", folder=True).failed == 1
    with tarfile.open(tmp_path / "out" / "part-000000.tar") as tar:
        assert len(tar.getnames()) == 4 * (COUNT - 1)
        assert not any(name.startswith("000000003") for name in tar.getnames())
    (error,) = lines(tmp_path / "out" / "_errors.jsonl")
    assert error["source"] == f"{shards}/00000.tar::000000003.jpg"


def test_no_byte_of_a_shard_can_stop_the_reader(shards: Path):
    """Any block overwritten: every photo before it is found, and reading ends."""
    whole = (shards / "00000.tar").read_bytes()
    clean = [entry.name for entry in members(io.BytesIO(whole), "x") if isinstance(entry, tarfile.TarInfo)]
    for block in range(0, len(whole) // 512, 3):
        spoilt = bytearray(whole)
        spoilt[block * 512 : block * 512 + 512] = b"\x07" * 512
        found = list(members(io.BytesIO(bytes(spoilt)), "x"))
        entries = [entry for entry in found if isinstance(entry, tarfile.TarInfo)]
        before = [name for name, entry in zip(clean, entries) if entry.offset < block * 512]
        assert [entry.name for entry in entries][: len(before)] == before
        assert len(entries) >= len(clean) - 1
        assert all(isinstance(one, Failure) for one in found if not isinstance(one, tarfile.TarInfo))


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def read_tar(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        names = tar.getnames()
        assert len(names) == len(set(names))
        return {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}


def test_two_photos_of_one_name_keep_their_own_captions(
    photos: list[Path], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from dataclasses import replace

    from sightline.bulk.engine import BulkEngine

    captions = BulkEngine.captions
    monkeypatch.setattr(  # the tiny model says the same of many photos
        BulkEngine,
        "captions",
        lambda self, images: [
            replace(caption, text=f"caption {hash(image.pixels[0].tobytes())}")
            for image, caption in zip(images, captions(self, images))
        ],
    )
    data = [photo.read_bytes() for photo in photos[:5]]
    files = [("a.jpg", data[0]), ("a.txt", b"one"), ("a.jpg", data[1]), ("a.txt", b"two"), ("b.jpg", b"bad")]
    files += [("b.jpg", data[2]), ("c.jpg", data[3]), ("a.jpg", data[4])]
    write_tar(tmp_path / "x.tar", files)
    assert bulk(tmp_path / "x.tar", tmp_path / "out", tiny_model, "tar", folder=True).failed == 1
    bulk(tmp_path / "x.tar", tmp_path / "x.jsonl", tiny_model)
    texts = [row["caption"] for row in lines(tmp_path / "x.jsonl")]
    assert len(set(texts)) == 5
    written = read_tar(tmp_path / "out" / "part-000000.tar")
    for key, photo, text in zip(("a", "a_2", "b", "c", "a_3"), data, texts, strict=True):
        assert written[f"{key}.jpg"] == photo
        assert written[f"{key}.txt"].decode() == text
    assert (written["a.original.txt"], written["a_2.original.txt"]) == (b"one", b"two")
    assert json.loads(written["a_2.json"])["sightline"]["renamed_from"] == "a.jpg"


def test_many_photos_of_one_name_are_numbered_with_few_lookups():
    class Names(set):
        lookups = 0

        def __contains__(self, name: object) -> bool:
            self.lookups += 1
            return super().__contains__(name)

    names = Names(["a/b_3.jpg"])
    for _ in range(1000):
        names.add(unused("a/b.jpg", names))
    assert names >= {"a/b.jpg", "a/b_2.jpg", "a/b_4.jpg", "a/b_5.jpg"}
    assert len(names) == 1001, "all differ"
    assert names.lookups < 30 * 1000


def test_every_photo_of_a_sample_has_its_caption_in_the_output(photos: list[Path], tiny_model: Path, tmp_path: Path):
    write_tar(tmp_path / "x.tar", [("a.before.jpg", photos[0].read_bytes()), ("a.after.jpg", photos[1].read_bytes())])
    bulk(tmp_path / "x.tar", tmp_path / "out", tiny_model, "tar", folder=True)
    facts = json.loads(read_tar(tmp_path / "out" / "part-000000.tar")["a.json"])["sightline"]
    assert list(facts["photos"]) == ["a.before.jpg", "a.after.jpg"]
    assert facts["photos"]["a.before.jpg"]["caption"] == facts["caption"]


def test_names_of_output_shards_stay_inside_the_folder_and_differ(photos: list[Path], tiny_model: Path, tmp_path: Path):
    data = photos[0].read_bytes()
    names = ["../../x.jpg", "/etc/y.jpg", "q\\..\\z.jpg", "C:/w.jpg", "a/./b..c/v.jpg", "x.jpg"]
    files = [(name, data) for name in names]
    write_tar(tmp_path / "x.tar", [*files, ("u.jpg", data), ("u.json", b"[1]"), ("u.txt", b"text")])
    for shard, out in (("x.tar", "out"), ("out/part-000000.tar", "again")):  # our own output is a shard, too
        bulk(tmp_path / shard, tmp_path / out, tiny_model, "tar", folder=True)
        written = read_tar(tmp_path / out / "part-000000.tar")
        found = [name for name in written if name.endswith(".jpg")]
        assert found == ["x.jpg", "etc/y.jpg", "q/z.jpg", "w.jpg", "a/./b..c/v.jpg", "x_2.jpg", "u.jpg"]
        assert (written["u.original.json"], written["u.original.txt"]) == (b"[1]", b"text")


def test_links_in_a_shard_are_named(photos: list[Path], tiny_model: Path, tmp_path: Path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(photos[0], "a.jpg")
        for name, kind in (("b.jpg", tarfile.SYMTYPE), ("c.jpg", tarfile.LNKTYPE), ("d.txt", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "a.jpg"
            tar.addfile(entry)
    files, failures = list_shard(tmp_path / "x.tar")
    assert len(files) == 1
    assert [failure.source for failure in failures] == [f"{tmp_path}/x.tar::{name}" for name in ("b.jpg", "c.jpg")]
    assert all("is a link to a.jpg" in failure.reason for failure in failures)


def test_a_damaged_size_does_not_stop_writing_shards(
    shards: Path, photos: list[Path], tiny_model: Path, tmp_path: Path
):
    write_huge_size(shards / "00000.tar")
    assert bulk(shards, tmp_path / "out", tiny_model, "tar", folder=True).failed == 1
    written = read_tar(tmp_path / "out" / "part-000000.tar")
    assert len([name for name in written if name.endswith(".jpg")]) == COUNT


def test_a_header_that_asks_for_all_memory_is_damage(tmp_path: Path):
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 2**62
    (tmp_path / "x.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + b"a" * 2048)
    assert list_shard(tmp_path / "x.tar")[0] == []
