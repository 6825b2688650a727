"""Photos with captions in WebDataset shards: ``*.tar`` in a folder, or in its ``train/``, ``val/`` and ``test/``.

A sample's captions are the lines of its ``.txt``, or ``caption`` or ``captions`` of its ``.json``. Photos stay where
they are and are read one by one, so shards may be far larger than memory; only captions and byte ranges are kept.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from sightline.data.builder import DatasetBuilder
from sightline.data.dataset import SPLIT_NAMES, Dataset
from sightline.data.tar import is_shard, key_and_suffix, members
from sightline.errors import DataError
from sightline.io.files import FileSlice, is_image_path, printable
from sightline.io.progress import track
from sightline.types import Failure

LARGEST_TEXT = 2**20  # bytes of a sample's .txt or .json


class ShardIndex:
    """The photos of some shards by name, ``00000.tar::000012.jpg``."""

    def __init__(self) -> None:
        self.by_path: dict[str, FileSlice] = {}

    def find(self, name: str) -> list[FileSlice]:
        return [self.by_path[name]] if name in self.by_path else []

    def escapes(self, name: str) -> bool:
        return False  # a name is only looked up, never followed


def detect(path: Path) -> bool:
    return is_shard(path) if path.is_file() else bool(_find(path))


def load(path: Path, seed: int) -> Dataset:
    root = path.parent if path.is_file() else path
    shards = [(path, "")] if path.is_file() else _find(path)
    index = ShardIndex()
    builder = DatasetBuilder("shards", root, images=index)
    for shard, split in track(shards, "listing shards", len(shards)):
        for name, photo, captions in _samples(shard, root, builder):
            index.by_path[name] = photo
            for caption in captions:
                builder.add(name, caption, where=f"{shard.name}", split=split)
    if not index.by_path:
        raise DataError(f"no photo lies in the shards of {printable(path)}: name another folder")
    return builder.finish(seed)


def _find(folder: Path) -> list[tuple[Path, str]]:
    """Shards and the split each belongs to, if its folder says so."""
    found = [(path, "") for path in sorted(folder.iterdir()) if is_shard(path) and path.is_file()]
    for below in sorted(folder.iterdir()):
        if below.is_dir() and below.name.lower() in SPLIT_NAMES:
            found += [(path, below.name) for path in sorted(below.iterdir()) if is_shard(path)]
    return found


def _samples(shard: Path, root: Path, builder: DatasetBuilder) -> Iterator[tuple[str, FileSlice, list[Any]]]:
    """Each photo with its name in the dataset and its captions."""
    relative = shard.relative_to(root).as_posix()
    with shard.open("rb") as file:
        entries = (entry for entry in _entries(file, relative, builder) if entry.isreg())
        for _, sample in groupby(entries, key=lambda entry: key_and_suffix(entry.name)[0]):
            photos, captions, facts = [], [], []
            for entry in sample:
                suffix = key_and_suffix(entry.name)[1]
                if is_image_path(entry.name):
                    photos.append(entry)
                elif suffix == "txt" and entry.size <= LARGEST_TEXT:
                    text = _content(file, entry).decode("utf-8", "replace")
                    captions += [line for line in text.splitlines() if line.strip()]
                elif suffix == "json" and entry.size <= LARGEST_TEXT:
                    facts += _described(_content(file, entry))
            for entry in photos[:1]:
                name = f"{relative}::{entry.name}"
                image = FileSlice(str(shard), entry.offset_data, entry.size, f"{shard}::{entry.name}")
                yield name, image, captions or facts


def _entries(file: BinaryIO, name: str, builder: DatasetBuilder) -> Iterator[tarfile.TarInfo]:
    for entry in members(file, name):
        if isinstance(entry, Failure):
            builder.note(f"{entry.source} {entry.reason}")
        else:
            yield entry


def _content(file: BinaryIO, entry: tarfile.TarInfo) -> bytes:
    file.seek(entry.offset_data)
    return file.read(entry.size)


def _described(data: bytes) -> list[Any]:
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return []
    if not isinstance(facts, dict):
        return []
    found = facts.get("captions") or facts.get("caption") or []
    return found if isinstance(found, list) else [found]
