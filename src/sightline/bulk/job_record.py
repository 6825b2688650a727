"""A job's record: what must not change between its runs, and which options to give where it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sightline.errors import ConfigError, DataError
from sightline.io.files import printable

OPTIONS = {  # of the command line, by the names in a job's identity
    "model": "--model", "format": "--output-format", "sidecars": "--sidecar", "embed": "--embed",
    "inputs": "the inputs", "include_unsure": "--include-unsure", "min_confidence": "--min-confidence",
    "beam": "--beam", "candidates": "--candidates", "sample": "--sample", "temperature": "--temperature",
    "seed": "--seed", "part_size": "--part-size",
}  # fmt: skip


class Change(NamedTuple):
    """An option of a job that has changed: "with --beam 3 (now 5)", and how to undo it: "give --beam 3"."""

    what: str
    undo: str


def read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(path)} cannot be read ({error}): begin again with --overwrite") from None
    names = {"identity", "listing", "roots", "skipped", "cwd", "adds", "kept", "first_part"}
    if not (isinstance(record, dict) and names <= set(record)):
        raise DataError(f"{printable(path)} is not a record of a job: begin again with --overwrite")
    return record


def check_same(
    output: Path, kind: str, record: dict[str, Any], identity: dict[str, Any], options: Mapping[str, str] = OPTIONS
) -> None:
    """Refuse a job of other inputs or options. How a finished one was cut into parts does not matter."""
    names = identity.keys() if kind == "an unfinished" else identity.keys() - {"part_size"}
    differ = [name for name in identity if name in names and identity[name] != record["identity"].get(name)]
    if differ:
        changes = [change for name in differ for change in _changes(name, record["identity"], identity, options)]
        instead = "finish it with the same command"
        if kind != "an unfinished":
            instead = f"{' and '.join(change.undo for change in changes)}, choose another output"
        raise ConfigError(
            f"{printable(output)} holds {kind} job {', '.join(change.what for change in changes)}: "
            f"{instead}, or begin again with --overwrite"
        )


def _changes(name: str, before: dict[str, Any], now: dict[str, Any], options: Mapping[str, str]) -> list[Change]:
    """How an option of a job has changed, with both values."""
    old, new = before.get(name), now[name]
    if name == "decoding":
        known = old if isinstance(old, dict) else {}
        return [change for key in new if known.get(key) != new[key] for change in _changes(key, known, new, options)]
    option = options.get(name)
    if isinstance(new, bool) and option:
        if new:
            return [Change(f"without {option} (now with it)", f"leave out {option}")]
        return [Change(f"with {option} (now without it)", f"give {option} again")]
    was, is_now = (printable(_value_text(value)) for value in (old, new))
    given = f"{option} {was}" if option else f"--set {name}={was}"
    same = {"inputs": "name the same inputs", "model": "give the same --model (and --datastore)"}
    return [Change(f"with {given} (now {is_now})", same.get(name, f"give {given}"))]


def _value_text(value: Any) -> str:
    """A value as it is given on the command line."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
