"""Which gender do captions name, and do people name the same? Counts of man, woman, boy, girl and their like.

    python results/tools/gender_words.py results/coco/dinov2-coco-words.captions.json --data coco/
    python results/tools/gender_words.py results/dinov2-coco-words.captions.json --data flickr8k/

Photos with people are divided by what their human captions say: most captions name one gender and none the other
("man", "woman"); captions contradict each other, none naming both; people are mentioned, but no gender is. Photos that
show both, or whose gender only a minority names, are left out. Boys count as men and girls as women. Writes
results/gender_words.json, one entry for each dataset, and brings results/experiments.md up to date.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import read_json, write_json
from script import RESULTS, parser, run
from sightline.data import load_dataset, read_results
from sightline.errors import DataError
from table import write_pages

WORDS = {
    "man": "man men boy boys male males guy guys gentleman gentlemen father dad son sons brother brothers husband "
    "groom he him his himself businessman fisherman",
    "woman": "woman women girl girls female females lady ladies mother mom daughter daughters sister sisters wife "
    "bride she her hers herself",
    "people": "person people child children kid kids baby babies toddler toddlers adult adults teenager teenagers "
    "player players skateboarder snowboarder surfer skier rider batter pitcher catcher someone crowd couple group team",
}
MAN, WOMAN, PEOPLE = (frozenset(words.split()) for words in WORDS.values())
WORD = re.compile(r"[a-z]+")
CONTRADICTED, UNNAMED = "people contradict each other", "people name no gender"


def genders(text: str) -> frozenset[str]:
    """The genders a caption names: "man", "woman", both or none."""
    words = set(WORD.findall(text.lower()))
    return frozenset(name for name, listed in (("man", MAN), ("woman", WOMAN)) if not words.isdisjoint(listed))


def has_people(text: str) -> bool:
    return bool(genders(text)) or not PEOPLE.isdisjoint(WORD.findall(text.lower()))


def photo_class(captions: Sequence[str]) -> str | None:
    """What people say of a photo; None where it does not count."""
    named = [genders(caption) for caption in captions]
    counts = Counter(gender for found in named for gender in found)
    if not counts:
        return UNNAMED if sum(map(has_people, captions)) * 2 > len(captions) else None
    if len(counts) == 2:
        return CONTRADICTED if all(len(found) < 2 for found in named) else None
    gender, count = counts.most_common(1)[0]
    return gender if count * 2 > len(captions) else None


def summary(captions: Mapping[str, str], people: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Of each class of photos: how many there are, and what the captions name there."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("man", "woman", CONTRADICTED, UNNAMED)}
    for name, caption in captions.items():
        if kind := photo_class(people[name]):
            found = genders(caption)
            counts[kind]["both" if len(found) == 2 else next(iter(found), "none")] += 1
    return {
        "photos": len(captions),
        "classes": {
            kind: {"photos": found.total(), **{gender: found[gender] for gender in ("man", "woman", "both", "none")}}
            for kind, found in counts.items()
        },
        "captions": _mentions(captions.values()),
        "human captions": _mentions(caption for own in people.values() for caption in own),
    }


def _mentions(captions: Iterable[str]) -> dict[str, float]:
    """Of 100 captions, how many name each gender."""
    counts: Counter[str] = Counter()
    total = 0
    for caption in captions:
        counts.update(genders(caption))
        total += 1
    return {gender: round(100 * counts[gender] / total, 1) for gender in ("man", "woman")}


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("captions", type=Path, help="a results file, as in results/*.captions.json")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--split", default="test")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where it is written; elsewhere pages stay as is")
    given = reader.parse_args(arguments)
    dataset = load_dataset(given.data)
    people = {example.name: example.captions for example in dataset.examples(given.split)}
    captions = read_results(given.captions)
    if unknown := sorted(set(captions) - set(people)):
        raise DataError(f"{given.captions}: {unknown[0]} is no photo of {given.split} of {given.data}")
    found = summary(captions, {name: people[name] for name in captions})
    path = given.results / "gender_words.json"
    row = f"{given.captions.name.removesuffix('.captions.json')}, {dataset.name} {given.split}"
    write_json(path, (read_json(path) if path.is_file() else {}) | {row: found})
    for kind, counts in found["classes"].items():
        print(f"{kind}: {counts}")
    if given.results.resolve() == RESULTS:
        write_pages()


if __name__ == "__main__":
    raise SystemExit(run(main))
