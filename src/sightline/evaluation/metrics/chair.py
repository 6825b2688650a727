"""CHAIR: how often captions name objects that are not in the photo (Rohrbach et al. 2018, section 3.1).

`chair_s` is the share of captions that name at least one of the 80 COCO objects that is not in the photo, `chair_i` the
share of object mentions that are not there. Every mention counts, as in the authors' program: a caption that says "dog"
twice has two mentions; words for one object side by side ("tabby cat") are one. The word lists are in objects.toml.
They are our own, so scores are close to those of the authors' program but not equal to the digit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np

from sightline.errors import DataError
from sightline.io.files import counted, printable

_TOKEN = re.compile(r"([a-z0-9]+)(?:'[a-z]*)?|[.,;:!?()]")  # "man-made" is two tokens, "dog's" is "dog"
_STOP = "."
_NEGATIONS = {
    ("no",), ("without",), ("without", "a"), ("without", "any"), ("not", "any"), ("no", "other"), ("empty", "of"),
    ("free", "of"),
}  # fmt: skip


@dataclass(frozen=True)
class Mention:
    """One object a caption names. ``categories`` has several where the word has several meanings ("bike")."""

    words: str
    categories: tuple[str, ...]

    def is_in(self, labels: Collection[str]) -> bool:
        return any(category in labels for category in self.categories)


@dataclass(frozen=True)
class _Entry:
    """What a word or phrase means; no category: a phrase that names no object."""

    tokens: tuple[str, ...]
    categories: tuple[str, ...] = ()
    unless_animals: bool = False


@dataclass(frozen=True)
class _WordList:
    categories: tuple[str, ...]
    entries: dict[str, list[_Entry]]  # by first token, longest first
    animals: frozenset[str]  # categories
    animal_words: frozenset[str]  # animals that have no category


def categories() -> tuple[str, ...]:
    """The names of the 80 COCO categories."""
    return _word_list().categories


def check_categories(labels: Iterable[Collection[str] | None]) -> None:
    """Refuse labels that are none of the 80 categories: every mention of such an object would count as false."""
    unknown = sorted({name for known in labels if known is not None for name in known}.difference(categories()))
    if unknown:
        shown = ", ".join(map(printable, unknown[:3])) + (", …" if len(unknown) > 3 else "")
        raise DataError(
            f"the object labels use {counted(len(unknown), 'name')} that COCO's 80 categories lack ({shown}): "
            "rename them, or score without the metric chair"
        )


def objects_in(text: str) -> set[str]:
    """The COCO categories a text names. Of a word with several meanings it gives the first: "bike" is a bicycle."""
    return {mention.categories[0] for mention in mentions(text)}


def false_mentions(text: str, labels: Collection[str]) -> list[Mention]:
    """The mentions of objects that are not among the photo's labels."""
    return [mention for mention in mentions(text) if not mention.is_in(labels)]


def mentions(text: str) -> list[Mention]:
    """Every object a text names, in order."""
    known = _word_list()
    tokens = [match[1] or _STOP for match in _TOKEN.finditer(text.lower())] + [_STOP]
    found: list[tuple[int, _Entry]] = []  # start
    start = 0
    while start < len(tokens):
        entry = next(
            (
                entry
                for entry in known.entries.get(tokens[start], ())
                if tuple(tokens[start : start + len(entry.tokens)]) == entry.tokens
            ),
            None,
        )
        if entry is None:
            start += 1
            continue
        if entry.categories and not _negated(tokens, start):
            found.append((start, entry))
        start += len(entry.tokens)
    if any(entry.unless_animals for _, entry in found):
        animals = any(known.animals.intersection(entry.categories) for _, entry in found if not entry.unless_animals)
        if animals or not known.animal_words.isdisjoint(tokens):
            found = [(start, entry) for start, entry in found if not entry.unless_animals]
    result: list[Mention] = []
    end = -1
    for start, entry in found:
        if not (start == end and entry.categories == result[-1].categories):
            result.append(Mention(" ".join(entry.tokens), entry.categories))
        end = start + len(entry.tokens)
    return result


def _negated(tokens: Sequence[str], start: int) -> bool:
    """ "No people", "without a car": the object is named because it is absent."""
    return any(tuple(tokens[max(0, start - len(words)) : start]) == words for words in _NEGATIONS)


class Chair:
    """Columns of the statistics: captions with a false mention, captions, false mentions, mentions.

    A photo without labels (None) is not counted.
    """

    version = "chair"
    keys = ("chair_s", "chair_i")

    def statistics(self, captions: Sequence[str], labels: Sequence[Collection[str] | None]) -> np.ndarray:
        """Raw captions and, for each, the categories in its photo."""
        if len(captions) != len(labels):
            raise DataError(
                f"{len(captions)} captions but labels for {len(labels)} photos: give one set of labels each"
            )
        return np.array([_row(caption, known) for caption, known in zip(captions, labels)], dtype=np.float64)

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        scores = self.per_image(statistics.sum(axis=0, keepdims=True))
        return {key: float(values[0]) for key, values in scores.items()}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        false_captions, captions, false, total = statistics.T  # each (images,)
        return {"chair_s": false_captions / np.maximum(captions, 1), "chair_i": false / np.maximum(total, 1)}


def _row(caption: str, labels: Collection[str] | None) -> tuple[int, int, int, int]:
    if labels is None:
        return 0, 0, 0, 0
    found = mentions(caption)
    false = sum(not mention.is_in(labels) for mention in found)
    return int(false > 0), 1, false, len(found)


@lru_cache(maxsize=1)
def _word_list() -> _WordList:
    data = tomllib.loads(files(__package__).joinpath("objects.toml").read_text(encoding="utf-8"))
    entries: dict[tuple[str, ...], _Entry] = {}

    def add(phrase: str, names: tuple[str, ...], unless_animals: bool = False) -> None:
        for form in _forms(phrase):
            tokens = tuple(form.split())
            entries.setdefault(tokens, _Entry(tokens, names, unless_animals))

    for category, phrases in data["categories"].items():
        for phrase in phrases:
            add(phrase, (category,))
    for phrase, names in data["either"].items():
        add(phrase, tuple(names))
    for category, phrases in data["unless_animals"].items():
        for phrase in phrases:
            add(phrase, (category,), unless_animals=True)
    for phrases in data["phrases_without_objects"].values():
        for phrase in phrases:
            add(phrase, ())
    by_first: dict[str, list[_Entry]] = {}
    for entry in sorted(entries.values(), key=lambda entry: -len(entry.tokens)):
        by_first.setdefault(entry.tokens[0], []).append(entry)
    words = frozenset(form for word in data["animals"]["words"] for form in _forms(word))
    return _WordList(tuple(data["categories"]), by_first, frozenset(data["animals"]["names"]), words)


def _forms(phrase: str) -> list[str]:
    """The phrase and its regular plural."""
    if re.search(r"[^aeiou]y$", phrase):
        plural = phrase[:-1] + "ies"
    elif re.search(r"(s|x|z|ch|sh)$", phrase):
        plural = phrase + "es"
    elif phrase.endswith("man") and phrase != "human":
        plural = phrase[:-3] + "men"
    else:
        plural = phrase + "s"
    return [phrase, plural]
