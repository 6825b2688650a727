"""Pseudo-captions: candidates checked against object labels, resumable, and a dataset in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from layouts import draw_all

from sightline.data import load_dataset, load_datasets
from sightline.errors import ConfigError, DataError
from sightline.training.pseudo_captions import write_pseudo_captions
from sightline.types import Caption


class Parrot:
    """A captioner that gives every photo the same candidates, and counts photos; may die after some."""

    def __init__(self, *texts: str, dies_after: int = 10**6) -> None:
        self.texts, self.dies_after, self.photos = texts, dies_after, 0

    def signatures(self) -> list[str]:
        return ["parrot"]

    def stream(self, sources: list[Path], batch_size: int, **options: Any):
        for source in sources:
            if self.photos == self.dies_after:
                raise KeyboardInterrupt
            self.photos += 1
            best, *others = [Caption(text, (), 0.0, True) for text in self.texts]
            yield Caption(best.text, (), 0.0, True, source=str(source), others=tuple(others))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw_all(tmp_path / "unlabelled")
    return tmp_path / "unlabelled"


def labels(photos: Path, found: list[str]) -> Path:
    path = photos.parent / "labels.json"
    known = {image.name: list(range(len(found))) for image in photos.iterdir()}
    path.write_text(json.dumps({"categories": found, "photos": known}))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_captions_that_agree_with_the_labels_are_kept(photos: Path) -> None:
    output = photos.parent / "pseudo.jsonl"
    parrot = Parrot("a dog on a couch", "a cat on a couch", "a cat", "a cat", "a cat and a sofa")
    found = write_pseudo_captions(parrot, photos, output, labels(photos, ["cat", "couch"]), keep=2)
    assert (found.photos, found.kept, found.captions) == (12, 12, 24)
    assert rows(output)[0]["captions"] == ["a cat on a couch", "a cat"]
    assert rows(output)[0]["rejected"] == 1 and rows(output)[0]["model"] == "parrot"
    assert found.chair_before["chair_i"] == 0.5 and found.chair_after["chair_i"] == 0
    assert "50.0 % before the check, 0.0 % after" in str(found)


def test_a_photo_that_keeps_no_caption_is_counted_apart_and_not_captioned_again(photos: Path) -> None:
    output = photos.parent / "pseudo.jsonl"
    objects = labels(photos, ["cat"])
    found = write_pseudo_captions(Parrot("a dog"), photos, output, objects, candidates=1, keep=1)
    assert (found.photos, found.kept) == (12, 0)
    again = Parrot("a cat")
    assert write_pseudo_captions(again, photos, output, objects, candidates=1, keep=1).kept == 0
    assert again.photos == 0


def test_an_interrupted_run_goes_on(photos: Path) -> None:
    output = photos.parent / "pseudo.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_pseudo_captions(Parrot("a cat", dies_after=5), photos, output, keep=1)
    with output.open("a") as file:
        file.write('{"image": "cut o')  # what a kill leaves
    second = Parrot("a cat")
    found = write_pseudo_captions(second, photos, output, keep=1)
    assert (second.photos, found.kept) == (7, 12)
    assert len({row["image"] for row in rows(output)}) == 12


def test_a_link_to_a_photo_elsewhere_has_its_own_name(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = next(photos.iterdir()).rename(tmp_path_factory.mktemp("elsewhere") / "photo.jpg")
    (photos / "link.jpg").symlink_to(elsewhere)
    output = photos.parent / "pseudo.jsonl"
    assert write_pseudo_captions(Parrot("a cat"), photos, output).kept == 12
    assert "unlabelled/link.jpg" in {row["image"] for row in rows(output)}


def test_the_output_is_a_dataset_for_training_only(photos: Path, tiny_flickr8k: Path) -> None:
    output = photos.parent / "pseudo.jsonl"
    write_pseudo_captions(Parrot("a cat", "a small cat"), photos, output)
    dataset = load_dataset(output)
    assert {split: len(own) for split, own in dataset.splits.items()} == {"train": 12, "val": 0, "test": 0}
    assert dataset.examples("train")[0].captions == ("a cat", "a small cat")
    mixed = load_datasets([tiny_flickr8k, output])
    assert len(mixed.examples("train")) == 20 and len(mixed.examples("val")) == 2


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"photos": "nowhere"}, DataError, "is not a folder"),
        ({"output": "elsewhere/pseudo.jsonl"}, ConfigError, "must lie in"),
        ({"output": "pseudo.csv"}, ConfigError, "must end in .jsonl"),
        ({"keep": 6}, ConfigError, "keep is 6: give 1 to 5"),
        ({"objects": "other.json"}, DataError, "labels none of the photos"),
        ({"objects": "unknown.json"}, DataError, "unicorn"),
        ({"output": "strange.jsonl"}, DataError, "line 1 is no pseudo-caption"),
    ],
)
def test_mistakes_are_one_line(photos: Path, change: dict[str, Any], kind: type[Exception], reason: str) -> None:
    root = photos.parent
    (root / "elsewhere").mkdir()
    (root / "other.json").write_text('{"categories": ["cat"], "photos": {"x.jpg": [0]}}')
    (root / "unknown.json").write_text('{"categories": ["unicorn"], "photos": {"x.jpg": [0]}}')
    (root / "strange.jsonl").write_text("[1]\n")
    given: dict[str, Any] = {"photos": photos, "output": root / "pseudo.jsonl"}
    given |= {key: root / value if isinstance(value, str) else value for key, value in change.items()}
    with pytest.raises(kind, match=reason) as caught:
        write_pseudo_captions(Parrot("a cat"), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.real
def test_the_default_model_captions_a_folder(photos: Path) -> None:
    from sightline import load

    output = photos.parent / "pseudo.jsonl"
    found = write_pseudo_captions(load(), photos, output, candidates=3, keep=3)
    assert found.kept == 12 and all(1 <= len(row["captions"]) <= 3 for row in rows(output))
