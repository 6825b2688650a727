"""Does a model attend to the objects it names? The attention of each object's word against the object's boxes.

    python results/tools/attention_on_objects.py "the default model=default" --data coco/ --boxes labels/ --split train

``--boxes`` is a folder in YOLO's format: ``classes.txt`` with the names of COCO's categories, and for each photo,
anywhere below, ``000000000042.txt`` with a line "class x y width height" for each box, centre and size as shares of the
photo. Counted is how often the peak of the attention lies in a box of the named object, and how much of the attention
does; the same attention is also held against the boxes of other photos' words. Photos without boxes are left out.
Writes results/attention_on_objects.json, one entry for each NAME, and brings results/attention.md up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_vs_occlusion import WordMaps, regrid, summary, write
from script import RESULTS, evenly, named, parser, run
from sightline.data import Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics.chair import mentions
from sightline.explain.explanation import CELLS
from sightline.io.progress import track
from sightline.nn.checkpoint import checkpoint_hash
from table import write_pages

FINE = 64  # pixels a side on which boxes are drawn before cells are counted
Boxes = dict[str, np.ndarray]  # category: (64, 64), 1 inside its boxes


def read_boxes(path: Path, categories: Sequence[str]) -> Boxes:
    """The boxes of one photo, as a mask for each category."""
    masks: Boxes = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            number, x, y, width, height = line.split()
            mask = masks.setdefault(categories[int(number)], np.zeros((FINE, FINE)))
            left, top = (float(x) - float(width) / 2) * FINE, (float(y) - float(height) / 2) * FINE
            right, bottom = left + float(width) * FINE, top + float(height) * FINE
            centres = np.arange(FINE) + 0.5
            mask[np.ix_((top <= centres) & (centres <= bottom), (left <= centres) & (centres <= right))] = 1
    except (ValueError, IndexError, OSError) as error:
        raise DataError(f"{path} is not a file of boxes in YOLO's format: {error}") from None
    return masks


def cells(mask: np.ndarray) -> np.ndarray:
    """(8, 8): which share of each cell lies in a box."""
    side = FINE // CELLS
    return mask.reshape(CELLS, side, CELLS, side).mean((1, 3))


def maps_of(captioner: Captioner, example: Example, boxes: Boxes, number: int) -> list[WordMaps]:
    """The words of one photo's caption that name an object with boxes."""
    caption = captioner.caption(example.image)
    maps = []
    for word in caption.words:
        kind = next((kind for found in mentions(word.text) for kind in found.categories if kind in boxes), None)
        if kind is None:
            continue
        if word.attention is None:
            raise ConfigError("this model has no attention: take one that has")
        maps.append(WordMaps(number, kind, regrid(word.attention), cells(boxes[kind])))
    return maps


def experiment(captioner: Captioner, examples: Sequence[Example], boxes: Mapping[str, Boxes]) -> dict[str, Any]:
    maps: list[WordMaps] = []
    for number, example in enumerate(track(examples, "captioning", len(examples))):
        maps += maps_of(captioner, example, boxes[example.name], number)
    area = 100 * np.mean([one.source.mean() for one in maps])
    return {"box area": round(float(area), 1), **summary(maps)}


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="what a model is called, and its folder")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--boxes", required=True, type=Path, help="the folder with the boxes")
    reader.add_argument("--split", default="val")
    reader.add_argument("--photos", type=int, default=300, help="evenly spaced in the list; 300 if not given")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where it is written; elsewhere pages stay as is")
    given = reader.parse_args(arguments)
    if not (given.boxes / "classes.txt").is_file():
        raise DataError(f"{given.boxes} has no classes.txt: name a folder of boxes in YOLO's format")
    categories = (given.boxes / "classes.txt").read_text(encoding="utf-8").split("\n")
    files = {path.stem.lstrip("0"): path for path in given.boxes.rglob("*.txt") if path.stem.isdecimal()}
    labelled = [one for one in load_dataset(given.data).examples(given.split) if Path(one.name).stem in files]
    examples = evenly(labelled, given.photos)
    if not examples:
        raise DataError(f"{given.boxes} has boxes of no photo of {given.split} of {given.data}")
    boxes = {one.name: read_boxes(files[Path(one.name).stem], categories) for one in examples}
    for name, folder in named(given.models).items():
        captioner = load(folder)
        found = {"checkpoint": checkpoint_hash(captioner.folders[0] or folder), "split": given.split}
        found |= experiment(captioner, examples, boxes)
        write(given.results / "attention_on_objects.json", {name: found})
        numbers = found["all words"]
        print(f"{name}: peak {numbers['peak']} % (other photos' boxes {numbers['peak, other photos']} %)")
    if given.results.resolve() == RESULTS:
        write_pages()


if __name__ == "__main__":
    raise SystemExit(run(main))
