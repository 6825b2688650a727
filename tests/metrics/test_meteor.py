"""METEOR 1.5: scores equal the jar's, and the alignment behind them is the jar's, too."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_data
from sightline.evaluation.metrics.meteor import CHUNKS, MATCHED, Meteor, align
from sightline.evaluation.metrics.meteor_data import find_source, load
from sightline.io.files import cache_folder

SAMPLE = Path(__file__).parents[1] / "data/meteor_sample.jsonl"
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
    monkeypatch.setattr(meteor_data, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "sightline-captions\[metrics\]"'):
        load()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SIGHTLINE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "sightline"
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def one(meteor: Meteor, caption: str, *references: str) -> tuple[float, list[int], int]:
    """Score, words of the hypothesis matched by each matcher, chunks."""
    row = meteor.statistics([caption.split()], [[text.split() for text in references]])
    matched = row[0, MATCHED:CHUNKS].reshape(4, 4)[:, ::2].sum(1).astype(int).tolist()
    return float(meteor.per_image(row)["meteor"][0]), matched, int(row[0, CHUNKS])


@pytest.mark.parametrize(
    ("caption", "reference", "expected"),
    [
        ("dog", "dog", 1.0),  # one chunk that covers both: no penalty
        ("dog x1", "dog y1", 0.2),  # F 0.5, penalty 0.6
        ("the dog", "dog", 0.380952380952),  # function words weigh a third
        ("dog cat", "cat dog", 0.4),  # two chunks
        ("of the car", "of the automobile", 0.88),  # a synonym weighs 0.8
        ("dog cat bird zzz yyy", "dog www cat bird vvv uuu", 0.2290950),
        ("dog", "", 0.0),
        ("", "dog", 0.0),
    ],
)
def test_the_score(meteor: Meteor, caption: str, reference: str, expected: float) -> None:
    assert one(meteor, caption, reference)[0] == pytest.approx(expected, abs=1e-7)


FIVE = "frisbees zebras giraffes skateboards umbrellas", "frisbee zebra giraffe skateboard umbrella"


@pytest.mark.parametrize(
    ("caption", "reference", "matched", "chunks"),
    [
        ("blorks", "blork", [0, 1, 0, 0], 1),  # the only candidate of both words is always taken
        ("couch", "sofa", [0, 0, 1, 0], 1),
        ("road", "street", [0, 0, 0, 1], 1),
        ("dogs", "dog", [0, 0, 0, 0], 0),  # stem and synonym: gains nothing, so it may open no chunk
        ("red dogs", "red dog", [1, 1, 0, 0], 1),
        ("red zzz dogs", "red yyy dog", [1, 0, 0, 0], 1),
        ("zebra car tiger", "zebra automobile tiger", [2, 0, 1, 0], 1),
        ("zebra red dog blue", "zebra red dogs blue dog", [4, 0, 0, 0], 3),  # gain comes before chunks
        ("red dog red cat", "red cat", [2, 0, 0, 0], 1),  # the second "red" saves a chunk
        ("inside or outside", "inside and outside", [1, 0, 0, 2], 1),  # a phrase saves a chunk
        ("to work on their", "work and their", [2, 0, 0, 0], 2),
        # Half of a phrase's words, rounded down: 2 + 1 for the phrase, so two equal words (4) win in spite of 2 chunks.
        ("a man and a woman", "male and female", [0, 0, 0, 5], 1),
        ("a man and a woman", "male and female a", [2, 0, 0, 1], 2),
        # Paraphrases listed for the phrase of the reference come before those listed for the phrase of the hypothesis.
        ("before", "in front of", [0, 0, 0, 1], 1),
        ("in front of", "before", [0, 0, 0, 2], 1),
        ("dog is jumping into the water", "two people in water", [0, 0, 0, 2], 1),
        # A short phrase of the reference comes before a long one: "across" and "the", not "across the".
        ("running through the grass", "dogs bound across the grass", [2, 0, 0, 1], 1),
        # The distance of a match is charged to the candidates behind it, so the first "red" wins unless its own is 0.
        ("red sofas", "red sofa zzz red couch", [1, 0, 1, 0], 1),
        ("red sofas", "red couch zzz red sofa", [1, 1, 0, 0], 1),
        ("x1 red sofas", "red sofa zzz red couch", [1, 1, 0, 0], 1),
        ("x1 red sofas", "red couch zzz red sofa", [1, 0, 1, 0], 1),
        ("red sofas", "red sofa red", [1, 0, 0, 0], 1),
        ("x1 x2 x3 red sofas", "red zzz zzz zzz red sofa", [1, 0, 0, 0], 1),
        ("red couches zzz red sofas", "yyy red sofa", [1, 1, 0, 0], 1),
        ("red couches zzz red sofas", "yyy yyy red sofa", [1, 0, 1, 0], 1),
        # The beam of 40: in a run of five words, the path that skips them all is dropped.
        ("frisbees zebras giraffes skateboards", "frisbee zebra giraffe skateboard", [0, 0, 0, 0], 0),
        (*FIVE, [0, 5, 0, 0], 1),
    ],
)
def test_the_alignment(meteor: Meteor, caption: str, reference: str, matched: list[int], chunks: int) -> None:
    assert one(meteor, caption, reference)[1:] == (matched, chunks)


def test_the_best_reference_counts_and_the_corpus_score_comes_from_sums(meteor: Meteor) -> None:
    assert one(meteor, "a dog runs", "cats", "a dog runs", "a dog")[0] == 1.0
    rows = meteor.statistics([["dog"], ["dog", "x1"]], [[["dog"]], [["dog", "y1"]]])
    # Matches 2 of 3 words on each side; the first image's chunk does not count, so one chunk for two matches.
    assert meteor.aggregate(rows)["meteor"] == pytest.approx(2 / 3 * (1 - 0.6 * 0.5**0.2))


def test_words_are_covered_once_and_phrases_whole(meteor: Meteor) -> None:
    texts = [text for system in ORACLE.values() for image in system["images"][:20] for text in image["references"][:2]]
    sentences = meteor.data.sentences([text.split() for text in texts])
    for hypothesis, reference in itertools.pairwise(sentences):
        matches = align(hypothesis, reference)
        for begin, length, words in ((1, 2, hypothesis.words), (3, 4, reference.words)):
            covered = [index for match in matches for index in range(match[begin], match[begin] + match[length])]
            assert len(covered) == len(set(covered))
            assert all(index < len(words) for index in covered)


def test_thousands_of_equal_words_take_bounded_time(meteor: Meteor) -> None:
    began = time.process_time()
    assert one(meteor, "the dog " * 3000, "dog the " * 3000)[1] == [200, 0, 0, 0]
    assert time.process_time() - began < 20


def test_a_sample_of_captions_scores_as_the_program_scored_it() -> None:
    """Captions of eleven systems and people, with METEOR 1.5's own scores."""
    try:
        find_source()
    except DataError as error:
        pytest.skip(str(error))
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 400
    metric = Meteor()
    statistics = metric.statistics(
        [row["hypothesis"].split() for row in rows], [[text.split() for text in row["references"]] for row in rows]
    )
    np.testing.assert_allclose(metric.per_image(statistics)["meteor"], [row["score"] for row in rows], atol=1e-6)
