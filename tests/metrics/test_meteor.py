"""METEOR 1.5: scores equal the jar's, and the alignment behind them is the jar's, too."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_data
from sightline.evaluation.metrics.meteor import (
    EXACT,
    PARAPHRASE,
    STEM,
    SYNONYM,
    Match,
    Meteor,
    Sentence,
    Word,
    align,
    count_chunks,
    find_matches,
)
from sightline.evaluation.metrics.meteor_data import find_source, load
from sightline.evaluation.metrics.snowball import stem
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


SYNSETS = {"boy": {1}, "lad": {1, 2}, "girl": {3}}


def sentence(text: str) -> Sentence:
    return Sentence([Word(word, stem(word), frozenset(SYNSETS.get(word, ()))) for word in text.split()])


def places(matches: list[Match]) -> list[tuple[int, int]]:
    return [(match.start, match.caption_start) for match in matches]


@pytest.mark.parametrize(
    ("caption", "reference", "matcher"),
    [("dog", "dog", EXACT), ("running", "runs", STEM), ("boy", "lad", SYNONYM)],
)
def test_each_matcher_finds_its_words(caption: str, reference: str, matcher: int) -> None:
    assert find_matches(sentence(caption), sentence(reference)) == [[Match(0, 1, 0, 1, matcher)]]


def test_unrelated_words_do_not_match() -> None:
    assert align(sentence("boy"), sentence("girl")) == []


def test_paraphrases_match_from_either_side() -> None:
    caption, reference = sentence("a lot of dogs"), sentence("many dogs")
    caption.add_phrase(7, 0, 3, {})
    reference.add_phrase(8, 0, 1, {7: 0})
    assert align(caption, reference) == [Match(0, 1, 0, 3, PARAPHRASE), Match(1, 1, 3, 1, EXACT)]

    caption, reference = sentence("many dogs"), sentence("a lot of dogs")
    caption.add_phrase(8, 0, 1, {7: 0})
    reference.add_phrase(7, 0, 3, {})
    assert align(caption, reference) == [Match(0, 3, 0, 1, PARAPHRASE), Match(3, 1, 1, 1, EXACT)]


def test_identical_sentences_are_compared_word_by_word_only() -> None:
    caption, reference = sentence("many dogs"), sentence("many dogs")
    for side in (caption, reference):
        side.add_phrase(8, 0, 1, {9: 0})
        side.add_phrase(9, 1, 1, {8: 0})
    assert align(caption, reference) == [Match(0, 1, 0, 1, EXACT), Match(1, 1, 1, 1, EXACT)]


def test_search_prefers_fewer_chunks() -> None:
    matches = align(sentence("the cat saw the dog"), sentence("and the dog barked"))
    assert places(matches) == [(1, 3), (2, 4)]
    assert count_chunks(matches) == 1


def test_every_word_is_used_at_most_once() -> None:
    for caption, reference in itertools.product(["a a a b", "b a a", "a"], ["a b a", "a a a a a", "c"]):
        pairs = places(align(sentence(caption), sentence(reference)))
        assert len({start for start, _ in pairs}) == len({place for _, place in pairs}) == len(pairs)
        assert len(pairs) == sum(min(caption.split().count(word), reference.split().count(word)) for word in "abc")


@pytest.mark.parametrize(
    ("matches", "chunks"),
    [
        ([], 0),
        ([(0, 0)], 1),
        ([(0, 0), (1, 1), (2, 2)], 1),
        ([(0, 0), (2, 1)], 2),  # a gap in the reference
        ([(0, 0), (1, 2)], 2),  # a gap in the caption
        ([(0, 2), (1, 1), (2, 0)], 3),
        ([(0, 1), (1, 2), (2, 0)], 2),
    ],
)
def test_count_chunks(matches: list[tuple[int, int]], chunks: int) -> None:
    assert count_chunks([Match(start, 1, place, 1, EXACT) for start, place in matches]) == chunks


def test_a_phrase_counts_as_one_step_of_a_chunk() -> None:
    matches = [Match(0, 1, 0, 3, PARAPHRASE), Match(1, 2, 3, 1, PARAPHRASE), Match(3, 1, 4, 1, EXACT)]
    assert count_chunks(matches) == 1


def test_a_sample_of_captions_scores_as_the_program_scored_it() -> None:
    """Captions of eleven systems and people, with METEOR 1.5's own scores."""
    try:
        find_source()
    except DataError as error:
        pytest.skip(str(error))
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 308
    metric = Meteor()
    statistics = metric.statistics(
        [row["hypothesis"].split() for row in rows], [[text.split() for text in row["references"]] for row in rows]
    )
    np.testing.assert_allclose(metric.per_image(statistics)["meteor"], [row["score"] for row in rows], atol=1e-6)
