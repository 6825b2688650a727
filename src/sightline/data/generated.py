"""Captions that Sightline wrote, recognised where a dataset has them in the place of people's.

A table is recognised by its columns, a sample of a shard by the key ``sightline`` in its ``.json``. Sidecars are plain
text: they are compared with that ``.json`` where a shard was unpacked, or else with the table of the job that wrote
them, which is looked for in the photos' folder, the folder above it and the working directory. Where that table is
gone, nothing tells such a sidecar from a person's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from sightline.errors import SightlineError
from sightline.io.files import printable
from sightline.types import UNSURE

KEY = "sightline"  # of a sample's .json
COLUMNS = ("confidence", UNSURE, "finished")  # in every table of captions that Sightline writes
RECORD = ".job.json"  # ends the name of a job's record, beside its table
ADVICE = "scores against them compare a model with a model; evaluate with captions that people wrote"


class Sidecar(NamedTuple):
    photo: Path
    path: Path
    text: str


def is_generated(columns: Collection[str]) -> bool:
    """Whether a table has the columns that Sightline writes, whatever its column of photos is called."""
    return set(COLUMNS) <= set(columns)


def generated_caption(facts: Any) -> str:
    """The caption that Sightline wrote into a sample's ``.json``; empty if it wrote none."""
    own = facts.get(KEY) if isinstance(facts, dict) else None
    text = own.get("caption") if isinstance(own, dict) else None
    return text if isinstance(text, str) else ""


def generated_sidecars(root: Path, sidecars: Sequence[Sidecar]) -> tuple[int, str]:
    """How many of the sidecars have a caption that Sightline wrote, and where else that caption stands."""
    found = {sidecar.path for sidecar in sidecars if sidecar.text == _unpacked_caption(sidecar.path)}
    where = f"the key {KEY} of their .json" if found else ""
    keys = {(sidecar.photo.name, sidecar.text) for sidecar in sidecars}
    for table in _tables_of_sidecars(root):
        if written := _rows_among(keys, table):
            found |= {sidecar.path for sidecar in sidecars if (sidecar.photo.name, sidecar.text) in written}
            where = printable(table)
    return len(found), where


def _unpacked_caption(sidecar: Path) -> str:
    facts = sidecar.with_suffix(".json")
    with suppress(OSError, ValueError, RecursionError):
        return generated_caption(json.loads(facts.read_bytes())).strip() if facts.is_file() else ""
    return ""


def _tables_of_sidecars(root: Path) -> Iterator[Path]:
    """The tables, or folders of parts, of jobs near the photos that also wrote sidecars."""
    for folder in dict.fromkeys(path.resolve() for path in (root, root.parent, Path.cwd())):
        records = [*sorted(folder.glob(f"*{RECORD}")), *sorted(folder.glob("*/_job.json"))]
        for record in records:
            with suppress(OSError, ValueError, TypeError, KeyError):
                if json.loads(record.read_bytes())["identity"]["sidecars"] is True:
                    is_folder = record.name == "_job.json"
                    yield record.parent if is_folder else record.with_name(record.name.removesuffix(RECORD))


def _rows_among(keys: Collection[tuple[str, str]], table: Path) -> set[tuple[str, str]]:
    """Those of these file names and captions that a table has; none of one that cannot be read."""
    from sightline.data.tables import read_captions  # it imports the folder format, which imports this

    with suppress(SightlineError):
        rows = ((PurePath(source).name, text.strip()) for source, text, _ in read_captions(table))
        return {row for row in rows if row in keys}
    return set()
