"""METEOR's index, built from a tiny wheel made on the spot."""

from __future__ import annotations

import gzip
from pathlib import Path
from zipfile import ZipFile

import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_data
from sightline.evaluation.metrics.meteor import EXACT, PARAPHRASE, Meteor, align
from sightline.evaluation.metrics.meteor_build import Source
from sightline.evaluation.metrics.meteor_data import MeteorData, load

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
    assert data.prefixes == {"Mr": False, "No": True}


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
    assert [match.caption_length for match in align(caption, reference)] == [3, 1]
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
