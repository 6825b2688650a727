"""What every dataset format produces: examples in splits, and one report of everything found wrong on the way.

Several datasets can be mixed into one: photos keep the name of their source, and no photo is trained on in one source
and tested in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sightline.errors import ConfigError, DataError, nearest
from sightline.io.files import FileSlice, byte_count, content_digest, counted, printable
from sightline.types import Failure

SPLITS = ("train", "val", "test")

# How splits are called in the wild; "restval" is the part of COCO's validation set that everyone trains on.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "restval": "train",
    "dev": "val",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def split_name(split: str, *others: str) -> str:
    """Train, val or test, whatever a user calls it; ``others`` are further words that a caller takes."""
    known = SPLIT_NAMES.get(split.lower(), split.lower())
    names = (*SPLITS, *others)
    if known not in names:
        choices = f"{', '.join(names[:-1])} or {names[-1]}"
        raise ConfigError(f"there is no split {printable(repr(split))}: choose {choices}")
    return known


# Each fault with the words the report uses for it, in the order it lists them.
FAULTS = {
    "unreadable_row": "rows could not be read and were left out",
    "not_utf8": "rows are not UTF-8 (save the file as UTF-8, in Excel as CSV UTF-8) and were left out",
    "repaired_row": "rows lacked a separator and were repaired",
    "unquoted_separator": "rows had an unquoted separator in the caption and were repaired",
    "several_lines": "captions run over several lines (is a quotation mark not closed?) and were kept as published",
    "escaping_name": "image names point outside the dataset (paths must be relative to the table) and were left out",
    "missing_image": "captioned images do not exist and were left out",
    "not_an_image": "captioned files are not of an image type and were left out",
    "empty_caption": "captions are empty and were left out",
    "duplicate_row": "rows are given twice and were taken once",
    "repeated_caption": "captions repeat another one of the same image and were kept as published",
    "image_without_captions": "images have no caption and were left out",
    "two_files": "image names are in several folders; the first was taken",
    "unknown_in_list": "entries of the split lists have no image or no caption and were left out",
    "two_splits": "images stand in several splits and were kept in the last (test, then val)",
    "two_sources": "training images also stand in another source's val or test split and were left out of train",
    "unlisted": "captioned images are in no split list and were left out",
}
# The words that change where there is only one.
ONE = {
    "rows": "row", "images": "image", "files": "file", "names": "name", "captions": "caption", "entries": "entry",
    "are": "is", "were": "was", "do": "does", "have": "has", "point": "points", "repeat": "repeats", "run": "runs",
    "stand": "stands",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One photo and what people wrote about it, as published."""

    image: Path | FileSlice
    captions: tuple[str, ...]
    name: str  # file name, path within the folder, or COCO's number: unique within a dataset
    source: str = ""  # which dataset of a mixture it comes from
    objects: frozenset[str] | None = None  # categories known to be in the photo; None: nobody labelled it


@dataclass
class Report:
    """What was found wrong, counted, with a few examples each; ``notes`` are decisions worth knowing.

    The report of a mixture contains those of its ``sources``.
    """

    title: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sources: list[Report] = field(default_factory=list)

    def add(self, fault: str, example: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1
        shown = self.examples.setdefault(fault, [])
        if len(shown) < 5:
            shown.append(printable(example))

    @property
    def ok(self) -> bool:
        return not self.counts

    def describe(self, fault: str) -> str:
        """One fault in words: how many there are, and what became of them."""
        count, words = self.counts[fault], FAULTS[fault]
        return f"{count:,} " + (words if count != 1 else " ".join(ONE.get(word, word) for word in words.split()))

    def __str__(self) -> str:
        return "\n".join(self._lines(with_notes=True))

    def without_notes(self) -> str:
        """For logs, where the notes stand already: each was a warning while the dataset was read."""
        return "\n".join(self._lines(with_notes=False))

    def _lines(self, with_notes: bool) -> list[str]:
        lines = [self.title, *(f"  {note}" for note in self.notes if with_notes)]
        lines += [f"  {line}" for source in self.sources for line in source._lines(with_notes)]
        for fault in FAULTS:
            if fault in self.counts:
                shown = self.examples[fault][:3]
                more = ", …" if self.counts[fault] > len(shown) else ""
                lines.append(f"  {self.describe(fault)}: {', '.join(shown)}{more}")
        return lines


@dataclass(frozen=True)
class Dataset:
    """Examples by split (train, val, test), sorted by name."""

    name: str
    root: Path
    splits: dict[str, list[Example]]
    report: Report

    def examples(self, split: str) -> list[Example]:
        """The examples of one split; "dev" and the like mean val."""
        return self.splits[split_name(split)]

    def all_examples(self) -> list[Example]:
        """The examples of all splits, by name."""
        return sorted((example for own in self.splits.values() for example in own), key=lambda example: example.name)

    def captions(self, split: str) -> Iterator[str]:
        """Every caption of one split, photo by photo."""
        for example in self.examples(split):
            yield from example.captions


def verify_images(dataset: Dataset, progress: Callable[[int, int], None] | None = None) -> list[Failure]:
    """Decode every photo once; those that do not open, and why. ``progress`` is called with (done, total)."""
    from sightline.errors import ImageError
    from sightline.io.images import open_image

    images = [example.image for split in SPLITS for example in dataset.splits[split]]
    failures = []
    for done, image in enumerate(images, start=1):
        try:
            open_image(image)
        except ImageError as error:
            failures.append(Failure(str(image), str(error)))
        if progress is not None:
            progress(done, len(images))
    return failures


def mix(datasets: Sequence[Dataset], to_train: bool = True) -> Dataset:
    """One dataset of all of them. An example's name becomes ``source/name``, its source the dataset's name.

    A mixture ``to_train`` on needs a train split of each; a photo that another source holds out is left out of it.
    """
    names = source_names(datasets)
    report = Report(sources=[dataset.report for dataset in datasets])
    splits: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for name, dataset in zip(names, datasets):
        if to_train and not dataset.splits.get("train"):
            raise DataError(f"{dataset.name} in {dataset.root} has no train split: a source to train on needs one")
        for split in SPLITS:
            examples = dataset.splits.get(split, [])
            splits[split] += [replace(example, name=f"{name}/{example.name}", source=name) for example in examples]
    shared = _held_out_elsewhere(splits) if to_train else []
    for example in shared:
        report.add("two_sources", example.name)
    left_out = {example.name for example in shared}
    splits["train"] = [example for example in splits["train"] if example.name not in left_out]
    total = sum(len(example.captions) for split in SPLITS for example in splits[split])
    sizes = ", ".join(f"{len(splits[split]):,} {split}" for split in SPLITS)
    report.title = f"{' + '.join(names)}: {sizes} photos, {counted(total, 'caption')}"
    return Dataset("+".join(names), Path(datasets[0].root), splits, report)


def first_of_each_source(examples: Sequence[Example], count: int) -> list[Example]:
    """The first ``count`` photos of every source; all where it is 0."""
    if not count:
        return list(examples)
    sources = dict.fromkeys(example.source for example in examples)
    return [own for name in sources for own in [e for e in examples if e.source == name][:count]]


def check_sources(option: str, named: Iterable[str], sources: Iterable[str]) -> None:
    """Refuse an option that names a source which the mixture does not have."""
    sources = list(dict.fromkeys(sources))
    if unknown := [name for name in named if name not in sources]:
        known = ", ".join(filter(None, sources)) or "one dataset only, and it has no name here"
        raise ConfigError(f"{option} names {unknown[0]!r}{nearest(unknown[0], sources)}; there is {known}")


def source_names(datasets: Sequence[Dataset]) -> list[str]:
    """Each dataset's own name; a number after it where several have the same."""
    names: list[str] = []
    for dataset in datasets:
        choices = [dataset.name, *(f"{dataset.name}-{number}" for number in range(2, len(datasets) + 1))]
        names.append(next(name for name in choices if name not in names))
    return names


def _held_out_elsewhere(splits: dict[str, list[Example]]) -> list[Example]:
    """Training photos whose content also lies in another source's val or test split."""
    held_out = [example for split in ("val", "test") for example in splits[split]]
    sizes = {byte_count(example.image) for example in held_out}
    known: dict[bytes, set[str]] = {}
    for example in held_out:
        known.setdefault(content_digest(example.image), set()).add(example.source)
    return [
        example
        for example in splits["train"]
        if byte_count(example.image) in sizes and known.get(content_digest(example.image), set()) - {example.source}
    ]
