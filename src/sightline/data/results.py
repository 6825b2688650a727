"""Captions to and from disk in COCO's results format, ``[{"image_id": …, "caption": …}]``, which all scorers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sightline.data.reading import objects, read_json
from sightline.errors import DataError
from sightline.io.files import printable, write_atomically


def write_results(path: str | Path, captions: Mapping[str, str]) -> None:
    """Generated captions by example name; COCO's numbers become numbers again."""
    rows = [{"image_id": _number(name), "caption": caption} for name, caption in captions.items()]
    write_atomically(path, json.dumps(rows, ensure_ascii=False, indent=0) + "\n")


def read_results(path: str | Path) -> dict[str, str]:
    """Captions by image name; two captions of one image are an error, for only one can be scored."""
    rows = read_json(Path(path))
    if not isinstance(rows, list):
        raise DataError(f'{printable(path)} is not a results file: it must be a list of {{"image_id", "caption"}}')
    captions: dict[str, str] = {}
    for position, row in enumerate(rows):
        name, caption = _row(row, position, path)
        if name in captions:
            raise DataError(f"{printable(path)} captions image {printable(name)} twice: keep one caption per image")
        captions[name] = caption
    return captions


def read_references(path: str | Path) -> dict[str, list[str]]:
    """People's captions by image name, from an annotation file in COCO's format."""
    references: dict[str, list[str]] = {}
    for position, row in enumerate(objects(read_json(Path(path)), "annotations", Path(path))):
        name, caption = _row(row, position, path)
        references.setdefault(name, []).append(caption)
    return references


def _row(row: object, position: int, path: str | Path) -> tuple[str, str]:
    name = row.get("image_id") if isinstance(row, dict) else None
    caption = row.get("caption") if isinstance(row, dict) else None
    if type(name) not in (int, str) or not isinstance(caption, str):
        raise DataError(f"{printable(path)} entry {position} lacks an image_id or a caption: write it again")
    return str(name), caption


def _number(name: str) -> int | str:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else name
