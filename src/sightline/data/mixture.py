"""Several datasets as one: photos keep the name of their source, and no photo is trained on in one source and
tested in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sightline.data.dataset import SPLITS, Dataset, Example, Report
from sightline.errors import DataError
from sightline.io.files import byte_count, content_digest, counted


def mix(datasets: Sequence[Dataset]) -> Dataset:
    """One dataset of all of them. An example's name becomes ``source/name``, its source the dataset's name."""
    names = source_names(datasets)
    report = Report(notes=[])
    splits: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for name, dataset in zip(names, datasets):
        if not dataset.splits.get("train"):
            raise DataError(f"{dataset.name} in {dataset.root} has no train split: a source to train on needs one")
        report.notes.append(str(dataset.report))
        for split in SPLITS:
            own = dataset.splits.get(split, [])
            splits[split] += [replace(example, name=f"{name}/{example.name}", source=name) for example in own]
    shared = _held_out_elsewhere(splits)
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


def source_names(datasets: Sequence[Dataset]) -> list[str]:
    """Each dataset's own name; a number after it where several have the same."""
    seen: Counter[str] = Counter()
    names = []
    for dataset in datasets:
        seen[dataset.name] += 1
        names.append(dataset.name if seen[dataset.name] == 1 else f"{dataset.name}-{seen[dataset.name]}")
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
