"""``no_repeat_words``: which tokens are one word, every search, and each way to switch the option on."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command, tiny_recipe
from drawings import EVERY
from exporting import tiny_checkpoint
from serving import serving
from tiny_checkpoints import error_message, tiny
from toy_decoders import END, Chain, ToyDecoder, decode, photos, sample, sequence_log_probs, texts

from sightline.data import load_dataset
from sightline.decoding import DecodingOptions, same_words
from sightline.engine.captioner import Captioner, load
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import CheckpointError, ConfigError
from sightline.io.images import open_image
from sightline.nn.checkpoint import save_checkpoint
from sightline.onnx.export import export
from sightline.recipes.config import parse_recipe
from sightline.tokenizers.base import SPECIAL
from sightline.tokenizers.content_words import FUNCTION_WORDS, MODIFIERS, singular, word_groups
from sightline.tokenizers.word import WordTokenizer
from sightline.training.setup import build_parts

WORDS = WordTokenizer([*SPECIAL, "a", "dog", "dogs", "black", "cat"], 12)  # ids 4 to 8
TABLE = same_words(WORDS)
MODES: list[dict[str, Any]] = [{"beam": 1}, {"beam": 3, "candidates": 3}, {"sample": True, "candidates": 8, "seed": 5}]


def repeated(words: list[str]) -> list[str]:
    """The content words of a caption that it has twice, compared by the singulars of its own words."""
    content = [singular(word, words) for word in words if word not in FUNCTION_WORDS | MODIFIERS]
    return [word for word in content if content.count(word) > 1]


def names(tokens: list[int]) -> list[str]:
    return [WORDS.tokens[token] for token in tokens]


# -- which tokens are one word ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [("dog", "dogs"), ("box", "boxes"), ("puppy", "puppies"), ("bus", "buses"), ("man", "men"), ("glass", "glasses"),
     ("plane", "planes"), ("cookie", "cookies"), ("potato", "potatoes"), ("person", "people"), ("leaf", "leaves")],
)  # fmt: skip
def test_singular_and_plural_are_one_word(one: str, other: str) -> None:
    for words in ((one, other), (other, one)):
        assert word_groups(WordTokenizer([*SPECIAL, "a", *words, "plan", "tree"], 9)) == [0] * 5 + [5, 5, 7, 8]


@pytest.mark.parametrize(
    "words", [("plan", "planes"), ("tenni", "tennis-ball"), ("dres", "dress"), ("cat", "cap"), ("bus", "busy")]
)
def test_other_words_that_look_alike_are_not(words: tuple[str, str]) -> None:
    assert word_groups(WordTokenizer([*SPECIAL, *words], 9)) == [0] * 4 + [4, 5]


def test_plurals_without_their_singular_stand_alone_and_irregular_ones_still_meet() -> None:
    assert word_groups(WordTokenizer([*SPECIAL, "pants", "goggles", "'s", "two", "white"], 9)) == [0] * 4 + [
        4,
        5,
        0,
        0,
        0,
    ]
    assert not FUNCTION_WORDS & MODIFIERS


def test_the_table_has_every_form_of_each_word() -> None:
    assert [sorted({*row} - {0}) for row in TABLE.tolist()] == [[], [], [], [], [], [5, 6], [5, 6], [], [8]]
    assert same_words(WordTokenizer([*SPECIAL, "a", "of"], 9)).shape == (6, 0)


# -- searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_no_search_repeats_a_content_word(mode: dict[str, Any]) -> None:
    options = {"max_length": 12, "min_length": 6, **mode}
    repeats = 0
    for seed in range(4):
        network = ToyDecoder(vocabulary=WORDS.size, seed=seed)
        free = decode(network, photos(5), DecodingOptions(**options))
        repeats += sum(bool(repeated(names(tokens))) for photo in texts(free) for tokens in photo)
        found = texts(decode(network, photos(5), DecodingOptions(**options, no_repeat_words=True), TABLE))
        assert [tokens for photo in found for tokens in photo if repeated(names(tokens))] == []
        assert any(tokens.count(4) > 1 or tokens.count(7) > 1 for photo in found for tokens in photo)  # a, black
        assert found == texts(decode(network, photos(5), DecodingOptions(**options, no_repeat_words=True), TABLE))
    assert repeats > 4, "nothing would have been repeated"


def test_the_best_caption_without_repetition_is_found() -> None:
    """Against every caption there is."""
    options = DecodingOptions(beam=1000, max_length=6, length_penalty=1.0, no_repeat_words=True)
    for seed in range(3):
        network, features = ToyDecoder(vocabulary=WORDS.size, seed=seed), photos(1, seed=seed)
        captions = [
            [*tokens, END]
            for length in range(5)
            for tokens in itertools.product(range(4, WORDS.size), repeat=length)
            if not repeated(names(list(tokens)))
        ]
        with torch.no_grad():
            scores = [sum(sequence_log_probs(network, features, tokens)) / len(tokens) for tokens in captions]
        (best,) = decode(network, features, options, TABLE)[0]
        assert best.tokens == captions[scores.index(max(scores))][:-1]
        assert best.score == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_photo_s_caption_depends_neither_on_its_batch_nor_on_an_ensemble_of_the_same(mode: dict[str, Any]) -> None:
    options = DecodingOptions(**mode, max_length=12, no_repeat_words=True)
    network, features = ToyDecoder(vocabulary=WORDS.size), photos(7)
    together = texts(decode(network, features, options, TABLE))
    alone = [texts(decode(network, features[number : number + 1], options, TABLE))[0] for number in range(7)]
    assert together == alone == texts(decode([network, network], features, options, TABLE))


def test_it_acts_beside_n_grams_and_a_caption_that_must_repeat_ends() -> None:
    table = torch.zeros(WORDS.size, WORDS.size)
    table[:, END] = -9
    options = DecodingOptions(beam=3, max_length=12, min_length=9, no_repeat_ngram=1, no_repeat_words=True)
    for hypothesis in decode(Chain(table), photos(2), options, TABLE)[1]:
        assert hypothesis.finished
        assert len(hypothesis.tokens) == 4 and len({5, 6} & {*hypothesis.tokens}) == 1  # a, dog or dogs, black, cat


def test_without_the_table_it_is_refused() -> None:
    options = DecodingOptions(no_repeat_words=True)
    with pytest.raises(ConfigError, match="no_repeat_words needs the table"):
        decode(ToyDecoder(), photos(1), options)
    with pytest.raises(ConfigError, match="no_repeat_words needs the table"):
        sample(ToyDecoder(), photos(1), 2, options)


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> list[Any]:
    return [drawing.draw((60, 40)) for drawing in EVERY[:6]]


def switch_on(folder: Path) -> Path:
    """A model whose default it is."""
    config = json.loads((folder / "config.json").read_text())
    config["decoding"]["no_repeat_words"] = True
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_without_the_option_has_it_off_and_a_model_may_switch_it_on(
    own_model: Path, pictures: list[Any]
) -> None:
    assert "no_repeat_words" not in json.loads((own_model / "config.json").read_text())["decoding"]
    old = load(own_model, runtime="torch")
    assert old.options().no_repeat_words is False
    before = [caption.text.split() for caption in old.caption(pictures)]  # type: ignore[union-attr]
    asked = [caption.text for caption in old.caption(pictures, no_repeat_words=True)]  # type: ignore[union-attr]
    assert any(map(repeated, before)) and not any(repeated(text.split()) for text in asked)

    new = load(switch_on(own_model), runtime="torch")
    assert [caption.text for caption in new.caption(pictures)] == asked  # type: ignore[union-attr]
    back = new.caption(pictures, no_repeat_words=False)
    assert [caption.text.split() for caption in back] == before  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["char", "bpe"])
def test_tokens_that_are_no_words_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    line = f"no_repeat_words needs tokens that are words, this model's tokenizer is '{name}': leave it out"
    checkpoint = tiny(text=name)
    with pytest.raises(ConfigError) as error:
        Captioner([TorchBackend(checkpoint)]).options(no_repeat_words=True)
    assert str(error.value) == line
    save_checkpoint(tmp_path, checkpoint)
    assert line in error_message(switch_on(tmp_path))


def test_training_refuses_it_before_it_begins(tiny_flickr8k_kept: Path) -> None:
    values, data = tomllib.loads(tiny_recipe()), load_dataset(tiny_flickr8k_kept)
    recipe = parse_recipe(values, ["decoding.no_repeat_words=true"])
    assert build_parts(recipe, data).checkpoint({}).decoding["no_repeat_words"] is True
    for override, fault in (
        ("tokenizer.name=bpe", "tokenizer is 'bpe'"), ("decoding.max_length=13", "max_length is 13"),
    ):  # fmt: skip
        changed = dict(values, tokenizer={"max_length": 12})
        with pytest.raises(ConfigError, match=rf"^\[decoding\] does not fit: .*{fault}"):
            build_parts(parse_recipe(changed, ["decoding.no_repeat_words=true", override]), data)


def test_an_export_takes_it_along_with_the_groups_for_other_programs(tmp_path: Path, pictures: list[Any]) -> None:
    save_checkpoint(tmp_path, tiny_checkpoint())
    export(switch_on(tmp_path))
    manifest = json.loads((tmp_path / "sightline.json").read_text())
    exported, network = load(tmp_path, runtime="onnx"), load(tmp_path, runtime="torch")
    assert manifest["decoding"]["no_repeat_words"] is True
    assert manifest["word_groups"] == word_groups(exported.tokenizer)
    found = [[caption.text for caption in one.caption(pictures)] for one in (exported, network)]  # type: ignore[union-attr]
    assert found[0] == found[1] and not any(repeated(text.split()) for text in found[0])

    del manifest["word_groups"]
    (tmp_path / "sightline.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="'word_groups' is missing; copy the file or export the model again"):
        load(tmp_path, runtime="onnx")


# -- the command line and the server ----------------------------------------------------------------------------------


def test_the_command_line_and_the_server_take_it(
    command: Command, tiny_model: Path, tmp_path: Path, pictures: list[Any]
) -> None:
    path = tmp_path / "photo.png"
    captioner = load(tiny_model)
    photo = next(one for one in pictures if repeated(captioner.caption(one).text.split()))
    photo.save(path)
    expected = captioner.caption(open_image(path), no_repeat_words=True).text
    assert not repeated(expected.split())
    outcome = command("caption", path, "--model", tiny_model, "--json", "--set", "no_repeat_words=true")
    assert json.loads(outcome.out)[0]["caption"] == expected
    with serving("--model", tiny_model) as server:
        for value, wanted in (("true", expected), ("false", captioner.caption(photo).text)):
            reply = server.post("/v1/caption", path.read_bytes(), {"no_repeat_words": value})
            assert reply.json["captions"][0]["caption"] == wanted
        assert server.post("/v1/caption", path.read_bytes(), {"no_repeat_words": "maybe"}).status == 422
