"""Decoding options: each is declared once, with bounds; conflicts and impossible values are reported in one line."""

from __future__ import annotations

import pytest

from sightline import decoding
from sightline.decoding import DecodingOptions
from sightline.errors import ConfigError


def test_all_conflicts_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        DecodingOptions(beam=0, max_length=10, min_length=9, candidates=4, temperature=0.5, top_p=0.0)
    for name in ("beam is 0", "min_length is 9", "candidates is 4", "temperature", "top_p is 0.0"):
        assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam": "3"}, {"beam": True}, {"beam": 2.5}, {"beam": 10**6}, {"length_penalty": -1.0}, {"seed": 2**64},
        {"length_penalty": float("nan")}, {"max_length": 2}, {"min_length": -1}, {"no_repeat_ngram": -1},
        {"sample": 1}, {"sample": True, "temperature": 0.0}, {"sample": True, "temperature": float("nan")},
        {"sample": True, "top_p": 1.5}, {"sample": True, "top_k": -1}, {"top_k": 5}, {"candidates": 0},
        {"alternatives": -1}, {"seed": 2**63}, {"seed": -(2**63)},
    ],
)  # fmt: skip
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        DecodingOptions(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam is 0, give 1 to 1000"),
        ({"max_length": 2}, "max_length is 2, give 3 or more"),
        ({"sample": True, "temperature": 0}, "temperature is 0, give more than 0"),
        ({"sample": True, "top_p": 2}, "top_p is 2, give more than 0, up to 1"),
        (
            {"max_length": 10, "min_length": 9},
            "min_length is 9 but max_length 10 leaves room for 8, as it counts start and end",
        ),
    ],
)
def test_the_error_says_what_is_allowed(wrong, message):
    with pytest.raises(ConfigError) as error:
        DecodingOptions(**wrong)
    assert str(error.value) == f"decoding options: {message}"


@pytest.mark.parametrize("seed", [2**63 - 1, 1 - 2**63])
def test_a_seed_may_be_any_number_of_64_bits(seed):
    assert DecodingOptions(sample=True, seed=seed).seed == seed


def test_every_option_is_declared_once_with_its_help_and_bounds():
    listed = {option.name: option for option in decoding.user_options()}
    assert not {"want_attention", "alternatives", "allow_unknown"} & set(listed)
    assert (listed["beam"].type, listed["beam"].default, listed["beam"].bounds) == (int, 3, {"ge": 1, "le": 1000})
    for option in listed.values():
        assert type(option.default) is option.type
        assert option.help.endswith(".")


def test_recipes_take_the_options_that_are_declared():
    from sightline.recipes.config import DecodingSection

    listed = {option.name: option for option in decoding.user_options()}
    for name, field in DecodingSection.model_fields.items():
        assert name in listed
        assert field.default in (listed[name].default, None)
