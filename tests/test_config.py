"""A recipe is read whole: every fault at once, the nearest name suggested, nothing taken silently."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sightline.errors import ConfigError
from sightline.recipes.config import (
    PatchEncoder,
    PretrainedEncoder,
    Recipe,
    check_part,
    differences,
    find_recipe,
    load_recipe,
    nearest,
    parse_recipe,
    recipe_names,
)

SMALL = {"encoder": {"name": "patches"}, "decoder": {"name": "lstm"}}
PRETRAINED = {"encoder": {"name": "vgg19"}, "decoder": {"name": "transformer"}}


def error_message(values: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(values, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Faults


def test_all_faults_are_reported_at_once_with_the_nearest_names() -> None:
    message = error_message(
        {
            "encoder": {"name": "vgg19", "image_sise": 224, "fit": "crp"},
            "decoder": {"name": "lstm", "widht": 3, "dropout": 2},
            "objective": {"name": "cross-entrpy"},
            "training": {"optimizer": "adm", "epochs": 0},
            "trainin": {},
        },
        "data.captons=all",
        "nonsense",
    )
    for fault in (
        "'encoder.image_sise' (did you mean 'image_size'?)",
        "encoder.fit is 'crp' (did you mean 'crop'?); choose from crop, squash",
        "'decoder.widht' (did you mean 'width'?)",
        "decoder.dropout: input should be less than or equal to 1, got 2",
        "objective.name is 'cross-entrpy' (did you mean 'cross-entropy'?)",
        "training.optimizer is 'adm' (did you mean 'adam'?)",
        "training.epochs: input should be greater than or equal to 1, got 0",
        "'trainin' (did you mean 'training'?)",
        "'data.captons' (did you mean 'captions'?)",
        "'nonsense' is not of the form section.key=value",
    ):
        assert fault in message


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "encoder is missing; decoder is missing"),
        (SMALL | {"decoder": {}}, "decoder.name is missing"),
        (SMALL | {"encoder": {}}, "encoder.name is missing"),
        (SMALL | {"decoder": {"name": "lsmt"}}, "decoder.name is 'lsmt' (did you mean 'lstm'?)"),
        (SMALL | {"encoder": {"name": "patches", "pach_size": 8}}, "'encoder.pach_size' (did you mean 'patch_size'?)"),
        (SMALL | {"titel": "x"}, "unknown key 'titel' (did you mean 'title'?)"),
        (SMALL | {"training": {"learning_rate": float("inf")}}, "training.learning_rate"),
        (SMALL | {"objective": {"name": "distillation"}}, "objective.teacher is missing"),
        (
            SMALL | {"encoder": {"name": "patches", "patch_size": 7}},
            "recipe: encoder.patch_size=7 does not divide encoder.image_size=128",
        ),
        (SMALL | {"encoder": {"name": "patches", "heads": 3}}, "encoder.heads=3 does not divide encoder.width=128"),
        (
            PRETRAINED | {"decoder": {"name": "transformer", "width": 250}},
            "decoder.heads=8 does not divide decoder.width=250",
        ),
    ],
)
def test_a_fault_names_its_place(values: dict[str, Any], fault: str) -> None:
    assert fault in error_message(values)


@pytest.mark.parametrize("section", list(Recipe.model_fields))
@pytest.mark.parametrize("value", [3, ["x"]])
def test_a_section_that_is_no_table_is_named(section: str, value: Any) -> None:
    assert section in error_message(SMALL | {section: value})


def test_a_key_of_another_decoder_is_unknown_to_this_one() -> None:
    assert "unknown key 'decoder.hidden'" in error_message(PRETRAINED, "decoder.hidden=5")
    assert parse_recipe(SMALL, ["decoder.hidden=5"]).decoder.hidden == 5


def test_nearest_suggests_only_what_is_near() -> None:
    assert nearest("beem", ["beam", "seed"]) == " (did you mean 'beam'?)"
    assert nearest("zzz", ["beam", "seed"]) == ""


# Overrides


def test_overrides_take_toml_values_or_plain_words() -> None:
    recipe = parse_recipe(
        PRETRAINED,
        ["training.epochs=3", "training.learning_rate=1e-4", "data.augment=true", "encoder.weights=my file.safetensors",
         'encoder.fit="squash"', " decoding.beam = 5"],
    )  # fmt: skip
    assert (recipe.training.epochs, recipe.training.learning_rate, recipe.data.augment) == (3, 1e-4, True)
    assert isinstance(recipe.encoder, PretrainedEncoder)
    assert (recipe.encoder.weights, recipe.encoder.fit, recipe.decoding.beam) == ("my file.safetensors", "squash", 5)


def test_the_last_override_wins() -> None:
    assert parse_recipe(SMALL, ["training.epochs=3", "training.epochs=4"]).training.epochs == 4


def test_overrides_leave_the_given_values_alone() -> None:
    values = {"encoder": {"name": "vgg19", "options": {"a": 1}}, "decoder": {"name": "lstm"}, "objective": {}}
    parse_recipe(values, ["encoder.options.b=2", "decoder.hidden=7", "objective.label_smoothing=0.1"])
    assert values == {
        "encoder": {"name": "vgg19", "options": {"a": 1}}, "decoder": {"name": "lstm"}, "objective": {}
    }  # fmt: skip


def test_another_part_starts_from_its_own_defaults_and_keeps_what_is_set_for_it() -> None:
    values = {"encoder": {"name": "vgg19"}, "decoder": {"name": "attention-lstm", "attention": 9, "width": 9}}
    for order in (("decoder.width=64", "decoder.name=lstm"), ("decoder.name=lstm", "decoder.width=64")):
        recipe = parse_recipe(values, order)
        assert (recipe.decoder.name, recipe.decoder.width) == ("lstm", 64)


def test_another_tokenizer_takes_no_option_of_the_one_before() -> None:
    recipe = load_recipe("dinov2-transformer", ["tokenizer.name=char"])
    assert recipe.tokenizer.options() == {}
    recipe = load_recipe("dinov2-transformer", ["tokenizer.size=2000", "tokenizer.name=bpe"])
    assert recipe.tokenizer.options() == {"size": 2000}
    assert load_recipe("dinov2-transformer", ["tokenizer.name=word"]).tokenizer.min_count == 5


def test_any_recipe_takes_any_encoder() -> None:
    assert isinstance(load_recipe("patch-transformer-char", ["encoder.name=vgg19"]).encoder, PretrainedEncoder)
    assert isinstance(load_recipe("sat-soft-vgg19", ["encoder.name=patches"]).encoder, PatchEncoder)
    kept = load_recipe("sat-soft-resnet152", ["encoder.name=resnet101"]).encoder
    assert isinstance(kept, PretrainedEncoder)
    assert kept.image_size == 448


def test_architecture_options_are_set_one_by_one() -> None:
    values = PRETRAINED | {"encoder": {"name": "resnet50", "options": {"a": 1}}}
    recipe = parse_recipe(values, ["encoder.options.stride_in_1x1=true"])
    assert recipe.encoder.options()["options"] == {"a": 1, "stride_in_1x1": True}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("encoder", "image_size", 64), ("encoder", "grid", 7), ("encoder", "learning_rate", 0.1),
     ("training", "init", "x"), ("training", "new_words", 3), ("tokenizer", "size", 9), ("tokenizer", "min_count", 2),
     ("decoder", "feedforward", 8), ("embedding", "file", "x"), ("decoding", "max_length", 9)],
)  # fmt: skip
def test_none_takes_an_option_back(section: str, key: str, value: Any) -> None:
    values = {**PRETRAINED, section: {**PRETRAINED.get(section, {}), key: value}}
    assert getattr(getattr(parse_recipe(values), section), key) == value
    assert getattr(getattr(parse_recipe(values, [f"{section}.{key}=none"]), section), key) is None


def test_none_where_a_value_is_needed_is_a_fault() -> None:
    assert "training.epochs" in error_message(SMALL, "training.epochs=none")
    assert "decoding.length_penalty" in error_message(SMALL, "decoding.length_penalty=none")


@pytest.mark.parametrize("override", ["foo", "training.=3", ".epochs=3", "title=hello", "", "="])
def test_an_override_of_another_form_is_named(override: str) -> None:
    assert f"--set {override!r} is not of the form section.key=value" in error_message(SMALL, override)


def test_an_override_into_a_plain_value_is_a_fault() -> None:
    assert "'title' is not a section" in error_message(SMALL | {"title": "x"}, "title.x=3")


# Files


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_survives_the_way_through_toml(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, ["objective.teacher=t"] if name == "distilled" else [])
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(str(path)) == recipe
    assert parse_recipe(recipe.to_dict()) == recipe


def test_differences_name_every_setting_but_the_title() -> None:
    before, after = parse_recipe(SMALL | {"title": "x"}, ["training.init=a"]), parse_recipe(SMALL, ["training.seed=2"])
    found = differences(before.to_dict(), after.to_dict())
    assert found == {"training.init": ("a", None), "training.seed": (1, 2)}


def test_odd_values_survive_the_way_through_toml() -> None:
    title = 'quotes " and \\ and ünïcode\nand a line 🐕'
    options = {"drop path": 0.1, "img.size": [1, 2], "deep": {"a": True}}
    recipe = parse_recipe(PRETRAINED | {"title": title, "encoder": {"name": "x", "options": options}})
    again = parse_recipe(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.title == title
    assert again.encoder.options()["options"] == options


def test_bad_toml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[encoder]\nname = vgg19\n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML: .*line 2"):
        load_recipe(str(path))
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_recipe(str(path))


def test_an_unknown_recipe_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'sat-soft-vgg91' \(did you mean 'sat-soft-vgg19'\?\)"):
        find_recipe("sat-soft-vgg91")
    with pytest.raises(ConfigError, match="it is a published row, which `sightline reproduce dinov2-coco-long` trains"):
        find_recipe("dinov2-coco-long")
    with pytest.raises(ConfigError, match="does not exist"):
        find_recipe(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="unknown recipe"):
        find_recipe("../recipes/nic-resnet50")


# Parts of a saved model


def test_a_saved_part_is_held_to_a_recipes_rules_without_conversion() -> None:
    check_part("decoder", {"name": "transformer", "width": 8, "heads": 2, "dropout": 0})
    check_part("encoder", {"name": "vgg19", "grid": None, "options": {}})
    for section, values, fault in (
        ("decoder", {"name": "transformer", "width": "8"}, "decoder.width: input should be a valid integer, got '8'"),
        ("decoder", {"name": "transformer", "pooled": 1}, "decoder.pooled"),
        ("decoder", {"name": "transformer", "heads": 3}, "decoder.heads=3 does not divide decoder.width=256"),
        ("decoder", {"name": "lstm", "size": 1}, "unknown key 'decoder.size'"),
        ("encoder", {"name": "patches", "blocks": True}, "encoder.blocks"),
        ("encoder", {"name": "vgg19", "options": []}, "encoder.options"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_part(section, values)
        assert fault in str(caught.value)


def test_the_schema_accepts_every_recipe_and_refuses_a_typo(command) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    outcome = command("recipes", "--schema")
    assert (outcome.code, outcome.err) == (0, "")
    validator = jsonschema.Draft202012Validator(json.loads(outcome.out))
    validator.check_schema(validator.schema)
    for name in recipe_names():
        values = tomllib.loads(find_recipe(name).read_text(encoding="utf-8"))
        assert validator.is_valid(values), name
        for section in ("encoder", "decoder", "training"):
            assert not validator.is_valid({**values, section: {**values.get(section, {}), "lerning_rate": 1}}), section
        assert not validator.is_valid({**values, "trainning": {}})
    values["encoder"] = {"name": "patches"}
    assert validator.is_valid(values), "every key has a default"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("-1", "objective.missed_words: input should be greater than or equal to 0, got -1"),
        (
            "many",
            "objective.missed_words: input should be a valid number, unable to parse string as a number, got 'many'",
        ),
        ("{coco=-2}", "objective.missed_words.coco: input should be greater than or equal to 0, got -2"),
    ],
)
def test_a_number_or_one_by_source_has_one_fault(value: str, fault: str):
    with pytest.raises(ConfigError, match=f"dinov2-coco-words: {re.escape(fault)}$"):
        load_recipe("dinov2-coco-words", [f"objective.missed_words={value}"])
