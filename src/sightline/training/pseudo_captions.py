"""Captions of photos that nobody captioned, kept where they agree with what is known to be in the photo.

The model writes several candidates for each photo. With object labels, a candidate is kept only if it names no object
that the photo lacks (the word lists of CHAIR). The output is a dataset of its own: JSON lines with the image, the
captions that were kept, and where they come from. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.data.objects import label_of, read_objects
from sightline.engine.captioner import Captioner
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics.chair import Chair, check_categories, false_mentions
from sightline.io.files import counted, printable, user_path, walk_images, writing
from sightline.io.progress import track
from sightline.types import Caption, Failure

REJECTED = ".rejected.jsonl"  # after the output's name: photos that keep no caption


@dataclass(frozen=True)
class PseudoCaptions:
    """What a run has written so far, earlier runs included."""

    photos: int  # captioned
    kept: int  # photos with at least one caption
    captions: int  # that were kept
    failed: int  # photos that could not be read, this time
    chair_before: dict[str, float]  # of the best candidate of each labelled photo
    chair_after: dict[str, float]  # of the first caption that was kept

    def __str__(self) -> str:
        share = 100 * self.kept / max(1, self.photos)
        text = f"{self.kept:,} of {counted(self.photos, 'photo')} ({share:.1f} %) keep {self.captions:,} captions"
        if self.chair_before:
            before, after = (100 * found["chair_i"] for found in (self.chair_before, self.chair_after))
            text += f"; objects named that are not there: {before:.1f} % before the check, {after:.1f} % after"
        return text + (f"; {counted(self.failed, 'photo')} could not be read" if self.failed else "")


def write_pseudo_captions(
    captioner: Captioner,
    photos: str | Path,
    output: str | Path,
    objects: str | Path | None = None,
    candidates: int = 5,
    keep: int = 3,
    batch_size: int = 16,
    **options: Any,
) -> PseudoCaptions:
    """Caption every photo under ``photos`` into ``output``, a .jsonl file in a folder above them."""
    folder, path = user_path(photos), user_path(output)
    _check(folder, path, candidates, keep)
    labels = read_objects(user_path(objects)) if objects else None
    check_categories((labels or {}).values())
    done = {row["image"] for file in (path, _rejected(path)) for row in _rows(file)}
    root = path.parent.resolve()
    names = {image: (image.parent.resolve() / image.name).relative_to(root).as_posix() for image in walk_images(folder)}
    if labels and not any(label_of(name, labels) is not None for name in names.values()):
        raise DataError(f"{printable(objects)} labels none of the photos in {printable(folder)}")
    todo = [image for image, name in names.items() if name not in done]
    about = {"model": "+".join(captioner.signatures()), "candidates": candidates}
    failed = 0
    found = captioner.stream(todo, batch_size, candidates=candidates, want_attention=False, **options)
    with (
        writing(path),
        path.open("a", encoding="utf-8") as kept,
        _rejected(path).open("a", encoding="utf-8") as rejected,
    ):
        for image, caption in zip(todo, track(found, "captioning", len(todo))):
            if isinstance(caption, Failure):
                failed += 1
                continue
            label = label_of(names[image], labels) if labels else None
            row = {"image": names[image], **_checked(caption, label, keep), **about}
            file = kept if row["captions"] else rejected
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
    return _summary(path, labels, failed)


def _check(folder: Path, path: Path, candidates: int, keep: int) -> None:
    if not folder.is_dir():
        raise DataError(f"{printable(folder)} is not a folder: name the one that holds the photos")
    if path.suffix != ".jsonl":
        raise ConfigError(f"{printable(path)} must end in .jsonl: the captions are written as JSON lines")
    if not path.parent.is_dir() or path.parent.resolve() not in (folder.resolve(), *folder.resolve().parents):
        raise ConfigError(
            f"{printable(path)} must lie in {printable(folder)} or a folder above it: its rows name photos from there"
        )
    if not 1 <= keep <= candidates:
        raise ConfigError(f"keep is {keep}: give 1 to {candidates}, the number of candidates")


def _rejected(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".jsonl") + REJECTED)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows an earlier run wrote; a line that a kill cut off is removed from the file."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            row["image"], row["captions"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{printable(path)} line {number} is no pseudo-caption: choose another output") from None
        yield row


def _checked(caption: Caption, label: frozenset[str] | None, keep: int) -> dict[str, Any]:
    """Different candidates, best first, without those that name an object the photo lacks."""
    texts = list(dict.fromkeys([caption.text, *(other.text for other in caption.others)]))
    true = [text for text in texts if text and (label is None or not false_mentions(text, label))]
    return {"captions": true[:keep], "split": "train", "best": caption.text, "rejected": len(texts) - len(true)}


def _summary(path: Path, labels: dict[str, frozenset[str]] | None, failed: int) -> PseudoCaptions:
    kept, rejected = list(_rows(path)), list(_rows(_rejected(path)))
    rows = kept + rejected
    before = _chair(((row["best"], row["image"]) for row in rows), labels)
    after = _chair(((row["captions"][0], row["image"]) for row in kept), labels)
    captions = sum(len(row["captions"]) for row in kept)
    return PseudoCaptions(len(rows), len(kept), captions, failed, before, after)


def _chair(pairs: Iterable[tuple[str, str]], labels: dict[str, frozenset[str]] | None) -> dict[str, float]:
    labelled = [(text, label) for text, name in pairs if labels and (label := label_of(name, labels)) is not None]
    if not labelled:
        return {}
    metric = Chair()
    return metric.aggregate(metric.statistics([text for text, _ in labelled], [label for _, label in labelled]))
