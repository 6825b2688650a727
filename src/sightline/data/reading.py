"""Files of captions: those that datasets are published in, and results files with generated captions.

Results are in COCO's format, ``[{"image_id": …, "caption": …}]``, which all scorers read.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sightline.errors import DataError
from sightline.io.files import printable, write_atomically

DEPTH, MOST_FOLDERS = 3, 1000  # below a dataset that are searched


def folders_under(root: Path) -> list[Path]:
    """The folder itself and those below it, nearest first: archives unpack with a level or two too many."""
    found, level = [root], [root]
    for _ in range(DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                with os.scandir(folder) as entries:  # asks the system about no single file: a folder may hold 100,000
                    names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name[:1] not in "._")
            except OSError:
                continue  # a folder we may not list holds nothing for us
            below += [folder / name for name in names]
        found, level = found + below, below
        if len(found) > MOST_FOLDERS:
            break
    return found[:MOST_FOLDERS]


def find_file(root: Path, *names: str) -> Path | None:
    """The first of these file names that lies under root; earlier names win, then nearer folders."""
    folders = folders_under(root)
    return next((folder / name for name in names for folder in folders if (folder / name).is_file()), None)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line) of a text file, ``.gz`` or plain; bytes that cannot be decoded become the mark U+FFFD."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding=text_encoding(path), errors="replace") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {printable(path)}: {reason}; check the file") from error


def text_encoding(path: Path) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so, as PowerShell and Excel write it."""
    with path.open("rb") as file:
        start = file.read(2)
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def read_text(path: str | Path) -> list[str]:
    """One caption per line, from ``.txt`` or ``.txt.gz``; blank lines are skipped. For language pre-training."""
    captions = [line.strip() for _, line in read_lines(Path(path)) if line.strip()]
    if not captions:
        raise DataError(f"{printable(path)} holds no text: give a file with one caption per line")
    return captions


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {printable(path)}: {error.strerror}; check the file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{printable(path)} is not JSON ({error}): give a JSON file, or get it again") from None


def json_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object; empty where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def objects(value: Any, key: str, path: Path) -> list[Any]:
    """The list under a key of a JSON object."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f'{printable(path)} has no list "{key}": it is not a captions file of this format')
    return found


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
