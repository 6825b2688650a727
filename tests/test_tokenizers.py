"""Every tokenizer of the registry keeps the same promises; then what is particular to each."""

from __future__ import annotations

import json
import time

import pytest

from sightline.errors import CheckpointError, ConfigError, DataError
from sightline.tokenizers import TOKENIZERS, Tokenizer, tokenizer_from_json, train_tokenizer
from sightline.tokenizers.base import join_words, normalise, split_words
from sightline.tokenizers.bpe import BpeTokenizer
from sightline.tokenizers.char import CharTokenizer
from sightline.tokenizers.word import WordTokenizer

CAPTIONS = [
    "A man 's tri-colored dog runs through the snow .",
    "A black dog and a white dog are in the snow .",
    "Two children, one in a T-shirt, play with a dog!",
    "The man doesn't see the dog .",
    'A dog named "Rex" jumps; the children laugh .',
] * 5


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    options = {"bpe": {"size": 60}}.get(request.param, {})
    return TOKENIZERS[request.param].train(CAPTIONS, max_length=100, **options)


@pytest.mark.parametrize("clitic", ["'d", "n't", "'s"])
def test_a_word_of_very_many_clitics_is_split_in_linear_time(clitic: str) -> None:
    began = time.process_time()
    words = split_words("a" + clitic * 100_000)
    assert time.process_time() - began < 5
    assert words == ["a", *[clitic] * 100_000] and split_words(clitic * 2)[-1] == clitic


def test_the_four_special_ids_are_the_same_in_every_vocabulary(tokenizer):
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown) == (0, 1, 2, 3)
    assert tokenizer.tokens[:4] == ("<pad>", "<start>", "<end>", "<unknown>")
    assert len(set(tokenizer.tokens)) == tokenizer.size == len(tokenizer.tokens)


@pytest.mark.parametrize("caption", CAPTIONS[:5])
def test_known_text_survives_the_round_trip(tokenizer, caption):
    ids = tokenizer.encode(caption)
    assert ids[0] == tokenizer.start
    assert ids[-1] == tokenizer.end
    assert tokenizer.decode(ids) == tokenizer.normalise(caption)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_decode_stops_at_the_end_and_drops_special_ids(tokenizer):
    ids = tokenizer.encode("a dog")
    assert tokenizer.decode([0, 0, 3, *ids, *tokenizer.text_ids("the snow"), 0]) == "a dog"
    assert tokenizer.decode([]) == ""


def test_a_cut_caption_has_no_end(tokenizer):
    ids = tokenizer.encode("a dog in the snow " * 30)
    assert len(ids) == tokenizer.max_length
    assert tokenizer.end not in ids


@pytest.mark.parametrize("caption", [*CAPTIONS[:5], "zebras don't jump"])
def test_a_caption_counts_with_the_characters_its_tokens_cover(tokenizer, caption):
    """Whole captions with all of them and one for the end; shorter limits take away what they cut, and no more."""
    whole = tokenizer.normalise(caption)
    assert tokenizer.character_count(caption) == len(whole) + 1
    counts = []
    ids = tokenizer.text_ids(caption)
    for kept in range(2, len(ids) + 1):
        cut = type(tokenizer).from_json(tokenizer.to_json() | {"max_length": kept + 1})
        counts.append(cut.character_count(caption))
        if tokenizer.unknown not in ids:
            text = tokenizer.decode(ids[:kept])
            assert whole.startswith(text)
            assert cut.character_count(caption) - len(text) in (0, 1), "a space at the cut at most"
    assert counts == sorted(set(counts)) or tokenizer.unknown in ids
    assert counts[-1] == len(whole), "every word is there, the end is not"


def test_a_caption_that_just_fits_keeps_its_end(tokenizer):
    whole = tokenizer.encode("a dog in the snow")
    fits = type(tokenizer).from_json({**tokenizer.to_json(), "max_length": len(whole)})
    short = type(tokenizer).from_json({**tokenizer.to_json(), "max_length": len(whole) - 1})
    assert fits.encode("a dog in the snow") == whole
    assert short.encode("a dog in the snow") == whole[:-1]


def test_words_name_the_positions_of_the_ids_given(tokenizer):
    caption = "the man's dog jumps"
    ids = tokenizer.encode(caption)
    words = tokenizer.words(ids)
    assert [word for word, _ in words] == ["the", "man's", "dog", "jumps"]
    positions = [position for _, group in words for position in group]
    assert positions == list(range(1, len(ids) - 1))  # all but start and end, each once, in order


def test_unknown_text_lowers_coverage_and_never_fails(tokenizer):
    assert tokenizer.coverage(CAPTIONS) == 1.0
    assert tokenizer.coverage(["щука ψ"]) < 1.0
    assert tokenizer.unknown in tokenizer.encode("щука ψ")
    assert tokenizer.coverage([]) == 1.0
    assert tokenizer.encode("") == [tokenizer.start, tokenizer.end]


def test_json_gives_the_same_tokenizer(tokenizer):
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert type(again) is type(tokenizer)
    assert again.to_json() == tokenizer.to_json()
    assert all(again.encode(caption) == tokenizer.encode(caption) for caption in CAPTIONS)


def test_ids_do_not_depend_on_the_order_of_captions(tokenizer):
    options = {"bpe": {"size": 60}}.get(tokenizer.name, {})
    again = type(tokenizer).train(reversed(CAPTIONS), max_length=100, **options)
    assert again.to_json() == tokenizer.to_json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_length": "20"}, "'max_length' is '20'"),
        ({"max_length": 1}, "'max_length' is 1"),
        ({"tokens": "abc"}, "'tokens' is not a list"),
        ({"tokens": ["<pad>", "<start>", "<end>", "<unknown>", "dog", "dog"]}, "'dog'"),
        ({"tokens": ["<start>", "<pad>", "<end>", "<unknown>", "dog"]}, "first ids"),
        ({"code": "x"}, "'code' is not a known key"),
    ],
)
def test_a_tampered_file_is_named(tokenizer, change, named):
    with pytest.raises(CheckpointError, match=named):
        tokenizer_from_json({**tokenizer.to_json(), **change})


def test_a_missing_key_is_named(tokenizer):
    data = tokenizer.to_json()
    del data["tokens"]
    with pytest.raises(CheckpointError, match="'tokens' is missing"):
        tokenizer_from_json(data)


@pytest.mark.parametrize("data", [{}, {"name": "morse"}, {"name": ["word"]}, [], None])
def test_an_unknown_tokenizer_is_refused_with_the_known_names(data):
    with pytest.raises(CheckpointError, match="char, word, bpe"):
        tokenizer_from_json(data)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_useless_training_is_refused(name):
    with pytest.raises(DataError, match="no caption"):
        TOKENIZERS[name].train([])
    with pytest.raises(ConfigError, match="max_length is 2"):
        TOKENIZERS[name].train(CAPTIONS, max_length=2)


@pytest.mark.parametrize(("name", "seconds"), [("word", 1.0), ("bpe", 10.0)])
def test_thirty_thousand_captions_are_quick(name, seconds):
    captions = [f"A {number % 997} dog runs over the {number % 89} hills of snow ." for number in range(30_000)]
    began = time.process_time()
    TOKENIZERS[name].train(captions)
    assert time.process_time() - began < 2 * seconds  # twice the aim: this machine may be busy


def test_a_tokenizer_is_trained_by_name_and_foreign_options_are_named():
    assert (
        train_tokenizer("word", CAPTIONS, min_count=2).to_json() == WordTokenizer.train(CAPTIONS, min_count=2).to_json()
    )
    with pytest.raises(ConfigError, match="the char tokenizer has no option min_count; it has max_length"):
        train_tokenizer("char", CAPTIONS, min_count=2)
    with pytest.raises(ConfigError, match="unknown tokenizer 'morse'; choose from char, word, bpe"):
        train_tokenizer("morse", CAPTIONS)


# What is a word


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man 's dog .", ["a", "man", "'s", "dog"]),
        ("A man’s dog.", ["a", "man", "'s", "dog"]),
        ("the dogs' ball", ["the", "dogs", "ball"]),
        ("it couldn't've", ["it", "could", "n't", "'ve"]),
        ("tri-colored, snow - covered", ["tri-colored", "snow", "covered"]),
        ('"Rex" (#5) at 5 o\'clock', ["rex", "5", "at", "5", "o'clock"]),
        ("black & white", ["black", "&", "white"]),
        ("Café ﬁeld", ["café", "field"]),
        (" . , !", []),
    ],
)
def test_words_are_those_the_metric_sees(text, words):
    assert split_words(text) == words
    assert split_words(join_words(words)) == words


def test_normal_text_is_lower_case_with_single_spaces():
    assert normalise("  A\tDog’s \n BALL ") == "a dog's ball"


# Word


def test_word_ids_go_by_count_then_alphabet():
    tokenizer = WordTokenizer.train(["b b a c c", "d"], min_count=1)
    assert tokenizer.tokens[4:] == ("b", "c", "a", "d")


def test_min_count_and_size_limit_the_words():
    captions = ["a a a b b c"]
    assert WordTokenizer.train(captions, min_count=2).tokens[4:] == ("a", "b")
    assert WordTokenizer.train(captions, min_count=1, size=5).tokens[4:] == ("a",)
    with pytest.raises(ConfigError, match="min_count is 9"):
        WordTokenizer.train(captions, min_count=9)
    with pytest.raises(ConfigError, match="min_count is 0"):
        WordTokenizer.train(captions, min_count=0)
    with pytest.raises(ConfigError, match="size is 4"):
        WordTokenizer.train(captions, size=4)


# Characters


def test_characters_keep_punctuation_and_repeat_no_space():
    tokenizer = CharTokenizer.train(["A dog , here ."])
    assert tokenizer.decode(tokenizer.encode("A dog , here .")) == "a dog , here ."
    space = tokenizer.ids[" "]
    assert tokenizer.decode([space, tokenizer.ids["d"], space, space, tokenizer.ids["o"]]) == "d o"


# Byte pairs


def test_rare_words_come_in_pieces_and_read_as_one():
    tokenizer = BpeTokenizer.train(CAPTIONS, size=60)
    ids = tokenizer.text_ids("snowdog")
    assert len(ids) > 1
    assert tokenizer.unknown not in ids
    assert [word for word, _ in tokenizer.words(ids)] == ["snowdog"]


def test_too_small_a_size_names_the_smallest():
    with pytest.raises(ConfigError, match=r"size is 10; give \d+"):
        BpeTokenizer.train(CAPTIONS, size=10)


@pytest.mark.parametrize("merges", ["ab", [["a"]], [["▁", "qqq"]], [[1, 2]]])
def test_a_tampered_merge_is_named(merges):
    data = BpeTokenizer.train(CAPTIONS, size=60).to_json()
    with pytest.raises(CheckpointError, match="merge"):
        tokenizer_from_json({**data, "merges": merges})
