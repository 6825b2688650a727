"""The caption files that several datasets share: token files, Karpathy's JSON and lists of image names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sightline.data.gathering import Gathering
from sightline.data.reading import find_file, objects, read_json, read_lines


def add_token_rows(gathering: Gathering, path: Path) -> None:
    """``photo.jpg#0<tab>caption``, as Flickr8k and Flickr30k were first published."""
    for line_number, line in read_lines(path):
        if not line.strip():
            continue
        key, _, caption = line.partition("\t")
        image, separator, number = key.rpartition("#")
        text = caption if separator and "\t" in line else None
        gathering.add(image, text, where=f"{path.name} line {line_number}", number=number.strip())


def add_karpathy_rows(gathering: Gathering, path: Path) -> None:
    """``dataset_*.json`` of Karpathy & Fei-Fei (2015): captions and the public splits of Flickr8k, 30k and COCO."""
    for position, entry in enumerate(objects(read_json(path), "images", path)):
        where = f"{path.name} image {position}"
        try:
            image, split = str(entry["filename"]), str(entry["split"])
            name = str(entry.get("cocoid", "")) or image
            captions = [sentence["raw"] for sentence in entry["sentences"]]
        except (KeyError, TypeError, AttributeError):
            gathering.report.add("unreadable_row", where)
            continue
        if not gathering.images.find(image):  # COCO photos of 2014 were renamed in 2017: only the number stayed
            image = next((new for new in [image.rpartition("_")[2]] if gathering.images.find(new)), image)
        for number, caption in enumerate(captions):
            gathering.add(image, caption, where=where, number=str(number), split=split, name=name)


def assign_lists(gathering: Gathering, root: Path, lists: Mapping[str, tuple[str, ...]]) -> None:
    """Split lists, one image name per line, under any of the given file names per split."""
    for split, names in lists.items():
        path = find_file(root, *names)
        if path is not None:
            gathering.assign(split, [line.strip() for _, line in read_lines(path) if line.strip()])
