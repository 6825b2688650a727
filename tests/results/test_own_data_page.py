"""docs/own-data.md shows what own_data.json holds, and the experiment's photos are parted as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import own_data
from rows import read_json
from script import RESULTS
from sightline.data import Dataset, Example
from sightline.data.dataset import Report
from table import filled


def example(name: str, *captions: str) -> Example:
    return Example(Path(name), captions, name)


def test_the_page_agrees_with_the_json_file() -> None:
    page = own_data.PAGE.read_text(encoding="utf-8")
    values = read_json(RESULTS / "own_data.json")
    assert page == filled(page, own_data.blocks(values)), "run results/tools/own_data.py"
    for number in (
        values["water"]["photos"]["base"],
        values["water"]["photos"]["test"],
        values["dogs"]["photos"]["own"],
    ):
        assert re.search(rf"\b{number:,}\b", page), number


def test_a_photo_is_of_a_subject_if_most_captions_say_so() -> None:
    wet = example("wet", "a surfer", "the Ocean", "a man swims", "a man", "a board")
    damp = example("damp", "a dog by a lake", "a dog", "a dog", "a dog", "a dog")
    dry = example("dry", "a pooled car", "a dog", "a man", "a man", "a man")
    photos = [wet, damp, dry]
    assert own_data.about(own_data.WATER, photos, own_data.MOST) == [wet]
    assert own_data.about(own_data.WATER, photos, 0, 0) == [dry]


@pytest.mark.parametrize("count", [16, 50])
def test_what_is_scored_or_chosen_by_is_never_learnt(count: int) -> None:
    whole = Dataset("x", Path(), {}, Report())
    own, test = [example(f"own{number}", "a") for number in range(count)], [example("test", "a")]
    data = own_data.own_photos("x", whole, own, test)
    assert len(data.examples("dev")) == -(-count // 8)
    assert {photo.name for split in ("train", "dev") for photo in data.examples(split)} == {one.name for one in own}
    assert not {one.name for one in data.examples("train")} & {one.name for one in data.examples("dev")}
    assert data.examples("test") == test
