"""When ``sightline caption`` is a bulk job, and what then happens."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from sightline.errors import ConfigError, SightlineError

MANY = 1000  # photos; up to so many go into one file in one go, as quickly done again as continued
TABLES = ("parquet", "jsonl", "csv")


@dataclass(frozen=True)
class Wish:
    """The options that only bulk jobs have; None and False are those not given."""

    workers: int | None = None
    device: str | None = None
    part_size: int | None = None
    sidecars: bool = False
    embed: bool = False
    tar: bool = False
    overwrite: bool = False
    ray: str | None = None

    @property
    def given(self) -> bool:
        return self != Wish()


def is_bulk(inputs: Sequence[str], output: str | None, form: str, wish: Wish) -> bool:
    """Whether these inputs are worth parts that can be continued: shards, lists, folders of parts, many photos."""
    if output is None and not wish.given and not any(source.lower().endswith(".tar") for source in inputs):
        return False  # nearly always, and without importing the formats of datasets
    from sightline.bulk.inputs import LISTS, find
    from sightline.data.tar import is_shard

    if output is None:
        if wish.given or any(map(is_shard, inputs)):
            raise ConfigError("a bulk job needs somewhere to write: add -o captions.parquet, or -o FOLDER/")
        return False
    if wish.given or form == "parquet" or _is_folder(output) or any(map(is_shard, inputs)):
        return True
    if form not in TABLES:
        return False
    if any(Path(source).suffix.lower() in LISTS and Path(source).is_file() for source in inputs):
        return True
    try:
        first = list(islice(find(inputs), MANY + 1))
    except SightlineError:  # said in its place, and the others are captioned
        return False
    return len(first) > MANY or any(isinstance(name, str) and is_shard(name) for name in first)


def caption_in_bulk(
    inputs: Sequence[str],
    output: str,
    form: str,
    models: Sequence[str],
    batch_size: int,
    options: dict[str, Any],
    wish: Wish,
    runtime: str = "auto",
    datastore: str | None = None,
) -> None:
    """Carry the job out, or on; exit code 1 says that some inputs failed."""
    from sightline.bulk.job import Output
    from sightline.bulk.run import Settings, caption_all

    folder = _is_folder(output)
    form = "tar" if wish.tar else "parquet" if folder and form == "text" else form
    if form not in (*TABLES, "tar") or (form == "tar" and not folder):
        raise ConfigError(
            f"a bulk job cannot write {output!r}: name a .parquet, .jsonl or .csv file, or a FOLDER/ "
            "(with --jsonl, --csv or --tar if not Parquet)"
        )
    settings = Settings(
        batch_size=batch_size,
        workers=wish.workers,
        device=wish.device or "auto",
        runtime=runtime,
        datastore=datastore,
        part_size=wish.part_size or MANY,
        sidecars=wish.sidecars,
        embed=wish.embed,
        overwrite=wish.overwrite,
    )
    summary = caption_all(inputs, Output(Path(output), form, folder), models, settings, options, wish.ray)
    if summary.failed:
        raise typer.Exit(1)


def with_address(arguments: Sequence[str]) -> list[str]:
    """``--ray`` may stand alone: what follows is its value only if it looks like a cluster's address."""
    filled = []
    for place, argument in enumerate(arguments):
        filled.append(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument == "--ray" and not re.fullmatch(r"auto|local|ray://.+|[\w.-]+:\d+", following):
            filled.append("")
    return filled


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or Path(output).is_dir()
