"""Photos with captions in WebDataset shards: ``*.tar`` in a folder, or in its ``train/``, ``val/`` and ``test/``.

A sample's captions are the lines of its ``.txt``, or ``caption`` or ``captions`` of its ``.json``. Photos stay where
they are and are read one by one, so shards may be far larger than memory; only captions and byte ranges are kept.
A sample's files share a key, the name up to its first dot: ``000012.jpg``, ``000012.txt``, ``000012.json``. Reading
survives a damaged shard: what lies behind the damage is found again by its headers, and the damage is reported.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from sightline.data.builder import DatasetBuilder, Index
from sightline.data.dataset import SPLIT_NAMES, Dataset
from sightline.data.generated import ADVICE, KEY, generated_caption
from sightline.data.reading import json_object
from sightline.errors import DataError
from sightline.io.files import FileSlice, counted, is_image_path, printable
from sightline.io.progress import track
from sightline.types import Failure

SHARD_SUFFIX = ".tar"
BLOCK = tarfile.BLOCKSIZE
LARGEST_TEXT = 2**20  # bytes of a sample's .txt or .json
LINK = "links in shards are not followed, store the photo itself"


def detect(path: Path) -> bool:
    return is_shard(path) if path.is_file() else bool(_find(path))


def load(path: Path, seed: int | None) -> Dataset:
    root = path.parent if path.is_file() else path
    shards = [(path, "")] if path.is_file() else _find(path)
    index = Index({})  # by names such as 00000.tar::000012.jpg
    builder = DatasetBuilder("shards", root, images=index)
    generated: list[str] = []  # the shard of each photo whose caption Sightline wrote
    for shard, split in track(shards, "listing shards", len(shards)):
        for name, photo, captions, own in _samples(shard, root, builder):
            index.by_path[name] = photo
            for caption in captions:
                builder.add(name, caption, where=f"{shard.name}", split=split)
            if own and own in captions:
                generated.append(shard.name)
    if not index.by_path:
        raise DataError(f"no photo lies in the shards of {printable(path)}: name another folder")
    if generated:
        photos = f"{len(generated):,} of {counted(len(index.by_path), 'photo')}"
        builder.note(
            f"Sightline wrote the captions of {photos} (see the key {KEY} in the .json files of "
            f"{printable(generated[0])}): {ADVICE}"
        )
    return builder.finish(seed)


def _find(folder: Path) -> list[tuple[Path, str]]:
    """Shards and the split each belongs to, if its folder says so."""
    found = [(path, "") for path in sorted(folder.iterdir()) if is_shard(path) and path.is_file()]
    for below in sorted(folder.iterdir()):
        if below.is_dir() and below.name.lower() in SPLIT_NAMES:
            found += [(path, below.name) for path in sorted(below.iterdir()) if is_shard(path)]
    return found


def _samples(shard: Path, root: Path, builder: DatasetBuilder) -> Iterator[tuple[str, FileSlice, list[Any], str]]:
    """Each photo with its name in the dataset, its captions, and the caption that Sightline wrote, if it did."""
    relative = shard.relative_to(root).as_posix()
    used: set[str] = set()
    with shard.open("rb") as file:
        entries = (entry for entry in _entries(file, relative, builder) if entry.isreg() and not is_hidden(entry))
        for sample in group_samples(entries):
            photos, captions, described, own = [], [], list[Any](), ""
            for entry in sample:
                suffix = key_and_suffix(entry.name)[1]
                if is_image_path(entry.name):
                    photos.append(entry)
                elif suffix == "txt" and entry.size <= LARGEST_TEXT:
                    text = _content(file, entry).decode("utf-8", "replace")
                    captions += [line for line in text.splitlines() if line.strip()]
                elif suffix == "json" and entry.size <= LARGEST_TEXT:
                    facts = json_object(_content(file, entry))
                    described += _described(facts)
                    own = own or generated_caption(facts)
            for entry in photos[:1]:
                member = unused(entry.name, used)  # names may repeat in a shard
                used.add(member)
                image = FileSlice(str(shard), entry.offset_data, entry.size, f"{shard}::{member}")
                yield f"{relative}::{member}", image, captions or described, own


def _entries(file: BinaryIO, name: str, builder: DatasetBuilder) -> Iterator[tarfile.TarInfo]:
    for entry in members(file, name):
        if isinstance(entry, Failure):
            builder.note(f"{entry.source} {entry.reason}")
        else:
            yield entry


def _content(file: BinaryIO, entry: tarfile.TarInfo) -> bytes:
    file.seek(entry.offset_data)
    return file.read(entry.size)


def _described(facts: dict[str, Any]) -> list[Any]:
    found = facts.get("captions") or facts.get("caption") or []
    return found if isinstance(found, list) else [found]


def is_shard(path: str | Path) -> bool:
    return Path(path).suffix.lower() == SHARD_SUFFIX


def list_shard(path: str | Path) -> tuple[list[FileSlice], list[Failure]]:
    """Where a shard's files lie, in order, and what is wrong with the shard. A file is called ``SHARD::MEMBER``."""
    files, failures = [], []
    try:
        with Path(path).open("rb") as file:
            for member in members(file, str(path)):
                if isinstance(member, Failure):
                    failures.append(member)
                elif is_hidden(member):
                    continue
                elif member.isreg():
                    files.append(FileSlice(str(path), member.offset_data, member.size, f"{path}::{member.name}"))
                elif (member.issym() or member.islnk()) and is_image_path(member.name):
                    failures.append(
                        Failure(f"{path}::{member.name}", f"is a link to {printable(member.linkname)}: {LINK}")
                    )
    except FileNotFoundError:
        failures.append(Failure(str(path), "does not exist: check the path"))
    except OSError as error:
        failures.append(Failure(str(path), f"cannot be read: {error.strerror or error}"))
    return files, failures


def key_and_suffix(name: str) -> tuple[str, str]:
    """A sample's key and the suffix of one of its files: the file's name is cut at its first dot."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return folder + slash + key, suffix.lower()


def is_hidden(entry: tarfile.TarInfo) -> bool:
    return PurePosixPath(entry.name).name.startswith(".")


def group_samples(entries: Iterable[tarfile.TarInfo]) -> Iterator[list[tarfile.TarInfo]]:
    """Neighbouring entries of one key; a suffix that comes a second time begins another sample of the same key."""
    sample: list[tarfile.TarInfo] = []
    current, suffixes = "", set[str]()
    for entry in entries:
        key, suffix = key_and_suffix(entry.name)
        if sample and (key != current or suffix in suffixes):
            yield sample
            sample, suffixes = [], set()
        current = key
        sample.append(entry)
        suffixes.add(suffix)
    if sample:
        yield sample


def unused(name: str, used: Container[str]) -> str:
    """The name itself, or with a number where it is taken: of ``a/b.jpg`` the second is ``a/b_2.jpg``."""
    if name not in used:
        return name
    key, _ = key_and_suffix(name)
    rest = name[len(key) :]
    taken, free = 1, 2
    while f"{key}_{free}{rest}" in used:
        taken, free = free, 2 * free
    while free - taken > 1:  # bisection: a shard may repeat a name 100,000 times
        middle = (taken + free) // 2
        if f"{key}_{middle}{rest}" in used:
            taken = middle
        else:
            free = middle
    return f"{key}_{free}{rest}"


def members(file: BinaryIO, name: str) -> Iterator[tarfile.TarInfo | Failure]:
    """Every entry of a tar file; a damaged range is skipped up to the next sound header and comes as a failure.

    An entry whose size leads out of the file is either the last of a shard that is cut off, or its size is damaged:
    then headers follow.
    """
    length = file.seek(0, io.SEEK_END)
    position = 0
    while True:
        reached = position
        for entry in _run(file, position, length):
            end = entry.offset_data + -(-entry.size // BLOCK) * BLOCK
            if entry.size < 0 or end > length:
                if _next_header(file, entry.offset_data, length) >= 0:
                    break
                if entry.size >= 0:
                    yield entry
                yield Failure(name, "is cut off, the end of the shard is missing: copy or download it again")
                return
            reached = end
            yield entry
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


class _Bounded:
    """A file that never asks for more memory than is left to read, whatever size a header names."""

    mode = "rb"

    def __init__(self, file: BinaryIO, length: int):
        self.seek, self.tell, self._file, self._length = file.seek, file.tell, file, length

    def read(self, size: int) -> bytes:
        return self._file.read(max(0, min(size, self._length - self._file.tell())))


def _run(file: BinaryIO, position: int, length: int) -> Iterator[tarfile.TarInfo]:
    """The entries from here on, up to whatever tarfile cannot read; it does not say whether that is the end."""
    file.seek(position)
    try:
        with tarfile.TarFile(fileobj=cast(BinaryIO, _Bounded(file, length))) as tar:
            while (entry := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                yield entry
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError):
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
