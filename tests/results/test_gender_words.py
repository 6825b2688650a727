"""Gender words in captions against those of people: how photos are classed and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiment_sections
import gender_words
from gender_words import CONTRADICTED, UNNAMED, genders, photo_class, summary

MAN = ["a man on a bike", "a guy rides", "a person on a bike", "the boy's bike", "his bike"]


def test_a_caption_names_genders_by_whole_words() -> None:
    assert genders("A woman and her dog") == {"woman"}
    assert genders("two men with a lady") == {"man", "woman"}
    assert genders("a person in a human costume on a manhole in Germany") == set()


@pytest.mark.parametrize(
    ("captions", "found"),
    [
        (MAN, "man"),
        ([*MAN[:2], "a person", "people", "a rider"], None),  # only a minority names it
        ([*MAN[:4], "a woman on a bike"], CONTRADICTED),
        ([*MAN[:4], "a man and a woman"], None),  # shows both
        (["a person skis", "someone skis", "a skier", "a red slope", "snow"], UNNAMED),
        (["a red slope", "snow", "a hill", "a skier", "a tree"], None),  # hardly anybody mentions people
    ],
)
def test_photos_are_classed_by_what_people_say(captions: list[str], found: str | None) -> None:
    assert photo_class(captions) == found


def test_captions_are_counted_in_each_class_and_shown(tmp_path: Path) -> None:
    people = {"1": MAN, "2": MAN, "3": ["a person skis"], "4": ["a hill"]}
    captions = {"1": "a woman on a bike", "2": "a man", "3": "a skier", "4": "a girl"}
    found = summary(captions, people)
    assert found["classes"]["man"] == {"photos": 2, "man": 1, "woman": 1, "both": 0, "none": 0}
    assert found["classes"][UNNAMED] == {"photos": 1, "man": 0, "woman": 0, "both": 0, "none": 1}
    assert found["captions"] == {"man": 25.0, "woman": 50.0}
    (tmp_path / "gender_words.json").write_text(json.dumps({"tiny, test": found}))
    text = experiment_sections.blocks(tmp_path)["gender words"]
    assert "| tiny, test | most people name a man | 2 | 1 (50 %) | 1 (50 %) | 0 (0 %) | 0 (0 %) |" in text


def test_captions_of_other_photos_are_one_line(
    tiny_flickr8k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"image_id": "9.jpg", "caption": "a man"}]))
    arguments = [str(tmp_path / "c.json"), "--data", str(tiny_flickr8k), "--results", str(tmp_path)]
    from script import run

    assert run(gender_words.main, arguments) == 1
    assert "9.jpg is no photo of test" in capsys.readouterr().err
    assert not (tmp_path / "gender_words.json").exists()
