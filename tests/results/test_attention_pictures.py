"""Attention side by side: the repository's pictures hold no pixel of the dataset's photos."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import attention
import sections
from script import ROOT, run
from sightline.nn.checkpoint import save_checkpoint
from sightline.types import Caption, Word


def caption(photo: Image.Image, places: int = 4, words: int = 12) -> Caption:
    grids = [np.full((places, places), 0.01) for _ in range(words)]
    for number, grid in enumerate(grids):
        grid.flat[number % grid.size] = 0.8
    found = tuple(Word(f"word{number}", 0.5, grid) for number, grid in enumerate(grids))
    return Caption("a dog runs", found, -1.0, photo=photo)


def noise(seed: int, size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))


def test_a_picture_without_photos_is_the_same_whatever_the_photo() -> None:
    first, second = ({"soft": caption(noise(seed)), "hard": caption(noise(seed), 7)} for seed in (1, 2))
    assert attention.picture(first, False).tobytes() == attention.picture(second, False).tobytes()
    assert attention.picture(first, True).tobytes() != attention.picture(second, True).tobytes()


def test_heat_lies_on_the_grid_square_for_square() -> None:
    grid = np.zeros((4, 6))
    grid[1, 4] = 1.0
    pixels = np.asarray(attention.heat(grid, (60, 40)))
    assert (pixels[10:20, 40:50] == attention.HEAT).all()
    pixels = pixels.copy()
    pixels[10:20, 40:50] = attention.GROUND
    assert (pixels == attention.GROUND).all()


def test_peaks_are_dark_and_an_even_look_stays_pale() -> None:
    peak, even = np.full((7, 7), 0.01), np.full((7, 7), 1 / 49)
    peak[2, 3] = 0.5
    dark, pale = attention.levels([peak, even])
    assert dark[2, 3] == pytest.approx(1) and dark.max() <= 1
    assert pale.max() == 0


def test_every_word_gets_its_tile_and_long_captions_another_row() -> None:
    short, long = (attention.picture({"soft": caption(noise(0), words=words)}, False) for words in (5, 18))
    assert short.width == long.width == attention.WIDTH
    assert long.height > short.height


@pytest.fixture
def models(tiny_flickr8k_kept: Path, tmp_path: Path) -> list[str]:
    from test_add_row import untrained

    for kind in ("soft", "transformer", "lstm"):
        save_checkpoint(tmp_path / kind, untrained(kind, tiny_flickr8k_kept))
    return [f"{kind}={tmp_path / kind}" for kind in ("soft", "transformer")]


def test_one_command_draws_all_and_the_page_shows_them(
    models: list[str], tiny_flickr8k_kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "examples"
    own.mkdir()
    noise(5, (300, 200)).save(own / "mine.jpg")
    output, full = tmp_path / "results" / "attention", tmp_path / "full"
    where = ["--examples", str(own), "--output", str(output), "--full", str(full)]
    assert run(attention.main, [*models, "--data", str(tiny_flickr8k_kept), *where]) == 0
    index = json.loads((output / "index.json").read_text())
    assert [entry["photo"] for entry in index["photos"]] == [
        "red_square_black.jpg", "white_circle_blue.jpg", "examples/mine.jpg"
    ]  # fmt: skip
    for entry in index["photos"]:
        assert (output / entry["picture"]).stat().st_size < 300_000
    assert {path.name for path in full.iterdir()} == {"red_square_black.png", "white_circle_blue.png"}
    text = sections.blocks(output.parent)["results/attention.md"]["attention"]
    assert text.count("](results/attention/") == 3 and set(index["models"]) == {"soft", "transformer"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--full", str(ROOT / "results" / "full")], "lies in the repository"),
        (["--photos", "nowhere.jpg"], "no photo 'nowhere.jpg'"),
        (["soft"], "write NAME=FOLDER"),
    ],
)
def test_a_mistake_is_one_line(
    change: list[str], message: str, models: list[str], tiny_flickr8k_kept: Path, tmp_path: Path, capsys
) -> None:
    arguments = [*change, "--data", str(tiny_flickr8k_kept), "--output", str(tmp_path / "out")]
    arguments = [*(models[:1] if change[0].startswith("--") else []), *arguments]
    assert run(attention.main, arguments) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_without_attention_is_refused(models, tiny_flickr8k_kept: Path, tmp_path: Path, capsys) -> None:
    arguments = [f"nic={tmp_path / 'lstm'}", "--data", str(tiny_flickr8k_kept), "--output", str(tmp_path / "out")]
    assert run(attention.main, arguments) == 2
    assert "'nic' does not say where it looks" in capsys.readouterr().err
