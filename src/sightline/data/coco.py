"""COCO captions (Chen et al., 2015): the public splits of ``dataset_coco.json``, or the official annotations.

An example's name is COCO's image number, the ``image_id`` of its results files.
"""

from __future__ import annotations

import re
from pathlib import Path

from sightline.data.builder import DatasetBuilder, add_karpathy_rows
from sightline.data.dataset import Dataset
from sightline.data.reading import find_file, folders_under, objects, read_json
from sightline.errors import DataError
from sightline.io.files import printable

KARPATHY = "dataset_coco.json"
ANNOTATIONS = re.compile(r"captions_(train|val)(\d{4})\.json")
UNCAPTIONED = ("test2014", "test2015", "test2017", "unlabeled2017")


def detect(path: Path) -> bool:
    return path.is_dir() and (find_file(path, KARPATHY) is not None or bool(_annotation_files(path)))


def load(path: Path, seed: int | None) -> Dataset:
    karpathy, annotations = find_file(path, KARPATHY), _annotation_files(path)
    if karpathy is None and not annotations:
        raise DataError(f"{printable(path)} is not COCO: neither {KARPATHY} nor captions_train2017.json lies there")
    builder = DatasetBuilder("coco", path, held_out=1 / 25, skip_folders=UNCAPTIONED)  # 5,000 of about 123,000
    if karpathy is not None:
        add_karpathy_rows(builder, karpathy)
    else:
        for file in annotations:
            _add_annotations(builder, file)
    return builder.finish(seed)


def _annotation_files(root: Path) -> list[Path]:
    """The official files of one year: both years show the same photos, so take the one whose photos are here."""
    folders = folders_under(root)
    years: dict[str, list[Path]] = {}
    for folder in folders:
        for file in sorted(folder.glob("captions_*.json")):
            if match := ANNOTATIONS.fullmatch(file.name):
                years.setdefault(match[2], []).append(file)
    here = {folder.name[-4:] for folder in folders if re.fullmatch(r"(train|val)\d{4}", folder.name)}
    return years[max(years, key=lambda year: (year in here, year))] if years else []


def _add_annotations(builder: DatasetBuilder, path: Path) -> None:
    content = read_json(path)
    split = "train" if "train" in path.name else "val"
    files: dict[object, str] = {}
    for position, image in enumerate(objects(content, "images", path)):
        try:
            files[image["id"]] = str(image["file_name"])
        except (KeyError, TypeError):
            builder.report.add("unreadable_row", f"{path.name} image {position}")
    for position, row in enumerate(objects(content, "annotations", path)):
        where = f"{path.name} annotation {position}"
        try:
            number, caption = row["image_id"], row["caption"]
            file = files[number]
        except (KeyError, TypeError):
            builder.report.add("unreadable_row", where)
            continue
        builder.add(file, caption, where=where, number=str(row.get("id", "")), split=split, name=str(number))
