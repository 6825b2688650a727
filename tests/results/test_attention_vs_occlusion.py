"""Attention against occlusion: mass is kept, chance is a quarter, a look that knows scores full."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import attention_vs_occlusion as tool
import sections
from script import run
from sightline.errors import DataError
from sightline.nn.checkpoint import save_checkpoint

CHANCE = np.random.default_rng(0)


def look(photo: int, attention: np.ndarray, source: np.ndarray, word: str = "dog") -> tool.Look:
    return tool.Look(photo, word, attention / attention.sum(), source)


def corner(row: int, column: int) -> np.ndarray:
    """A quarter of the photo."""
    source = np.zeros((8, 8))
    source[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1
    return source


@pytest.mark.parametrize("shape", [(7, 7), (14, 14), (16, 16), (8, 8), (3, 5)])
def test_regridding_keeps_mass_where_it_was(shape: tuple[int, int]) -> None:
    grid = CHANCE.random(shape)
    found = tool.regrid(grid)
    assert found.shape == (8, 8) and found.sum() == pytest.approx(1)
    rows = np.linspace(0.5, shape[0] - 0.5, shape[0]) / shape[0]
    assert found.sum(1) @ ((np.arange(8) + 0.5) / 8) == pytest.approx(grid.sum(1) @ rows / grid.sum(), abs=0.02)
    if shape == (16, 16):
        assert found == pytest.approx(grid.reshape(8, 2, 8, 2).sum((1, 3)) / grid.sum())


def test_the_strongest_quarter_is_a_quarter_and_ties_share() -> None:
    falls = np.zeros((8, 8))
    falls[0, :4] = [4, 3, 2, 1]
    source = tool.strongest(falls)
    assert source.sum() == pytest.approx(16)
    assert (source[0, :4] == 1).all() and source[5, 5] == pytest.approx(12 / 60)
    assert tool.strongest(CHANCE.random((8, 8))).sum() == pytest.approx(16)
    assert set(np.unique(tool.strongest(CHANCE.random((8, 8))))) == {0.0, 1.0}


def test_a_look_that_knows_scores_full_and_one_that_does_not_a_quarter() -> None:
    source = corner(0, 1)
    assert look(0, source, source).against(source) == (1.0, pytest.approx(1.0))
    assert look(0, np.ones((8, 8)), source).against(source) == (pytest.approx(0.25), pytest.approx(0.25))
    assert look(0, corner(1, 0), source).against(source) == (0.0, 0.0)


def test_knowing_shows_as_a_gain_over_other_photos_and_looking_at_the_middle_does_not() -> None:
    places = [corner(number // 2 % 2, number % 2) for number in range(12)]
    knowing = tool.summary([look(number, place, place) for number, place in enumerate(places)])["all words"]
    assert knowing["peak"] == 100 and knowing["peak, other photos"] < 25
    assert knowing["peak, gain"][0] > 50
    middle = np.zeros((8, 8))
    middle[2:6, 2:6] = 1
    same = tool.summary([look(number, middle, middle) for number in range(12)])["all words"]
    assert same["peak"] == same["peak, other photos"] == 100
    assert same["attention, gain"] == [0, 0]


def test_words_are_counted_apart() -> None:
    looks = [
        look(0, corner(0, 0), corner(0, 0)),
        look(1, corner(0, 0), corner(1, 1), "snow"),
        look(1, corner(1, 1), corner(1, 1)),
    ]
    found = tool.summary(looks)
    assert (found["photos"], found["words"]) == (2, 3)
    assert {word: own["peak"] for word, own in found["by word"].items()} == {"dog": 100, "snow": 0}
    with pytest.raises(DataError, match="take more --photos"):
        tool.summary(looks[:1])


def test_one_command_for_several_models_one_after_another(
    tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from test_add_row import untrained

    words = untrained("soft", tiny_flickr8k_kept).tokenizer.tokens
    monkeypatch.setattr(tool, "GROUPS", dict.fromkeys(words, "dog"))
    for kind in ("soft", "hard"):
        save_checkpoint(tmp_path / kind, untrained(kind, tiny_flickr8k_kept))
        arguments = [f"{kind}={tmp_path / kind}", "--data", str(tiny_flickr8k_kept), "--photos", "2"]
        assert run(tool.main, [*arguments, "--results", str(tmp_path / "results")]) == 0
    found = json.loads((tmp_path / "results" / "attention_vs_occlusion.json").read_text())
    assert list(found) == ["soft", "hard"] and found["soft"]["photos"] == 2
    text = sections.blocks(tmp_path / "results")["results/attention.md"]["attention against occlusion"]
    assert "| soft | 2 |" in text and "| word | soft | hard |" in text
    save_checkpoint(tmp_path / "lstm", untrained("lstm", tiny_flickr8k_kept))
    arguments = [f"nic={tmp_path / 'lstm'}", "--data", str(tiny_flickr8k_kept), "--results", str(tmp_path)]
    assert run(tool.main, arguments) == 2
    assert "does not say where it looks" in capsys.readouterr().err
