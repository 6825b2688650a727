"""METEOR's stemmer, tokeniser and tables: what needs no data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sightline.evaluation.metrics.meteor_build import Table, ngram_keys, phrase_key, word_key
from sightline.evaluation.metrics.meteor_words import normalize, stem

PREFIXES = {"Mr": False, "vs": False, "pp": True}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("running", "run"),
        ("runs", "run"),
        ("skies", "sky"),
        ("dying", "die"),
        ("news", "news"),
        ("ties", "tie"),
        ("cries", "cri"),
        ("gas", "gas"),
        ("this", "this"),
        ("kiwis", "kiwi"),
        ("hopping", "hop"),
        ("hoping", "hope"),
        ("luxuriated", "luxuri"),
        ("generically", "generic"),
        ("communal", "communal"),
        ("proceed", "proceed"),
        ("agreed", "agre"),
        ("feed", "feed"),
        ("youth", "youth"),
        ("enjoyed", "enjoy"),
        ("by", "by"),
        ("dog's", "dog"),
        ("'s", "'s"),
        ("nationalization", "nation"),
        ("analogically", "analog"),
        ("hopefulness", "hope"),
        ("controlled", "control"),
        ("roll", "roll"),
        ("adjustable", "adjust"),
    ],
)
def test_stem_is_porter2(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a red t-shirt", "a red t shirt"),
        ("he does n't look", "he does n 't look"),
        ("the dog 's ball", "the dog ' s ball"),
        ("rock-n-roll", "rock n-roll"),
        ("the u.s. flag", "the us flag"),
        ("1,000 people and 3.5 dogs", "1,000 people and 3.5 dogs"),
        ("one,two", "one , two"),
        ("$5 & 6%", "$ 5 & 6 %"),
        ("mr. smith", "mr. smith"),
        ("the end.", "the end ."),
        ("Mr. 5 vs. 6 pp. 7 no. 8", "mr. 5 vs. 6 pp. 7 no . 8"),
        ("wait...what", "wait ... what"),
        ("``so''", '" so "'),
        ("café–bar", "café - bar"),
        ("", ""),
    ],
)
def test_normalize_splits_what_treebank_tokens_keep_together(text: str, expected: str) -> None:
    assert normalize(text, PREFIXES) == expected.split()


def test_ngram_keys_are_the_keys_of_the_phrases() -> None:
    words = ["a", "man", "on", "a", "horse"]
    keys = np.array([word_key(word) for word in words], np.uint64)
    for length, grams in enumerate(ngram_keys(keys, 7), start=1):
        phrases = [words[start : start + length] for start in range(len(words) - length + 1)]
        assert grams.tolist() == [phrase_key(phrase) for phrase in phrases]


def test_table_keeps_the_order_of_values_and_survives_the_disk(tmp_path: Path) -> None:
    entries = np.array([9, 2, 9, 5, 9], np.uint64)
    values = np.array([3, 1, 2, 7, 3], np.int32)
    Table.build(np.array([2, 5, 8, 9], np.uint64), entries, values).save(tmp_path, "numbers")
    table = Table.open(tmp_path, "numbers")
    assert [table.get(key) for key in (9, 2, 5, 8)] == [[3, 2, 3], [1], [7], []]
    assert [table.get(key) for key in (0, 3, 10)] == [None, None, None]
    assert table.find(np.array([10, 9, 2, 3], np.uint64)).tolist() == [-1, 3, 0, -1]
