"""Datasets of the Hugging Face hub: ``hf:owner/name``, or ``hf:FOLDER`` for one that lies on this machine.

Columns are found by their type and name, or are named: ``hf:owner/name?image=photo&captions=alt,title``. ``config``,
``revision`` and ``split`` are passed on to the library. The photos are written to the cache folder once, as they were
published.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from sightline.data.builder import DatasetBuilder, Index
from sightline.data.dataset import Dataset
from sightline.data.folder import CAPTION, SPLIT
from sightline.errors import ConfigError, DataError, nearest, require
from sightline.io.files import cache_folder, printable, write_atomically
from sightline.io.progress import track

PREFIX = "hf:"
OPTIONS = ("image", "captions", "config", "revision", "split")
NUMBERED = re.compile(r"(captions?|sentences?|texts?|descriptions?)[_-]?\d+")  # caption_0 … caption_4
OTHER_CAPTIONS = ("alt_text", "alt", "raw", "sentences_raw")
SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"GI": ".gif", b"BM": ".bmp", b"II": ".tif"}


class Columns(NamedTuple):
    image: str
    captions: tuple[str, ...]
    split: str  # empty where there is none


def is_hub_name(path: object) -> bool:
    return str(path).startswith(PREFIX)


def load(path: str, seed: int | None) -> Dataset:
    """The dataset, checked as any other."""
    require("datasets", "--data hf:…")
    name, _, query = path.removeprefix(PREFIX).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if wrong := [key for key in options if key not in OPTIONS]:
        raise ConfigError(f"{path}: unknown option {wrong[0]!r}{nearest(wrong[0], OPTIONS)}: {', '.join(OPTIONS)}")
    splits = _download(name, options)
    columns = find_columns(name, next(iter(splits.values())).features, options)
    root = _folder(name, columns, splits)
    builder = DatasetBuilder(Path(name).name, root, images=Index(_write_photos(root, splits, columns)))
    published = len(splits) > 1
    for split, table in splits.items():
        texts = table.select_columns([*columns.captions, *([columns.split] if columns.split else [])])
        for number, row in enumerate(texts):
            row_split = str(row[columns.split]) if columns.split else split if published else ""
            captions = [text for column in columns.captions for text in captions_in(row[column])]
            for caption in captions or [""]:
                where = f"{split} row {number}"
                builder.add(f"{split}/{number:07d}", caption, where=where, split=row_split.partition("[")[0])
    return builder.finish(seed)


def find_columns(name: str, features: Mapping[str, Any], options: Mapping[str, str]) -> Columns:
    """The columns with photos, captions and splits: those named in the options, or by type and common names."""
    listed = ", ".join(features)
    for key in ("image", "captions"):
        for column in options[key].split(",") if key in options else ():
            if column not in features:
                raise DataError(f"{name} has no column {column!r}{nearest(column, features)}; it has {listed}")
    photos = [column for column, kind in features.items() if type(kind).__name__ == "Image"]
    image = options.get("image") or ("image" if "image" in photos else photos[0] if len(photos) == 1 else "")
    if not photos:
        raise DataError(f"{name} has no column of images; its columns are {listed}")
    if image not in photos:
        reason = f"{image} holds no images" if image else f"there are images in {' and '.join(photos)}"
        raise DataError(f"{name}: {reason}; name the column, as in hf:{name}?image={photos[0]}")
    plain = {column.lower(): column for column in features if column != image}
    known = [plain[known] for known in (*CAPTION, *OTHER_CAPTIONS) if known in plain][:1]
    numbered = [column for column in features if NUMBERED.fullmatch(column.lower())]
    captions = options["captions"].split(",") if "captions" in options else known or numbered
    if not captions:
        example = next(iter(plain.values()), "text")
        advice = f"name one or more, as in hf:{name}?captions={example}"
        raise DataError(f"{name} has no known column of captions; its columns are {listed}: {advice}")
    return Columns(image, tuple(captions), next((plain[known] for known in SPLIT if known in plain), ""))


def captions_in(value: Any) -> Iterator[str]:
    """The captions of a cell: a text, a list, or objects whose ``raw`` is the text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from captions_in(value.get("raw"))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from captions_in(inner)


def _download(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The dataset's splits as tables of the library."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    datasets.disable_progress_bars()
    try:
        given = {key: options[key] for key in ("revision", "split") if key in options}
        found: Any = datasets.load_dataset(name, options.get("config"), **given)
    except DatasetNotFoundError:
        advice = "check the name; private datasets need `hf auth login`"
        raise DataError(f"the Hugging Face hub has no dataset {name!r}, or it is private: {advice}") from None
    except (OSError, ValueError, RuntimeError) as error:  # the library's own words, cut to one line
        reason = printable(str(error).strip().partition("\n")[0])[:300]
        raise DataError(f"hf:{name} cannot be loaded ({type(error).__name__}): {reason}") from None
    return dict(found) if isinstance(found, Mapping) else {options.get("split", "train"): found}


def _folder(name: str, columns: Columns, splits: Mapping[str, Any]) -> Path:
    """Where the photos go; another version of the dataset has another folder."""
    facts = {split: [table.num_rows, getattr(table, "_fingerprint", "")] for split, table in splits.items()}
    digest = hashlib.sha256(json.dumps([columns.image, facts]).encode()).hexdigest()[:12]
    return cache_folder() / "datasets" / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name).strip('-.')}-{digest}"


def _write_photos(root: Path, splits: Mapping[str, Any], columns: Columns) -> dict[str, Path]:
    """Every photo as a file, those that are there already left alone; by split and number."""
    from datasets import Image

    files: dict[str, Path] = {}
    for split, table in splits.items():
        photos = table.select_columns([columns.image]).cast_column(columns.image, Image(decode=False))
        there = {path.stem: path for path in (root / split).glob("*")}
        for number in track(range(len(photos)), f"photos of {split}", len(photos)):
            key = f"{number:07d}"
            if key not in there and (cell := photos[number][columns.image]) is not None:
                data = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
                there[key] = root / split / f"{key}{SUFFIXES.get(data[:2], '.jpg')}"
                write_atomically(there[key], data)
            if key in there:
                files[f"{split}/{key}"] = there[key]
    return files
