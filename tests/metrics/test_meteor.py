"""METEOR against the scores of meteor-1.5.jar: stored ones, and the jar itself where Java is at hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_build
from sightline.evaluation.metrics.meteor import Meteor
from sightline.evaluation.metrics.meteor_build import find_source
from sightline.evaluation.metrics.meteor_data import load
from sightline.io.files import cache_folder

ORACLE = json.loads((Path(__file__).parents[1] / "data/meteor_oracle.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def meteor() -> Meteor:
    try:
        find_source()
    except DataError as error:
        pytest.skip(str(error))
    return Meteor()


def tokens(images: list[dict]) -> tuple[list[list[str]], list[list[list[str]]]]:
    captions = [image["caption"].split() for image in images]
    return captions, [[text.split() for text in image["references"]] for image in images]


@pytest.mark.parametrize("system", ORACLE)
def test_scores_equal_the_stored_scores_of_the_jar(meteor: Meteor, system: str) -> None:
    images = ORACLE[system]["images"]
    statistics = meteor.statistics(*tokens(images))
    np.testing.assert_allclose(
        meteor.per_image(statistics)["meteor"], [image["score"] for image in images], rtol=0, atol=1e-9
    )
    assert meteor.aggregate(statistics)["meteor"] == pytest.approx(ORACLE[system]["corpus"], abs=1e-9)


@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
def test_scores_equal_the_jar_run_now(meteor: Meteor) -> None:
    images = [image for system in ORACLE.values() for image in system["images"][::10]]
    expected = run_jar(images)
    statistics = meteor.statistics(*tokens(images))
    np.testing.assert_allclose(meteor.per_image(statistics)["meteor"], expected[:-1], rtol=0, atol=1e-9)
    assert meteor.aggregate(statistics)["meteor"] == pytest.approx(expected[-1], abs=1e-9)


def run_jar(images: list[dict]) -> list[float]:
    """Each image's score and, last, the corpus score, by the protocol of the COCO caption tools."""
    lines = [" ||| ".join(["SCORE", *image["references"], image["caption"]]) for image in images]
    command = ["java", "-Xmx2G", "-jar", str(find_source().jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin and process.stdout
        statistics = []
        for line in lines:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            statistics.append(process.stdout.readline().strip())
        output, _ = process.communicate(" ||| ".join(["EVAL", *statistics]) + "\n", timeout=300)
    return [float(line) for line in output.split()]


def test_corpus_score_holds_for_any_selection_of_rows(meteor: Meteor) -> None:
    captions, references = tokens(ORACLE["human"]["images"])
    rows = meteor.statistics(captions, references)
    chosen = [3, 3, 0, 17, 5, 3]
    again = meteor.statistics([captions[row] for row in chosen], [references[row] for row in chosen])
    assert np.array_equal(rows[chosen], again)
    assert meteor.aggregate(rows[chosen]) == meteor.aggregate(again)
    assert meteor.aggregate(rows[:1])["meteor"] == pytest.approx(meteor.per_image(rows)["meteor"][0])


def test_a_perfect_caption_scores_one_and_an_empty_one_zero(meteor: Meteor) -> None:
    reference = ["a", "man", "rides", "a", "horse"]
    statistics = meteor.statistics([reference, [], ["zebra"]], [[["boat"], reference], [reference], [reference]])
    assert meteor.per_image(statistics)["meteor"] == pytest.approx([1, 0, 0])


def test_an_image_without_references_is_refused(meteor: Meteor) -> None:
    with pytest.raises(DataError, match="image 1 has no reference"):
        meteor.statistics([["a"], ["b"]], [[["a"]], []])


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor_build, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install pycocoevalcap"):
        load()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SIGHTLINE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "sightline"
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
