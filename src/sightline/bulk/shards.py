"""WebDataset shards, as img2dataset makes them: tar files of samples, each a photo with its text and facts.

A sample's files share a key, the name up to its first dot: ``000012.jpg``, ``000012.txt``, ``000012.json``. Reading
survives a damaged shard: what lies behind the damage is found again by its headers, and the damage is told.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from sightline.files import is_image_path
from sightline.types import Caption, Failure

BLOCK = tarfile.BLOCKSIZE
LARGEST_FACTS = 16 * 2**20  # of a sample's .json, in bytes


@dataclass(frozen=True)
class Photo:
    """One input: a file, or a stretch of a shard; ``source`` is what tables call it."""

    source: str
    path: str
    offset: int = 0
    size: int = -1  # of a stretch; a file of its own is read whole


def is_shard(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".tar"


def list_photos(path: str, name: str) -> tuple[list[Photo], list[Failure]]:
    """Where a shard's photos lie, in order, and what is wrong with the shard; ``name`` is what tables call it."""
    photos, failures = [], []
    try:
        with Path(path).open("rb") as file:
            for member in members(file, name):
                if isinstance(member, Failure):
                    failures.append(member)
                elif is_photo(member):
                    source = f"{name}::{member.name}"
                    photos.append(Photo(source, path, member.offset_data, member.size))
    except FileNotFoundError:
        failures.append(Failure(name, "does not exist: check the path"))
    except OSError as error:
        failures.append(Failure(name, f"cannot be read: {error.strerror or error}"))
    return photos, failures


def is_photo(member: tarfile.TarInfo) -> bool:
    return member.isreg() and is_image_path(member.name) and not PurePosixPath(member.name).name.startswith(".")


def members(file: BinaryIO, name: str) -> Iterator[tarfile.TarInfo | Failure]:
    """Every entry of a tar file; a damaged stretch is skipped up to the next sound header and comes as a failure."""
    length = file.seek(0, io.SEEK_END)
    position = 0
    while True:
        reached = position
        for entry in _run(file, position):
            reached = entry.offset_data + -(-entry.size // BLOCK) * BLOCK
            yield entry
        if reached > length:
            yield Failure(name, "is cut off, the end of the shard is missing: copy or download it again")
            return
        file.seek(reached)
        block = file.read(BLOCK)
        if len(block) == BLOCK and not any(block):
            return  # the end mark
        if len(block) < BLOCK:
            what = "is empty" if length == 0 else "is cut off, the end of the shard is missing"
            yield Failure(name, f"{what}: copy or download it again")
            return
        position = _next_header(file, reached + BLOCK, length)
        if position < 0:
            what = "is not a tar file" if reached == 0 else f"is damaged from byte {reached:,} to its end"
            yield Failure(name, f"{what}: copy or download it again")
            return
        yield Failure(
            name, f"is damaged from byte {reached:,} to {position:,}, what lay there is lost: copy or download it again"
        )


def _run(file: BinaryIO, position: int) -> Iterator[tarfile.TarInfo]:
    """The entries from here on, up to whatever tarfile cannot read; it does not say whether that is the end."""
    file.seek(position)
    try:
        with tarfile.TarFile(fileobj=file) as tar:
            while (entry := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                yield entry
    except (tarfile.TarError, ValueError, OverflowError):
        return


def _next_header(file: BinaryIO, position: int, length: int) -> int:
    """Where the next sound header begins, or -1."""
    file.seek(position)
    while position < length:
        block = file.read(BLOCK)
        try:
            if tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").name:
                return position
        except tarfile.HeaderError:
            pass
        position += BLOCK
    return -1


def read_stretch(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def copy_captioned(target: Path, shard: str, name: str, captions: Mapping[str, Caption]) -> None:
    """The shard again, with our caption as each sample's ``.txt``; samples without one are left out.

    What stood in ``.txt`` before stays as ``.original.txt``; ``.json`` gains ``sightline``, the rest is copied.
    """
    with Path(shard).open("rb") as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        sound = (entry for entry in members(file, name) if isinstance(entry, tarfile.TarInfo) and entry.isreg())
        for key, group in groupby(sound, key=lambda entry: _split(entry.name)[0]):
            sample = list(group)
            known = [found for entry in sample if (found := captions.get(f"{name}::{entry.name}")) is not None]
            if known:
                _copy_sample(out, file, key, sample, known[0])


def _copy_sample(
    out: tarfile.TarFile, file: BinaryIO, key: str, sample: list[tarfile.TarInfo], caption: Caption
) -> None:
    facts: dict[str, Any] = {}
    for entry in sample:
        data = read_stretch(file, entry.offset_data, entry.size)
        suffix = _split(entry.name)[1]
        if suffix == "json" and len(data) <= LARGEST_FACTS and isinstance(found := _json(data), dict):
            facts = found
        else:
            add_file(out, f"{key}.original.txt" if suffix == "txt" else entry.name, data)
    add_caption(out, key, caption, facts)


def add_caption(out: tarfile.TarFile, key: str, caption: Caption, facts: Mapping[str, Any]) -> None:
    """A sample's caption as text, and with its facts as JSON."""
    add_file(out, f"{key}.txt", caption.text.encode())
    described = {name: value for name, value in caption.as_dict().items() if name != "source"}
    add_file(out, f"{key}.json", json.dumps({**facts, "sightline": described}).encode())


def add_file(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)  # of no one and no time: the same captions make the same shard
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))


def _split(name: str) -> tuple[str, str]:
    """A sample's key and the suffix of one of its files: the file's name is cut at its first dot."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return folder + slash + key, suffix.lower()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
