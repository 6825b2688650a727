"""From caption rows to a checked dataset: find each image, note every fault, split. All formats end here."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sightline.data.dataset import SPLIT_NAMES, SPLITS, Dataset, Example, Report
from sightline.data.reading import find_file, objects, read_json, read_lines
from sightline.errors import DataError
from sightline.io.files import FileSlice, counted, is_image_path, printable, walk_images
from sightline.io.model_files import RUN, RUN_PICTURES

log = logging.getLogger(__name__)
Image = Path | FileSlice
COST_PHOTOS = ("unreadable_row", "not_utf8", "escaping_name", "missing_image", "not_an_image", "empty_caption")


class Index:
    """The images of a dataset, by the names it publishes."""

    def __init__(self, by_path: dict[str, Any]) -> None:
        self.by_path = by_path

    def find(self, name: str) -> list[Any]:
        return [self.by_path[name]] if name in self.by_path else []

    def escapes(self, name: str) -> bool:
        return False  # a name is only looked up, never followed

    def is_other_file(self, name: str) -> bool:
        return False


class ImageIndex(Index):
    """The images under a folder, by path from there or by bare file name wherever they lie."""

    def __init__(self, root: Path, skip_folders: Iterable[str] = ()) -> None:
        super().__init__({})
        self.root = root.absolute()
        self.by_name: dict[str, list[Path]] = {}
        skipped = set(skip_folders)
        for path in walk_images(root):
            relative = path.relative_to(root)
            if path.name in RUN_PICTURES and path.with_name(RUN).is_file():
                continue
            if skipped.isdisjoint(relative.parts):
                self.by_path[relative.as_posix()] = path
                self.by_name.setdefault(path.name, []).append(path)
        if not self.by_path:
            raise DataError(
                f"no image lies under {printable(root)}: name the folder that holds images and captions (a table's "
                "image paths are relative to the table)"
            )

    def find(self, name: str) -> list[Path]:
        """The image of this name; several where only the bare name is given and more than one folder has it."""
        relative = self._inside(name)
        return [self.by_path[relative]] if relative in self.by_path else self.by_name.get(relative, [])

    def escapes(self, name: str) -> bool:
        """Whether a published name would lead out of the dataset's folder."""
        inside = self._inside(name)
        return ".." in inside.split("/") or inside.startswith("/") or inside[1:3] == ":/"

    def is_other_file(self, name: str) -> bool:
        """Whether a file of this name exists that does not end like an image's."""
        return not is_image_path(name) and os.path.isfile(self.root / self._inside(name))  # noqa: PTH113 -- any text

    def _inside(self, name: str) -> str:
        plain = name.replace("\\", "/").removeprefix("./")
        return plain.removeprefix(self.root.as_posix() + "/")


class DatasetBuilder:
    """Takes rows in whatever order a format publishes them; `finish` makes the dataset."""

    def __init__(
        self,
        name: str,
        root: Path,
        held_out: float = 1 / 8,
        skip_folders: Iterable[str] = (),
        images: Index | None = None,
    ) -> None:
        self.name = name
        self.root = root
        self.held_out = held_out  # share of the photos for val, and again for test, where no split is published
        self.images = images or ImageIndex(root, skip_folders)
        self.report = Report()
        self.captions: dict[Image, list[tuple[str, str]]] = {}  # (number, text)
        self.names: dict[Image, str] = {}
        self.published: dict[str, set[Image]] = {}  # splits as the dataset gives them
        self.reported: set[str] = set()

    def add(
        self, image: str, caption: object, *, where: str, number: str = "", split: str = "", name: str = ""
    ) -> None:
        """One row: an image's file name and one caption, as published.

        ``where`` is for the report; ``number`` tells rows with equal captions apart where a format numbers them;
        ``name`` is the example's name where that is not the file name.
        """
        if not image.strip() or not isinstance(caption, str):
            self.report.add("unreadable_row", where)
            return
        if "\ufffd" in caption + image:
            self.report.add("not_utf8", where)
            return
        path = self._locate(image.strip())
        if split and not self._publish(split, path):
            self.report.add("unreadable_row", f'{where}: split "{split}"')
        if path is None:
            return
        row = (number, caption.strip())
        rows = self.captions.get(path, [])
        if not row[1]:
            self.report.add("empty_caption", f"{image} ({where})")
        elif row in rows:
            self.report.add("duplicate_row", f"{image} ({where})")
        else:
            if any(row[1] == text for _, text in rows):
                self.report.add("repeated_caption", f"{image} ({where})")
            self.captions.setdefault(path, []).append(row)
            self.names.setdefault(path, name or image.strip())

    def assign(self, split: str, images: Iterable[str]) -> None:
        """A published list of the images of one split; to be called once all captions are in."""
        self.published.setdefault(split, set())
        for image in images:
            paths = self.images.find(image)
            if paths and paths[0] in self.captions:
                self._publish(split, paths[0])
            else:
                self.report.add("unknown_in_list", f"{image} ({split})")

    def finish(self, seed: int | None) -> Dataset:
        for published, path in self.images.by_path.items():
            if path not in self.captions:
                self.report.add("image_without_captions", published)
        splits = self._splits(seed)
        may_be_empty = seed is None and any(splits.values())
        for split in SPLITS if set(self.published) != {"train"} else ("train",):
            if not splits[split] and not may_be_empty:
                raise DataError(f"the {split} split of {self.location} is empty: {self._why()}")
        examples = {
            split: sorted((self._example(path) for path in splits[split]), key=lambda example: example.name)
            for split in SPLITS
        }
        sizes = ", ".join(f"{len(examples[split]):,} {split}" for split in SPLITS)
        total = sum(len(example.captions) for split in SPLITS for example in examples[split])
        self.report.title = f"{self.location}: {sizes} photos, {counted(total, 'caption')}"
        return Dataset(self.name, self.root, examples, self.report)

    @property
    def location(self) -> str:
        """Its name and folder, or the folder alone where that has the name; "." would say nothing elsewhere."""
        folder = self.root if self.root.name not in ("", "..") else self.root.resolve()
        return printable(folder) if folder.name == self.name else f"{self.name} in {printable(folder)}"

    def note(self, text: str) -> None:
        """A decision worth knowing: into the report, and announced at once."""
        self.report.notes.append(text)
        log.warning("%s: %s", self.location, text)

    def _locate(self, image: str) -> Image | None:
        paths = [] if self.images.escapes(image) else self.images.find(image)
        if len(paths) != 1 and image not in self.reported:
            self.reported.add(image)
            self.report.add(self._name_fault(image, paths), image)
        return paths[0] if paths else None

    def _name_fault(self, image: str, paths: list[Any]) -> str:
        if self.images.escapes(image):
            return "escaping_name"
        if paths:
            return "two_files"
        return "not_an_image" if self.images.is_other_file(image) else "missing_image"

    def _publish(self, split: str, path: Image | None) -> bool:
        known = SPLIT_NAMES.get(split.strip().lower())
        if known is not None:
            self.published.setdefault(known, set()).update([path] if path is not None else [])
        return known is not None

    def _example(self, path: Image) -> Example:
        return Example(path, tuple(text for _, text in self.captions[path]), self.names[path])

    def _splits(self, seed: int | None) -> dict[str, list[Image]]:
        everything = sorted(self.captions, key=self.names.__getitem__)
        shuffled = random.Random(seed)
        if set(self.published) == {"train"}:
            if everything:
                self.note("every photo is for training: evaluate on another dataset")
            return {"train": [path for path in everything if path in self.published["train"]], "val": [], "test": []}
        if len(self.published) < 2 and seed is None:
            return {"train": [], "val": [], "test": everything}
        if len(self.published) < 2:
            shuffled.shuffle(everything)
            share = max(1, round(len(everything) * self.held_out))
            val, test, train = everything[:share], everything[share : 2 * share], everything[2 * share :]
            sizes = f"{len(train):,} train, {len(val):,} val and {len(test):,} test photos"
            if train:  # or there are too few photos
                self.note(f"train, val and test are not given: divided at random with seed {seed} into {sizes}")
            return {"train": train, "val": val, "test": test}
        splits: dict[str, list[Image]] = {split: [] for split in SPLITS}
        for path in everything:
            homes = [split for split in SPLITS if path in self.published.get(split, ())]
            if len(homes) > 1:
                self.report.add("two_splits", self.names[path])
            if homes:
                splits[homes[-1]].append(path)
            else:
                self.report.add("unlisted", self.names[path])
        for absent, other in (("val", "test"), ("test", "val")):
            if absent not in self.published and seed is not None:
                shuffled.shuffle(splits[other])
                middle = len(splits[other]) // 2
                splits[absent], splits[other] = splits[other][:middle], splits[other][middle:]
                sizes = f"{len(splits[absent]):,} {absent} and {len(splits[other]):,} {other} photos"
                if splits[other]:
                    self.note(f"{absent} is not given: {other} was divided at random with seed {seed} into {sizes}")
        return splits

    def _why(self) -> str:
        if not self.captions:
            return f"no image has a caption; {self._worst()}"
        if len(self.captions) < len(SPLITS):
            return f"three splits need more than {counted(len(self.captions), 'captioned photo')}; {self._worst()}"
        return self._worst()

    def _worst(self) -> str:
        if self.report.ok:
            return "add photos with captions"
        counts = self.report.counts  # first the faults that cost photos: others may be their consequence
        fault = max(counts, key=lambda fault: (fault in COST_PHOTOS, counts[fault]))
        advice = f" (image paths are relative to {printable(self.root)})" if fault == "missing_image" else ""
        return f"{self.report.describe(fault)}, such as {self.report.examples[fault][0]}{advice}"


def add_token_rows(builder: DatasetBuilder, path: Path) -> None:
    """``photo.jpg#0<tab>caption``, as Flickr8k and Flickr30k were first published."""
    for line_number, line in read_lines(path):
        if not line.strip():
            continue
        key, _, caption = line.partition("\t")
        image, separator, number = key.rpartition("#")
        text = caption if separator and "\t" in line else None
        builder.add(image, text, where=f"{path.name} line {line_number}", number=number.strip())


def add_karpathy_rows(builder: DatasetBuilder, path: Path) -> None:
    """``dataset_*.json`` of Karpathy & Fei-Fei (2015): captions and the public splits of Flickr8k, 30k and COCO."""
    for position, entry in enumerate(objects(read_json(path), "images", path)):
        where = f"{path.name} image {position}"
        try:
            image, split = str(entry["filename"]), str(entry["split"])
            name = str(entry.get("cocoid", "")) or image
            captions = [sentence["raw"] for sentence in entry["sentences"]]
        except (KeyError, TypeError, AttributeError):
            builder.report.add("unreadable_row", where)
            continue
        if not builder.images.find(image):  # COCO photos of 2014 were renamed in 2017: only the number stayed
            image = next((new for new in [image.rpartition("_")[2]] if builder.images.find(new)), image)
        for number, caption in enumerate(captions):
            builder.add(image, caption, where=where, number=str(number), split=split, name=name)


def assign_lists(builder: DatasetBuilder, root: Path, lists: Mapping[str, tuple[str, ...]]) -> None:
    """Split lists, one image name per line, under any of the given file names per split."""
    for split, names in lists.items():
        path = find_file(root, *names)
        if path is not None:
            builder.assign(split, [line.strip() for _, line in read_lines(path) if line.strip()])
