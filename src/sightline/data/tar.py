"""WebDataset shards, as img2dataset makes them: tar files of samples, each a photo with its text and facts.

A sample's files share a key, the name up to its first dot: ``000012.jpg``, ``000012.txt``, ``000012.json``. Reading
survives a damaged shard: what lies behind the damage is found again by its headers, and the damage is reported.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from sightline.io.files import FileSlice
from sightline.types import Failure

BLOCK = tarfile.BLOCKSIZE


SHARD_SUFFIX = ".tar"


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
                elif member.isreg() and not PurePosixPath(member.name).name.startswith("."):
                    files.append(FileSlice(str(path), member.offset_data, member.size, f"{path}::{member.name}"))
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
