"""What tests of bulk jobs that go wrong share: photos, broken ones among them, a job in small parts, its outcome."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sightline.bulk.inputs import find_inputs
from sightline.bulk.job import Output
from sightline.bulk.run import Settings, Summary, caption_all

PART = 8


def make_photos(flickr8k: Path, folder: Path, count: int) -> Path:
    """Every tenth is broken."""
    folder.mkdir()
    sources = sorted((flickr8k / "Flicker8k_Dataset").iterdir())
    for number in range(count):
        photo = folder / f"{number:04d}.jpg"
        if number % 10 == 9:
            photo.write_bytes(b"broken")
        else:
            os.link(sources[number % len(sources)], photo)
    return folder


def bulk(photos: Path, output: Path, model: Path, **settings) -> Summary:
    chosen = Settings(**{"workers": 0, "part_size": PART, "batch_size": 3, **settings})
    return caption_all([str(photos)], Output(output, "jsonl", False), [str(model)], chosen)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_complete(photos: Path, output: Path) -> None:
    """Captions and errors together: every input exactly once."""
    rows, errors = lines(output), lines(output.with_suffix(".errors.jsonl"))
    sources = [row["source"] for row in rows] + [row["source"] for row in errors]
    assert len(sources) == len(set(sources))
    assert sorted(sources) == sorted(map(str, find_inputs([str(photos)])))
    assert all(int(Path(row["source"]).stem) % 10 == 9 for row in errors)
    assert not output.with_name(output.name + ".parts").exists()


def parts(output: Path) -> dict[str, int]:
    """The parts in place, and when each came."""
    folder = output.with_name(output.name + ".parts")
    found = {}
    for path in folder.glob("part-*"):
        try:
            found[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # the job has just finished and taken them away
            continue
    return found
