"""The tokeniser against what the COCO caption tools' own tokeniser gave, stored and, where Java is, live."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sightline.evaluation.metrics.ptb import tokenize, tokenize_all

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "ptb_oracle.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["hard", "captions"])
def test_tokens_equal_the_stored_ones_of_the_coco_tools(kind: str) -> None:
    texts = [text for text, _ in ORACLE[kind]]
    wrong = [(text, tokens, want) for tokens, (text, want) in zip(tokenize_all(texts), ORACLE[kind]) if tokens != want]
    assert not wrong


def test_tokens_equal_the_live_ones_of_the_coco_tools() -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    tools = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    texts = [text for text, _ in ORACLE["hard"]]
    found = tools.PTBTokenizer().tokenize({"all": [{"caption": text} for text in texts]})["all"]
    assert [" ".join(tokens) for tokens in tokenize_all(texts)] == found


def _digest(captions: list[str]) -> dict[str, int | str]:
    lines = "\n".join(" ".join(tokens) for tokens in tokenize_all(captions))
    return {"captions": len(captions), "sha256": hashlib.sha256(lines.encode()).hexdigest()}


@pytest.mark.real
def test_every_flickr8k_caption_has_the_tokens_of_the_coco_tools(real_flickr8k: Path) -> None:
    rows = (real_flickr8k / "Flickr8k_text" / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    assert _digest([row.split("\t", 1)[1] for row in rows]) == ORACLE["corpora"]["flickr8k"]


@pytest.mark.real
@pytest.mark.parametrize("corpus", ["flickr30k", "coco_val2017"])
def test_every_caption_of_larger_corpora_has_the_tokens_of_the_coco_tools(shared: Path, corpus: str) -> None:
    path = shared / "text" / f"{corpus}_captions.txt.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the real data")
    assert _digest(gzip.decompress(path.read_bytes()).decode().splitlines()) == ORACLE["corpora"][corpus]


def test_punctuation_is_dropped_and_case_is_lowered() -> None:
    assert tokenize('A man , in RED , says "hello" .') == ["a", "man", "in", "red", "says", "hello"]


def test_contractions_and_possessives_are_two_tokens() -> None:
    tokens = tokenize("The dog's owner can't, cannot and isn't gonna")
    assert " ".join(tokens) == "the dog 's owner ca n't can not and is n't gon na"


def test_a_line_break_within_a_caption_is_a_space() -> None:
    for line_break in "\n", "\r\n", "\u2028", "\v":
        assert tokenize_all([f"a dog{line_break}runs", "a cat"]) == [["a", "dog", "runs"], ["a", "cat"]]


def test_no_text_has_no_tokens() -> None:
    assert tokenize("") == tokenize(" \t") == tokenize(" . ") == []
    assert tokenize_all([]) == []
    assert tokenize_all(["", "a", ""]) == [[], ["a"], []]


def test_a_lone_letter_with_a_stop_is_a_word_before_a_sentence_and_an_abbreviation_elsewhere() -> None:
    assert tokenize_all(["vitamin K.", "The dog"])[0] == ["vitamin", "k"]
    assert tokenize_all(["vitamin K.", "Dogs"])[0] == tokenize("vitamin K.") == ["vitamin", "k."]


def test_a_character_outside_the_grammar_only_separates() -> None:
    assert tokenize("a dog\U0001f600runs \U0001f600") == ["a", "dog", "runs"]
