"""Does a model attend to what its words depend on? Its attention against occlusion of parts of the photo.

    python results/tools/attention_vs_occlusion.py soft=runs/sat-soft-vgg19 --data flickr8k/ --photos 60
    python results/tools/attention_vs_occlusion.py "the default model, COCO=default" --data coco/ --objects

For words that name things to be seen (dog, ball, snow, ...) in the captions of some val photos: the photo is hidden
patch by patch, and the quarter of it where hiding makes the word least likely is where the word comes from. Counted is
how often the peak of the model's attention for that word lies there, and how much of the attention does.
Chance is a quarter for attention that is independent of the photo; as photographers put things in the middle, the
same attention is also
held against the maps of other photos. Writes results/attention_vs_occlusion.json, one entry for each NAME, and brings
RESULTS.md up to date. A photo costs fifty passes of the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rows import read_json, write_json
from script import RESULTS, evenly, named, parser, run
from sightline.data import Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics.chair import objects_in
from sightline.explain.explanation import CELLS, occlusion_maps
from sightline.io.progress import track
from sightline.nn.checkpoint import checkpoint_hash
from table import write_pages

SHARE = 0.25  # of the photo's cells that count as where a word comes from
RESAMPLES = 1000
WORDS = {
    "dog": "dog dogs puppy", "man": "man men", "woman": "woman women lady", "boy": "boy boys", "girl": "girl girls",
    "people": "people children group", "ball": "ball balls", "water": "water ocean pool lake river wave",
    "snow": "snow snowy", "grass": "grass grassy field", "beach": "beach sand", "bike": "bike bicycle motorcycle",
    "shirt": "shirt jacket", "street": "street road", "rock": "rock rocks cliff mountain",
}  # fmt: skip
GROUPS = {form: word for word, forms in WORDS.items() for form in forms.split()}


@dataclass(frozen=True)
class WordMaps:
    """One word of one caption: the attention and where the word comes from, both (8, 8)."""

    photo: int
    word: str
    attention: np.ndarray  # sums to 1
    source: np.ndarray  # 1 where the word comes from, shares where cells tie, 0 elsewhere

    def against(self, source: np.ndarray) -> tuple[float, float]:
        """Whether the peak lies in ``source``, and how much of the attention does."""
        brightest = self.attention == self.attention.max()
        return float(source[brightest].mean()), float((self.attention * source).sum())


def regrid(grid: np.ndarray, cells: int = CELLS) -> np.ndarray:
    """A map's mass on cells x cells: each cell of the old grid gives to those it overlaps."""
    down, across = (_overlap(size, cells) for size in grid.shape)
    mass = down @ grid.astype(np.float64) @ across.T
    return mass / mass.sum()


def _overlap(old: int, new: int) -> np.ndarray:
    """(new, old): which share of each old cell is in each new one."""
    starts, ends = np.arange(old) / old, (np.arange(old) + 1) / old
    low, high = np.arange(new)[:, None] / new, (np.arange(new)[:, None] + 1) / new
    return (np.minimum(ends, high) - np.maximum(starts, low)).clip(min=0) * old


def strongest(falls: np.ndarray, share: float = SHARE) -> np.ndarray:
    """The cells of the largest values, ``share`` of all; cells that tie for the last rank share what is left."""
    wanted = share * falls.size
    edge = np.sort(falls, axis=None)[::-1][round(wanted) - 1]
    above, ties = falls > edge, falls == edge
    return above + ties * ((wanted - above.sum()) / ties.sum())


def things(word: str) -> str | None:
    """What a word is counted as, if it names something to be seen."""
    return GROUPS.get(word.lower())


def objects(word: str) -> str | None:
    """The same for the objects of COCO."""
    return next(iter(sorted(objects_in(word))), None)


def maps_of(
    captioner: Captioner, example: Example, number: int, counted_as: Callable[[str], str | None] = things
) -> list[WordMaps]:
    """The words of one photo's caption that are counted; none that no hiding makes less likely."""
    image = captioner.prepare(example.image)
    features = captioner.encode([image])
    (caption,) = captioner.finish(captioner.decode(features), features)
    positions = [own for _, own in captioner.tokenizer.words(caption.tokens)]
    chosen = [index for index, word in enumerate(caption.words) if counted_as(word.text)]
    if not chosen:
        return []
    falls = occlusion_maps(captioner, image, caption.tokens, [positions[index] for index in chosen])
    maps = []
    for index, own in zip(chosen, falls):
        word = caption.words[index]
        if word.attention is None:
            raise ConfigError("this model has no attention: take one that has")
        if own.max() > 0:
            maps.append(WordMaps(number, counted_as(word.text) or "", regrid(word.attention), strongest(own)))
    return maps


def summary(maps: Sequence[WordMaps]) -> dict[str, Any]:
    """Shares in percent: of this photo's own map, and of other photos' maps; 95 % intervals over photos."""
    photos = sorted({one.photo for one in maps})
    if len(photos) < 2:
        raise DataError(f"only {len(photos)} photos have one of the words in their captions: take more --photos")
    own = np.array([one.against(one.source) for one in maps])  # (maps, 2)
    others = np.array([one.against(_elsewhere(maps, one.photo)) for one in maps])
    return {
        "photos": len(photos),
        "words": len(maps),
        "all words": _numbers(own, others) | _intervals(own - others, [one.photo for one in maps]),
        "by word": {
            word: {"words": int(chosen.sum()), **_numbers(own[chosen], others[chosen])}
            for word in [*WORDS, *sorted({one.word for one in maps}.difference(WORDS))]
            if (chosen := np.array([one.word == word for one in maps])).any()
        },
    }


def _elsewhere(maps: Sequence[WordMaps], photo: int) -> np.ndarray:
    """The mean map of all words of the other photos."""
    return np.mean([one.source for one in maps if one.photo != photo], axis=0)


def _numbers(own: np.ndarray, others: np.ndarray) -> dict[str, float]:
    names = ("peak", "attention")
    values = dict(zip(names, 100 * own.mean(0)))
    values |= dict(zip((f"{name}, other photos" for name in names), 100 * others.mean(0)))
    return {name: round(float(value), 1) for name, value in values.items()}


def _intervals(gains: np.ndarray, photos: Sequence[int]) -> dict[str, list[float]]:
    """How much more than other photos' maps explain, bootstrapped over photos."""
    generator = np.random.default_rng(0)
    rows = [np.flatnonzero(np.array(photos) == photo) for photo in sorted(set(photos))]
    draws = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([rows[index] for index in generator.integers(len(rows), size=len(rows))])
        draws.append(100 * gains[chosen].mean(0))
    bounds = np.percentile(draws, (2.5, 97.5), axis=0).T  # (2, 2)
    names = ("peak, gain", "attention, gain")
    return {name: [round(float(bound), 1) for bound in own] for name, own in zip(names, bounds)}


def photos_of(examples: Sequence[Example], count: int, others: bool = False) -> list[Example]:
    """The photos that are measured, or others: what is chosen on those is then measured on photos it has not seen."""
    measured = evenly(examples, count)
    if not others:
        return measured
    names = {example.name for example in measured}
    return [example for example in evenly(examples, 4 * count) if example.name not in names]


def experiment(
    captioner: Captioner, examples: Sequence[Example], counted_as: Callable[[str], str | None] = things
) -> dict[str, Any]:
    maps: list[WordMaps] = []
    for number, example in enumerate(track(examples, "hiding parts of photos", len(examples))):
        maps += maps_of(captioner, example, number, counted_as)
    return summary(maps)


def write(path: Path, found: Mapping[str, Any]) -> None:
    """New entries, with those of other models."""
    before = read_json(path) if path.is_file() else {}
    write_json(path, before | dict(found))


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="what a model is called, and its folder")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--photos", type=int, default=60, help="of val, evenly spaced in the list; 60 if not given")
    reader.add_argument("--others", action="store_true", help="three times as many other photos: to choose maps with")
    reader.add_argument("--objects", action="store_true", help="count words for COCO's objects, not the built-in list")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where it is written; elsewhere pages stay as is")
    given = reader.parse_args(arguments)
    examples = photos_of(load_dataset(given.data).examples("val"), given.photos, given.others)
    counted_as = objects if given.objects else things
    for name, folder in named(given.models).items():
        captioner = load(folder)
        found = {
            "checkpoint": checkpoint_hash(captioner.folders[0] or folder),
            **experiment(captioner, examples, counted_as),
        }
        write(given.results / "attention_vs_occlusion.json", {name: found})
        numbers = found["all words"]
        print(
            f"{name}: peak {numbers['peak']} % (other photos' maps "
            f"{numbers['peak, other photos']} %, chance {100 * SHARE:.0f} %)"
        )
    if given.results.resolve() == RESULTS:
        write_pages()


if __name__ == "__main__":
    raise SystemExit(run(main))
