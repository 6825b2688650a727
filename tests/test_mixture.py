"""Several datasets in one run: sources, weights, photos that two sources share, object labels."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from drawings import TEST, TRAIN
from layouts import draw_all, write_csv

from sightline.data import Dataset, Example, Report, load_dataset, load_datasets, mix
from sightline.data.loader import CaptionLoader
from sightline.errors import ConfigError, DataError
from sightline.training.setup import first_of_each_source, photo_weights


def folder_of(root: Path, split_of: dict[str, str]) -> Path:
    draw_all(root)
    rows = [[name, f"a picture of {name}", split] for name, split in split_of.items()]
    write_csv(root / "captions.csv", [["image", "caption", "split"], *rows])
    return root


def test_photos_keep_the_name_of_their_source(tiny_flickr8k: Path, tmp_path: Path) -> None:
    names = [drawing.name for drawing in TRAIN]
    other = folder_of(tmp_path / "own", dict(zip(names[:3], ("train", "val", "test"))))
    mixed = load_datasets([tiny_flickr8k, other])
    assert mixed.name == "flickr8k+own"
    assert Counter(example.source for example in mixed.examples("train")) == {"flickr8k": 8, "own": 1}
    assert mixed.examples("val")[-1].name == f"own/{names[1]}"
    assert "9 train, 3 val, 3 test photos" in str(mixed.report)


def test_a_photo_held_out_in_one_source_is_not_trained_on_in_another(tiny_flickr8k: Path, tmp_path: Path) -> None:
    shared, free, last = TEST[0].name, TRAIN[3].name, TRAIN[1].name
    splits = {shared: "train", free: "train", last: "val", TRAIN[2].name: "test"}
    other = folder_of(tmp_path / "own", splits)
    for image in (tiny_flickr8k / "Flicker8k_Dataset").iterdir():
        shutil.copy(image, other)  # the same photos, byte by byte
    mixed = load_datasets([tiny_flickr8k, other])
    trained = {example.name for example in mixed.examples("train")}
    assert f"own/{shared}" not in trained and f"own/{free}" in trained
    assert f"flickr8k/{last}" not in trained, "val of the second source"
    assert "left out of train" in str(mixed.report) and f"own/{shared}" in str(mixed.report)


def test_sources_have_names_of_their_own() -> None:
    sets = [Dataset(name, Path(), {}, Report()) for name in ("big", "big-2", "big", "own", "own")]
    assert mix(sets, to_train=False).name == "big+big-2+big-3+own+own-2"


def test_a_source_without_a_train_split_is_one_line() -> None:
    empty = Dataset("empty", Path("there"), {"train": [], "val": [], "test": []}, Report())
    with pytest.raises(DataError, match=r"^empty in there has no train split"):
        mix([empty, empty])


def examples(**counts: int) -> list[Example]:
    return [Example(Path(f"{name}{i}"), ("x",), f"{name}{i}", name) for name, n in counts.items() for i in range(n)]


def test_weights_say_how_often_an_epoch_has_a_photo() -> None:
    photos = examples(coco=10, flickr8k=4)
    weights = photo_weights(photos, {"flickr8k": 2.5, "coco": 0.5})
    loader = CaptionLoader([[[1, 2]]] * 14, lambda rows, rng: rows, batch_size=3, weights=weights)
    for epoch in range(3):
        seen = Counter(photo for batch in loader._plan(epoch) for photo, _ in batch)
        assert sum(seen[photo] for photo in range(10)) == 5
        assert sum(seen[photo] for photo in range(10, 14)) == 10
        assert {seen[photo] for photo in range(10, 14)} == {2, 3}
    assert loader._plan(0) != loader._plan(1)
    assert photo_weights(photos, {}) is None


def test_a_weight_of_an_unknown_source_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"names 'coko' \(did you mean 'coco'\?\); there is coco, flickr8k"):
        photo_weights(examples(coco=1, flickr8k=1), {"coko": 2.0})
    with pytest.raises(ConfigError, match="one dataset only, and it has no name here"):
        photo_weights([Example(Path("a"), ("x",), "a")], {"coco": 2.0})


def test_a_photo_with_one_caption_weighs_as_much_as_one_with_five() -> None:
    captions = [[[1, 2]] * (5 if photo % 2 else 1) for photo in range(40)]
    loader = CaptionLoader(captions, lambda rows, rng: rows, batch_size=4, choice="all")
    plan = loader._plan(0)
    assert sorted(photo for batch in plan for photo, _ in batch) == list(range(40))
    assert all(len({len(picks) for _, picks in batch}) == 1 for batch in plan), "no caption is padded"
    assert [len(batch) for batch in plan] == [4] * 10


def test_the_first_photos_of_each_source() -> None:
    chosen = first_of_each_source(examples(coco=5, flickr8k=3), 2)
    assert [example.name for example in chosen] == ["coco0", "coco1", "flickr8k0", "flickr8k1"]
    assert len(first_of_each_source(examples(coco=5), 0)) == 5


def labels(root: Path, photos: dict[str, list[int]], name: str = "objects.json.gz") -> None:
    data = json.dumps({"categories": ["cat", "dog"], "photos": photos}).encode()
    (root / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)


@pytest.mark.parametrize("file", ["objects.json", "objects.json.gz"])
def test_object_labels_beside_a_dataset_are_read_with_it(tiny_flickr8k: Path, file: str) -> None:
    labels(tiny_flickr8k, {TRAIN[0].name: [0, 1], TRAIN[1].name: []}, file)
    found = {example.name: example.objects for example in load_dataset(tiny_flickr8k).examples("train")}
    assert found[TRAIN[0].name] == {"cat", "dog"}
    assert found[TRAIN[1].name] == frozenset()
    assert found[TRAIN[2].name] is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            {"categories": ["cat"], "photos": {TRAIN[0].name: [1]}},
            r"has the categories \[1\]; give indices from 0 to 0",
        ),
        ({"categories": ["cat"], "photos": {TRAIN[0].name: ["cat"]}}, "give indices from 0 to 0"),
        ({"categories": ["cat"], "photos": {"other.jpg": [0]}}, "labels none of the photos"),
        ({"photos": {}}, 'no list "categories"'),
        ({"categories": ["cat"]}, 'no "photos"'),
        ([], 'no list "categories"'),
    ],
)
def test_bad_labels_are_one_line(tiny_flickr8k: Path, content: object, reason: str) -> None:
    (tiny_flickr8k / "objects.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=reason) as caught:
        load_dataset(tiny_flickr8k)
    assert "\n" not in str(caught.value)


def test_batches_of_equal_counts_stay_as_they_were() -> None:
    """A dataset of five captions each is planned as if there were no mixture."""
    captions = [[[1, 2]] * 5 for _ in range(10)]
    loader = CaptionLoader(captions, lambda rows, rng: rows, batch_size=4, choice="all", seed=3)
    rng = random.Random("3/0")
    order = list(range(10))
    rng.shuffle(order)
    assert [photo for batch in loader._plan(0) for photo, _ in batch] == order


def test_photos_with_too_few_captions_for_a_reward_are_left_out(tiny_flickr8k: Path) -> None:
    from sightline.recipes.config import load_recipe
    from sightline.training.setup import build_parts

    changes = ["tokenizer.min_count=1", "encoder.image_size=16", "encoder.patch_size=8", "encoder.width=8"]
    dataset = load_dataset(tiny_flickr8k)
    few = [replace(example, captions=example.captions[:1]) for example in dataset.examples("train")[:3]]
    mixed = replace(dataset, splits=dataset.splits | {"train": [*few, *dataset.examples("train")[3:]]})
    changes += ["encoder.heads=2", "decoder.width=8", "decoder.heads=2"]
    parts = build_parts(load_recipe("patch-transformer-word", [*changes, "data.min_captions=5"]), mixed)
    assert len(parts.references) == len(parts.objects) == 5
    with pytest.raises(ConfigError, match="no training photo has so many"):
        build_parts(load_recipe("patch-transformer-word", [*changes, "data.min_captions=6"]), mixed)
