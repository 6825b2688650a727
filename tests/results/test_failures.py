"""The worst captions: ranked by their own scores, and only counted what can be counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import failures
import sections
from script import ROOT, run
from sightline.data import load_dataset, write_results
from sightline.evaluation.metrics import build
from sightline.evaluation.scoring import Evaluation, ScoredImage

PEOPLE = [["a", "man", "is", "jumping", "over", "a", "rock"], ["the", "climber", "leaps", "from", "a", "cliff"]]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a dog is jumping over a rock", (True, False, False)),
        ("two people jump from a cliff", (True, False, False)),
        ("a man is sitting on a bench", (False, True, True)),
        ("a man jumps", (False, False, False)),
        ("a red building", (False, False, True)),
        ("a man in front of a building", (False, False, True)),
    ],
)
def test_kinds_of_mistakes_are_found_by_their_words(caption: str, expected: tuple[bool, ...]) -> None:
    people = [*PEOPLE, ["a", "person", "on", "a", "rock"]] if "people" in caption else PEOPLE
    if "people" in caption:
        expected = (False, False, False)
    found = failures.kinds(caption.split(), people, generic=frozenset({"man", "red"}))
    assert tuple(found.values()) == expected


def test_references_that_agree_score_higher() -> None:
    alike = [["a", "dog", "runs", "on", "grass"]] * 3
    apart = [["two", "men", "fight"], ["boxing", "in", "a", "ring"], ["sport", "for", "adults", "tonight"]]
    filler = [[word, "stands", "there", "alone"] for word in ("cat", "cow", "duck")]
    found = failures.agreement([alike, apart, filler, [["alone"]]])
    assert found[0] > found[2] > found[1] == 0 and found[3] == 0


def test_the_vocabulary_knows_what_training_repeats() -> None:
    known, generic = failures.vocabulary(["A dog runs ."] * 5 + ["a cat runs"] * 4)
    assert known == {"a", "dog", "runs"}
    assert generic == {"run", "dog", "cat"}


def test_rank_correlation_counts_order_and_ties() -> None:
    rising = np.array([1.0, 2.0, 2.0, 5.0])
    assert failures._rank_correlation(rising, rising**3) == pytest.approx(1)
    assert failures._rank_correlation(rising, -rising) == pytest.approx(-1)
    assert failures._rank_correlation(rising, np.ones(4)) == 0


def test_ties_are_broken_by_meteor_and_then_by_name() -> None:
    scores = {"d": (0.5, 0.1), "c": (0.0, 0.2), "b": (0.0, 0.1), "a": (0.0, 0.2)}
    images = tuple(
        ScoredImage(name, "", ("x",), {"cider": cider, "meteor": meteor}) for name, (cider, meteor) in scores.items()
    )
    order = failures.ranked(Evaluation("", {}, {}, {}, images))
    assert [images[place].name for place in order] == ["b", "a", "c", "d"]


@pytest.mark.skipif("meteor" not in build(), reason="ties are broken by METEOR: pip install pycocoevalcap")
def test_one_command_writes_the_worst_and_their_page(
    tiny_flickr8k_kept: Path, made_results: Path, tmp_path: Path
) -> None:
    examples = load_dataset(tiny_flickr8k_kept).examples("test")
    captions = {examples[0].name: examples[0].captions[0], examples[1].name: "two dogs are swimming"}
    write_results(made_results / "mine.captions.json", captions)
    arguments = ["mine", "--data", str(tiny_flickr8k_kept), "--results", str(made_results), "--count", "1"]
    assert run(failures.main, [*arguments, "--page", str(tmp_path / "worst.html")]) == 0
    found = json.loads((made_results / "failures.json").read_text())
    (worst,) = found["worst"]
    assert worst["name"] == examples[1].name and worst["references"] == list(examples[1].captions)
    assert worst["scores"]["cider"] == 0
    assert found["summary"]["action in no reference, %"] == {"worst": 100.0, "all": 50.0, "correlation": -1.0}
    assert "two dogs are swimming" in (tmp_path / "worst.html").read_text()
    text = sections.blocks(made_results)["results/failures.md"]["failures"]
    assert "1. **two dogs are swimming**" in text and "action in no reference" in text
    for reference in examples[1].captions:
        assert reference.split()[0] in text


def test_photos_stay_outside_the_repository(tiny_flickr8k_kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "results" / "worst.html"
    assert run(failures.main, ["mine", "--data", str(tiny_flickr8k_kept), "--page", str(page)]) == 2
    assert "lies in the repository" in capsys.readouterr().err and not page.exists()
