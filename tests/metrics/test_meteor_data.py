"""What METEOR knows of English: its words, stems, tables, and the index they are kept in."""

from __future__ import annotations

import gzip
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_data
from sightline.evaluation.metrics.meteor import EXACT, PARAPHRASE, Meteor, align
from sightline.evaluation.metrics.meteor_data import MeteorData, Source, Table, load, ngram_keys, phrase_key, word_key
from sightline.evaluation.metrics.meteor_words import normalize
from sightline.evaluation.metrics.snowball import stem

FILES = {
    "function/english.words": "a\nthe\nof\n",
    "nonbreaking/english.prefixes": "# comment\n\nMr\nNo #NUMERIC_ONLY# \n",
    "synonym/english.synsets": "box\n00000011 00000012\nman\n00000021\nadult_male\n00000021\ngo\n00000031\n",
    "synonym/english.exceptions": "go\nwent gone\n",
}
PARAPHRASES = "0.5\nmany\na lot of\n0.4\nmany\nmost\n0.3\nin front of\nbefore\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    source = Source(tmp_path / "meteor.jar", tmp_path / "paraphrases.gz")
    with ZipFile(source.jar, "w") as jar:
        for name, text in FILES.items():
            jar.writestr(name, text)
    source.paraphrases.write_bytes(gzip.compress(PARAPHRASES.encode()))
    monkeypatch.setattr(meteor_data, "find_source", lambda: source)
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    return source


@pytest.fixture
def data(source: Source) -> MeteorData:
    return load()


def test_small_word_lists_are_kept(data: MeteorData) -> None:
    assert data.function_words == {"a", "the", "of"}
    assert data.abbreviations == {"Mr": False, "No": True}


@pytest.mark.parametrize(
    ("word", "sets"),
    [
        ("box", {11, 12}),
        ("boxes", {11, 12}),  # by rule
        ("men", {21}),
        ("went", {31}),  # by the list of exceptions
        ("going", {31}),
        ("boss", set()),
        ("unknown", set()),
    ],
)
def test_synonym_sets_are_found_for_inflected_words(data: MeteorData, word: str, sets: set[int]) -> None:
    assert data.word(word).synsets == sets


def test_phrases_are_found_within_their_own_sentence_only(data: MeteorData) -> None:
    caption, reference, first, second = data.sentences(
        [text.split() for text in ("a lot of dogs", "many dogs", "dogs in front", "of men")]
    )
    assert [match.matcher for match in align(caption, reference)] == [PARAPHRASE, EXACT]
    assert [match.length for match in align(caption, reference)] == [3, 1]
    assert not first.phrases and not second.phrases


def test_the_index_is_built_once_and_again_when_the_wheel_changes(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    real = meteor_data.build
    monkeypatch.setattr(meteor_data, "build", lambda *args: (built.append(args), real(*args)))
    load()
    load()
    assert len(built) == 1
    source.paraphrases.write_bytes(gzip.compress((PARAPHRASES + "0.1\nmen\nguys\n").encode()))
    load()
    assert len(built) == 2


def test_a_damaged_wheel_is_reported_and_leaves_nothing_behind(source: Source, tmp_path: Path) -> None:
    source.paraphrases.write_bytes(source.paraphrases.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"damaged.*reinstall"):
        load()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_index_is_reported(source: Source, tmp_path: Path) -> None:
    load()
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "synsets-keys.npy").write_bytes(b"")
    with pytest.raises(DataError, match="delete that folder"):
        load()


def test_a_cache_that_cannot_be_written_is_reported(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match="set SIGHTLINE_CACHE"):
        load()


def test_function_words_weigh_less(data: MeteorData) -> None:
    meteor = Meteor(data)
    rows = meteor.statistics([["the", "box"], ["a", "box"]], [[["a", "box"]], [["a", "cat"]]])
    content, function = meteor.per_image(rows)["meteor"]
    assert content > function > 0


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
        ("wait...what", "wait ... what"),
        ("``so''", '" so "'),
        ("", ""),
    ],
)
def test_normalize_splits_what_treebank_tokens_keep_together(text: str, expected: str) -> None:
    assert normalize(text.split(), PREFIXES) == expected.split()


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
