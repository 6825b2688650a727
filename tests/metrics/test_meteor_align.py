"""METEOR's aligner on hand-made sentences: matchers, search and chunks, without any data."""

from __future__ import annotations

import itertools

import pytest

from sightline.evaluation.metrics.meteor import (
    EXACT,
    PARAPHRASE,
    STEM,
    SYNONYM,
    Match,
    Sentence,
    Word,
    align,
    count_chunks,
    find_matches,
)
from sightline.evaluation.metrics.meteor_words import stem

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
