"""WebDataset shards with our captions: a shard again with new texts, or a new one of single photos."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from sightline.data.tar import key_and_suffix, members
from sightline.types import Caption

LARGEST_FACTS = 16 * 2**20  # of a sample's .json, in bytes


def copy_captioned(target: Path, shard: str, captions: Mapping[str, Caption]) -> None:
    """The shard again, with our caption as each sample's ``.txt``; samples without one are left out.

    What stood in ``.txt`` before stays as ``.original.txt``; ``.json`` gains ``sightline``, the rest is copied.
    """
    with Path(shard).open("rb") as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        sound = (entry for entry in members(file, shard) if isinstance(entry, tarfile.TarInfo) and entry.isreg())
        for key, group in groupby(sound, key=lambda entry: key_and_suffix(entry.name)[0]):
            sample = list(group)
            known = [found for entry in sample if (found := captions.get(f"{shard}::{entry.name}")) is not None]
            if known:
                _copy_sample(out, file, key, sample, known[0])


def _copy_sample(
    out: tarfile.TarFile, file: BinaryIO, key: str, sample: list[tarfile.TarInfo], caption: Caption
) -> None:
    facts: dict[str, Any] = {}
    for entry in sample:
        file.seek(entry.offset_data)
        data = file.read(entry.size)
        suffix = key_and_suffix(entry.name)[1]
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


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
